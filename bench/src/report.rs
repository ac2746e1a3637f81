//! What comes out: rows with their medians over rounds, as JSON, as a table and as a report.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::histogram::Quantiles;
use crate::machine::Env;

/// A rate counts as reached from this share of it on.
const REACHED: f64 = 0.99;

/// Fewer filled segments than these are a burst, not a steady state: what is prepared ahead is not paid for in it.
const STEADY_SEGMENTS: u64 = 10;

/// What one round of one cell measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// The scenario's name.
    pub scenario: &'static str,
    /// The system.
    pub system: &'static str,
    /// Every parameter.
    pub params: Map<String, Value>,
    /// The parameters in a few words.
    pub label: String,
    /// What was on disk when it was acknowledged.
    pub durability: &'static str,
    /// The rate asked for; none in a closed loop.
    pub offered_per_s: Option<f64>,
    /// The rate had: records acknowledged, copies committed or writes flushed.
    pub achieved_per_s: f64,
    /// From the intended send.
    pub response: Option<Quantiles>,
    /// From the actual send, the median.
    pub service_p50_us: Option<f64>,
    /// Payload, in megabytes of 1,000,000 bytes a second.
    pub mb_per_s: f64,
    /// CPU time of the system, all its threads, for each of what `achieved_per_s` counts.
    pub cpu_us_per_op: Option<f64>,
    /// Whole segments of 64 MiB that the load filled; none where that is not the point.
    pub segments_filled: Option<u64>,
}

/// One line of the result, over all rounds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The scenario's name.
    pub scenario: &'static str,
    /// The system.
    pub system: &'static str,
    /// Every parameter.
    pub params: Map<String, Value>,
    /// The parameters in a few words, for people only.
    #[serde(skip)]
    pub label: String,
    /// What was on disk when it was acknowledged.
    pub durability: &'static str,
    /// The rate asked for; null in a closed loop.
    pub offered_per_s: Option<f64>,
    /// The rate had.
    pub achieved_per_s: f64,
    /// Half are faster. Null, like all percentiles, when the rate was not reached.
    pub response_p50_us: Option<f64>,
    /// All but one of a hundred are faster.
    pub response_p99_us: Option<f64>,
    /// All but one of a thousand are faster.
    pub response_p999_us: Option<f64>,
    /// From the actual send, the median.
    pub service_p50_us: Option<f64>,
    /// Payload, in megabytes a second.
    pub mb_per_s: f64,
    /// CPU time of the system for each.
    pub cpu_us_per_op: Option<f64>,
    /// Rounds that the medians are of.
    pub rounds: usize,
    /// How far apart the rounds' rates lie: (highest - lowest) / median.
    pub spread: f64,
}

/// Everything of one run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The machine and what ran on it.
    pub env: Env,
    /// One for each cell and system.
    pub rows: Vec<Row>,
}

impl Row {
    /// The medians of one cell's rounds; none without rounds.
    #[must_use]
    pub fn of(rounds: &[Measured]) -> Option<Row> {
        let first = rounds.first()?;
        let rates: Vec<f64> = rounds.iter().map(|round| round.achieved_per_s).collect();
        let achieved = median(rates.clone())?;
        // One round short of the rate is enough: its slowest records may never have been answered.
        let reached = rates.iter().all(|rate| {
            first
                .offered_per_s
                .is_none_or(|offered| *rate >= REACHED * offered)
        });
        let quantile = |of: &dyn Fn(&Measured) -> Option<f64>| {
            let all: Option<Vec<f64>> = rounds.iter().map(of).collect();
            all.filter(|_| reached).and_then(median).map(tenths)
        };
        let (least, most) = rates
            .iter()
            .fold((f64::MAX, 0.0_f64), |(l, m), &rate| (l.min(rate), m.max(rate)));
        let (mut params, mut label) = (first.params.clone(), first.label.clone());
        if let Some(filled) = rounds.iter().filter_map(|round| round.segments_filled).min() {
            params.insert("segments_filled".to_owned(), Value::from(filled));
            if filled < STEADY_SEGMENTS {
                let _infallible = write!(label, " (a burst: {filled} segments)");
            }
        }
        Some(Row {
            scenario: first.scenario,
            system: first.system,
            params,
            label,
            durability: first.durability,
            offered_per_s: first.offered_per_s,
            achieved_per_s: tenths(achieved),
            response_p50_us: quantile(&|round| Some(round.response?.p50_us)),
            response_p99_us: quantile(&|round| Some(round.response?.p99_us)),
            response_p999_us: quantile(&|round| Some(round.response?.p999_us)),
            service_p50_us: quantile(&|round| round.service_p50_us),
            mb_per_s: tenths(median(rounds.iter().map(|round| round.mb_per_s).collect())?),
            cpu_us_per_op: median(rounds.iter().filter_map(|round| round.cpu_us_per_op).collect())
                .map(|cpu| (cpu * 1_000.0).round() / 1_000.0),
            rounds: rounds.len(),
            spread: if achieved > 0.0 {
                ((most - least) / achieved * 1_000.0).round() / 1_000.0
            } else {
                0.0
            },
        })
    }
}

impl Report {
    /// A table for a terminal.
    #[must_use]
    pub fn table(&self) -> String {
        let mut table = Table::new();
        table
            .load_style(presets::NOTHING)
            .set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(HEADINGS.map(|(heading, _)| heading));
        table.add_rows(self.rows.iter().map(texts));
        for (column, (_, alignment)) in table.column_iter_mut().zip(HEADINGS) {
            column.set_cell_alignment(alignment);
        }
        format!("{table}\n")
    }

    /// The report as Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut out = String::from("# Bench\n\n| | |\n|---|---|\n");
        for (key, value) in self.env.entries() {
            let _infallible = writeln!(out, "| {key} | {} |", value.replace('|', "\\|"));
        }
        out.push('\n');
        let line = |out: &mut String, cells: &[String]| {
            let _infallible = writeln!(out, "| {} |", cells.join(" | "));
        };
        // A table for each scenario, in the order they ran in.
        for rows in self.rows.chunk_by(|a, b| a.scenario == b.scenario) {
            let _infallible = writeln!(out, "## {}\n", rows[0].scenario);
            line(&mut out, &HEADINGS.map(|(heading, _)| heading.to_owned()));
            line(
                &mut out,
                &HEADINGS.map(|(_, side)| if side == RIGHT { "--:" } else { "---" }.to_owned()),
            );
            rows.iter().for_each(|row| line(&mut out, &texts(row)));
            out.push('\n');
        }
        out.push_str(FOOTNOTES);
        out
    }
}

const LEFT: CellAlignment = CellAlignment::Left;
const RIGHT: CellAlignment = CellAlignment::Right;

const HEADINGS: [(&str, CellAlignment); 13] = [
    ("scenario", LEFT),
    ("system", LEFT),
    ("what", LEFT),
    ("durability", LEFT),
    ("offered/s", RIGHT),
    ("achieved/s", RIGHT),
    ("p50 us", RIGHT),
    ("p99 us", RIGHT),
    ("p99.9 us", RIGHT),
    ("service p50", RIGHT),
    ("MB/s", RIGHT),
    ("cpu us/op", RIGHT),
    ("spread", RIGHT),
];

const FOOTNOTES: &str = "Medians over the rounds; spread is (highest - lowest) / median of the rate. Percentiles are from the intended send
(response) and the actual one (service), in microseconds; a rate that was not reached has none. A dash under offered
is a closed loop: it sends when answers come, so its percentiles say nothing about a load that does not wait. The
disk's floor has no joint percentiles: its service median is the write's median plus the flush's. A burst filled fewer
than ten segments of 64 MiB (payload, all partitions together), so the preparation of segments is not paid for in it.
";

fn texts(row: &Row) -> [String; 13] {
    let figure = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), figure);
    [
        row.scenario.to_owned(),
        row.system.to_owned(),
        row.label.clone(),
        row.durability.to_owned(),
        figure(row.offered_per_s),
        figure(Some(row.achieved_per_s)),
        figure(row.response_p50_us),
        figure(row.response_p99_us),
        figure(row.response_p999_us),
        figure(row.service_p50_us),
        figure(Some(row.mb_per_s)),
        row.cpu_us_per_op
            .map_or_else(|| "-".to_owned(), |cpu| format!("{cpu:.2}")),
        format!("{:.0}%", row.spread * 100.0),
    ]
}

/// A number as people read it: whole from 100 on, its thousands apart.
fn figure(value: f64) -> String {
    if value < 100.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// The middle one; of an even number the mean of the two in the middle.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = values[(values.len() - 1) / 2];
    Some((lower + upper) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(offered: Option<f64>, achieved: f64, p50_us: f64) -> Measured {
        Measured {
            scenario: "produce",
            system: "tailwater",
            params: Map::from_iter([("record_bytes".to_owned(), Value::from(100))]),
            label: "100 B".to_owned(),
            durability: "fsync",
            offered_per_s: offered,
            achieved_per_s: achieved,
            response: Some(Quantiles {
                p50_us,
                p99_us: 2.0 * p50_us,
                p999_us: 4.0 * p50_us,
            }),
            service_p50_us: Some(p50_us / 2.0),
            mb_per_s: achieved / 10_000.0,
            cpu_us_per_op: Some(1.25),
            segments_filled: None,
        }
    }

    #[test]
    fn a_row_is_the_medians_of_its_rounds() {
        let row = Row::of(&[
            round(None, 900.0, 30.0),
            round(None, 1_100.0, 10.0),
            round(None, 1_000.0, 20.0),
        ]);
        let row = row.expect("rounds");
        assert_eq!((row.achieved_per_s, row.rounds, row.spread), (1_000.0, 3, 0.2));
        assert_eq!(
            (row.response_p50_us, row.response_p999_us),
            (Some(20.0), Some(80.0))
        );
        assert_eq!((row.service_p50_us, row.cpu_us_per_op), (Some(10.0), Some(1.25)));
        assert_eq!(Row::of(&[]), None);
        assert_eq!(median(vec![4.0, 1.0, 3.0, 2.0]), Some(2.5));
    }

    #[test]
    fn a_rate_that_one_round_did_not_reach_has_no_percentiles() {
        let reached = Row::of(&[
            round(Some(1_000.0), 995.0, 10.0),
            round(Some(1_000.0), 1_000.0, 10.0),
        ]);
        assert_eq!(reached.expect("rounds").response_p99_us, Some(20.0));
        let short = Row::of(&[
            round(Some(1_000.0), 985.0, 10.0),
            round(Some(1_000.0), 1_000.0, 10.0),
        ]);
        let short = short.expect("rounds");
        assert_eq!((short.response_p50_us, short.response_p99_us), (None, None));
        assert_eq!((short.response_p999_us, short.service_p50_us), (None, None));
        assert_eq!(short.achieved_per_s, 992.5);
    }

    #[test]
    fn rows_have_the_names_that_others_script_against_and_no_more() {
        let row = Row::of(&[round(None, 1.0, 1.0)]).expect("a round");
        let value = serde_json::to_value(&row).expect("JSON");
        let names: Vec<&str> = value
            .as_object()
            .expect("an object")
            .keys()
            .map(String::as_str)
            .collect();
        let mut expected = vec![
            "scenario",
            "system",
            "params",
            "durability",
            "offered_per_s",
            "achieved_per_s",
            "response_p50_us",
            "response_p99_us",
            "response_p999_us",
            "service_p50_us",
            "mb_per_s",
            "cpu_us_per_op",
            "rounds",
            "spread",
        ];
        expected.sort_unstable();
        assert_eq!(names, expected);
        assert!(value["offered_per_s"].is_null());
    }

    #[test]
    fn a_burst_is_called_one() {
        let of = |filled| Measured {
            segments_filled: Some(filled),
            ..round(None, 1.0, 1.0)
        };
        let row = Row::of(&[of(12), of(9)]).expect("rounds");
        assert_eq!(
            (row.params["segments_filled"].as_u64(), row.label.as_str()),
            (Some(9), "100 B (a burst: 9 segments)")
        );
        assert_eq!(Row::of(&[of(12), of(10)]).expect("rounds").label, "100 B");
    }

    #[test]
    fn tables_have_a_line_for_each_row_and_a_dash_for_nothing() {
        let rows = vec![Row::of(&[round(None, 1_234_567.0, 8.04)]).expect("a round")];
        let report = Report {
            env: Env::default(),
            rows,
        };
        let table = report.table();
        assert_eq!(table.lines().count(), 2, "{table}");
        assert!(
            table.contains("1,234,567") && table.contains("8.0") && table.contains(" - "),
            "{table}"
        );
        let markdown = report.markdown();
        let row = markdown
            .lines()
            .find(|line| line.contains("1,234,567"))
            .expect("the row");
        assert_eq!(row.matches('|').count(), 14, "{row}");
    }
}
