//! A run: every cell of every system, round by round, so that a drift of the machine meets all of them alike.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde_json::Value;
use tempfile::TempDir;

use crate::machine::{Cores, Env, directory_on_disk};
use crate::peer::fio::Fio;
use crate::peer::lab::{Lab, Peer};
use crate::peer::outcome::Outcome;
use crate::peer::tailwater::system::Tailwater;
use crate::report::{Measured, Report, Row};
use crate::scenario::{Cell, Options, Scenario};

/// What to run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Which scenario.
    pub scenario: Scenario,
    /// Which systems.
    pub against: Vec<Peer>,
    /// What was chosen about the cells.
    pub options: Options,
    /// How often each cell is run.
    pub rounds: usize,
    /// Only cells whose label contains this.
    pub only: Option<String>,
    /// Where data lies.
    pub dir: PathBuf,
    /// Whether to keep system and load on cores of their own.
    pub pin: bool,
    /// The binary instead of the workspace's.
    pub tailwater: Option<PathBuf>,
}

/// The systems that a run needs, found before anything is measured.
struct Systems {
    tailwater: Option<Tailwater>,
    fio: Option<Fio>,
}

/// Runs all of it; says how far it is on standard error.
///
/// # Errors
/// When a system is not there, or fails.
pub async fn run(plan: &Plan) -> anyhow::Result<Report> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("the workspace")?;
    let dir = directory_on_disk(&plan.dir)?;
    let scratch = TempDir::with_prefix_in("bench-", &dir)?;
    let wants = |peer| plan.against.contains(&peer);
    let tailwater = wants(Peer::Tailwater).then(|| Tailwater::locate(plan.tailwater.clone(), workspace));
    let fio = wants(Peer::Fio).then(|| Fio::locate(scratch.path()));
    let systems = Systems {
        tailwater: tailwater.transpose()?,
        fio: fio.transpose()?,
    };
    let cells = cells(plan)?;
    let cores = if plan.pin { Cores::first_two() } else { None };
    let env = Env::gather(&dir, workspace, cores, describe(plan, &systems));
    Cores::start_apart(cores, || Ok(()))?;
    let lab = Lab {
        dir: scratch.path().to_owned(),
        cores,
        options: plan.options.clone(),
    };
    // One list for each row: a cell of one system may measure several things.
    let mut rows: Vec<Vec<Measured>> = Vec::new();
    let total = plan.rounds * cells.len();
    for round in 0..plan.rounds {
        let mut row = 0;
        for (number, (peer, cell)) in cells.iter().enumerate() {
            let what = format!("{} {} {}", plan.scenario.name(), peer.name(), cell.label());
            let outcomes = systems
                .run(*peer, cell, &lab)
                .await
                .with_context(|| what.clone())?;
            for (counts, outcome) in outcomes {
                let place = round * cells.len() + number + 1;
                tell(&format!("[{place}/{total}] {what}: {}", brief(counts, &outcome)));
                if rows.len() == row {
                    rows.push(Vec::new());
                }
                rows[row].push(measured(plan.scenario, *peer, cell, counts, outcome));
                row += 1;
            }
        }
    }
    scratch
        .close()
        .context("cannot remove what the run left behind")?;
    Ok(Report {
        env,
        rows: rows.iter().filter_map(|rounds| Row::of(rounds)).collect(),
    })
}

/// Writes `result.json` and `report.md` into a directory.
///
/// # Errors
/// When they cannot be written.
pub fn write_report(report: &Report, dir: &Path) -> anyhow::Result<()> {
    let cannot = |path: &Path| format!("{}: cannot write it", path.display());
    std::fs::create_dir_all(dir).with_context(|| cannot(dir))?;
    let (result, text) = (dir.join("result.json"), dir.join("report.md"));
    let json = serde_json::to_string_pretty(report).context("the report as JSON")?;
    std::fs::write(&result, json + "\n").with_context(|| cannot(&result))?;
    std::fs::write(&text, report.markdown()).with_context(|| cannot(&text))
}

impl Systems {
    async fn run(&self, peer: Peer, cell: &Cell, lab: &Lab) -> anyhow::Result<Vec<(&'static str, Outcome)>> {
        match (peer, cell) {
            (Peer::Tailwater, cell) => {
                self.tailwater
                    .as_ref()
                    .context("tailwater was not looked for")?
                    .run(cell, lab)
                    .await
            }
            (Peer::Fio, Cell::Floor(floor)) => {
                let fio = self.fio.as_ref().context("fio was not looked for")?;
                Ok(vec![("writes", fio.run(floor, lab)?)])
            }
            (Peer::Fio, _) => anyhow::bail!("fio measures the disk alone"),
        }
    }
}

fn cells(plan: &Plan) -> anyhow::Result<Vec<(Peer, Cell)>> {
    let all = plan.against.iter().flat_map(|&peer| {
        let cells = peer.cells(plan.scenario, &plan.options);
        cells.into_iter().map(move |cell| (peer, cell))
    });
    let is_wanted = |cell: &Cell| {
        plan.only
            .as_ref()
            .is_none_or(|only| cell.label().contains(only.as_str()))
    };
    let cells: Vec<(Peer, Cell)> = all.filter(|(_, cell)| is_wanted(cell)).collect();
    ensure!(!cells.is_empty(), "--only: no cell is named like that");
    Ok(cells)
}

fn measured(scenario: Scenario, peer: Peer, cell: &Cell, counts: &'static str, outcome: Outcome) -> Measured {
    let mut params = cell.params();
    params.insert("counts".to_owned(), Value::from(counts));
    Measured {
        scenario: scenario.name(),
        system: peer.name(),
        params,
        label: format!("{}: {counts}", cell.label()),
        durability: outcome.durability,
        offered_per_s: outcome.offered_per_s,
        achieved_per_s: outcome.achieved_per_s,
        response: outcome.response,
        service_p50_us: outcome.service_p50_us,
        mb_per_s: outcome.achieved_per_s * outcome.bytes_per_op as f64 / 1_000_000.0,
        cpu_us_per_op: outcome.cpu_us_per_op,
    }
}

fn describe(plan: &Plan, systems: &Systems) -> String {
    let Options {
        seconds,
        warmup,
        rate_per_s,
        backfill_records,
    } = &plan.options;
    let against: Vec<&str> = plan.against.iter().map(|peer| peer.name()).collect();
    let mut text = format!(
        "run {} --against {} --rounds {} --seconds {} --warmup {} --rate {rate_per_s} --records {backfill_records}",
        plan.scenario.name(),
        against.join(","),
        plan.rounds,
        seconds.as_secs_f64(),
        warmup.as_secs_f64(),
    );
    if let Some(only) = &plan.only {
        text.push_str(&format!(" --only '{only}'"));
    }
    if let Some(binary) = &plan.tailwater {
        text.push_str(&format!(" --tailwater {}", binary.display()));
    }
    if !plan.pin {
        text.push_str(" --no-pin");
    }
    if let Some(fio) = &systems.fio {
        text.push_str(&format!(" ({})", fio.version()));
    }
    text
}

fn brief(counts: &str, outcome: &Outcome) -> String {
    let mut text = format!("{:.0} {counts}/s", outcome.achieved_per_s);
    if let Some(response) = outcome.response {
        text.push_str(&format!(
            ", p50 {:.0} us, p99 {:.0} us",
            response.p50_us, response.p99_us
        ));
    }
    if let Some(busy) = outcome.load_busy {
        text.push_str(&format!(", the load used {:.0}% of a core", busy * 100.0));
    }
    text
}

/// Says something on standard error; that nobody may be there to read it is no reason to stop.
fn tell(line: &str) {
    let _unread = writeln!(std::io::stderr(), "{line}");
}
