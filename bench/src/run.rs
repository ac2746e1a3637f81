//! A run: every cell of every system, round by round, so that a drift of the machine meets all of them alike.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde_json::Value;
use tempfile::TempDir;

use crate::machine::{Cores, Env, directory_on_disk};
use crate::measure::Counted;
use crate::peer::fio::Fio;
use crate::peer::lab::{Lab, Peer};
use crate::peer::nats::instance::Flush;
use crate::peer::nats::system::Nats;
use crate::peer::outcome::Outcome;
use crate::peer::redis::system::Redis;
use crate::peer::tailwater::system::Tailwater;
use crate::report::{Measured, Report, Row};
use crate::scenario::{Cell, Options, Scenario};

/// The length that a node's segments grow to.
const SEGMENT_BYTES: u64 = 64 << 20;

/// What to run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Which scenarios.
    pub scenarios: Vec<Scenario>,
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
    /// Whether to go on without a system that is not there.
    pub skip_missing: bool,
    /// The binary instead of the workspace's.
    pub tailwater: Option<PathBuf>,
    /// The nats-server instead of an installed one.
    pub nats: Option<PathBuf>,
    /// Where the report goes, after each scenario anew: an interrupted sitting keeps what it has.
    pub report: Option<PathBuf>,
}

/// The systems that a run needs, found before anything is measured.
#[derive(Default)]
struct Systems {
    tailwater: Option<Tailwater>,
    redis: Option<Redis>,
    nats: Option<Nats>,
    fio: Option<Fio>,
    /// What is not measured, and why: said in the report too.
    skipped: Vec<String>,
}

/// Runs all of it; says how far it is on standard error.
///
/// # Errors
/// When a system is not there and not to be skipped, or fails.
pub async fn run(plan: &Plan) -> anyhow::Result<Report> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("the workspace")?;
    let dir = directory_on_disk(&plan.dir)?;
    let scratch = TempDir::with_prefix_in("bench-", &dir)?;
    let systems = Systems::locate(plan, workspace, scratch.path())?;
    let cores = if plan.pin { Cores::first_two() } else { None };
    let mut env = Env::gather(&dir, workspace, cores, describe(plan, &systems));
    env.skipped.clone_from(&systems.skipped);
    Cores::start_apart(cores, || Ok(()))?;
    let lab = Lab {
        dir: scratch.path().to_owned(),
        cores,
        options: plan.options.clone(),
    };
    let mut report = Report {
        env,
        rows: Vec::new(),
    };
    for &scenario in &plan.scenarios {
        let cells = systems.cells(plan, scenario, &mut report.env.skipped);
        report
            .rows
            .extend(systems.rounds(plan, scenario, &cells, &lab).await?);
        if let Some(dir) = &plan.report {
            write_report(&report, dir)?;
        }
    }
    ensure!(!report.rows.is_empty(), "there was no cell to run");
    scratch
        .close()
        .context("cannot remove what the run left behind")?;
    Ok(report)
}

/// Writes `result.json` and `report.md` into a directory.
///
/// # Errors
/// When they cannot be written.
fn write_report(report: &Report, dir: &Path) -> anyhow::Result<()> {
    let cannot = |path: &Path| format!("{}: cannot write it", path.display());
    std::fs::create_dir_all(dir).with_context(|| cannot(dir))?;
    let (result, text) = (dir.join("result.json"), dir.join("report.md"));
    let json = serde_json::to_string_pretty(report).context("the report as JSON")?;
    std::fs::write(&result, json + "\n").with_context(|| cannot(&result))?;
    std::fs::write(&text, report.markdown()).with_context(|| cannot(&text))
}

impl Systems {
    fn locate(plan: &Plan, workspace: &Path, scratch: &Path) -> anyhow::Result<Systems> {
        let mut systems = Systems::default();
        for &peer in &plan.against {
            let found = match peer {
                Peer::Tailwater => Tailwater::locate(plan.tailwater.clone(), workspace)
                    .map(|found| systems.tailwater = Some(found)),
                Peer::Redis => Redis::locate().map(|found| systems.redis = Some(found)),
                Peer::Nats | Peer::NatsUnsynced => {
                    Nats::locate(plan.nats.clone(), workspace).map(|found| systems.nats = Some(found))
                }
                Peer::Fio => Fio::locate(scratch).map(|found| systems.fio = Some(found)),
            };
            match found {
                Err(error) if plan.skip_missing && peer != Peer::Tailwater => {
                    systems.skip(format!("{} altogether: {error:#}", peer.name()));
                }
                found => found?,
            }
        }
        Ok(systems)
    }

    fn skip(&mut self, what: String) {
        tell(&format!("SKIPPED: {what}"));
        self.skipped.push(what);
    }

    fn has(&self, peer: Peer) -> bool {
        match peer {
            Peer::Tailwater => self.tailwater.is_some(),
            Peer::Redis => self.redis.is_some(),
            Peer::Nats | Peer::NatsUnsynced => self.nats.is_some(),
            Peer::Fio => self.fio.is_some(),
        }
    }

    /// What each system does in a scenario; one that does nothing there is named.
    fn cells(&self, plan: &Plan, scenario: Scenario, skipped: &mut Vec<String>) -> Vec<(Peer, Cell)> {
        let mut wanted = Vec::new();
        for &peer in plan.against.iter().filter(|&&peer| self.has(peer)) {
            let cells = peer.cells(scenario, &plan.options);
            if cells.is_empty() && peer != Peer::Fio {
                let what = format!("{} in {}: it does no such thing", peer.name(), scenario.name());
                tell(&format!("SKIPPED: {what}"));
                skipped.push(what);
            }
            wanted.extend(cells.into_iter().map(|cell| (peer, cell)));
        }
        let is_wanted = |cell: &Cell| {
            plan.only
                .as_ref()
                .is_none_or(|only| cell.label().contains(only.as_str()))
        };
        wanted.retain(|(_, cell)| is_wanted(cell));
        wanted
    }

    async fn rounds(
        &self,
        plan: &Plan,
        scenario: Scenario,
        cells: &[(Peer, Cell)],
        lab: &Lab,
    ) -> anyhow::Result<Vec<Row>> {
        // One list for each row: a cell of one system may measure several things.
        let mut rows: Vec<Vec<Measured>> = Vec::new();
        let total = plan.rounds * cells.len();
        for round in 0..plan.rounds {
            let mut row = 0;
            for (number, (peer, cell)) in cells.iter().enumerate() {
                let what = format!("{} {} {}", scenario.name(), peer.name(), cell.label());
                let outcomes = self.run(*peer, cell, lab).await.with_context(|| what.clone())?;
                for (counts, outcome) in outcomes {
                    let place = round * cells.len() + number + 1;
                    tell(&format!("[{place}/{total}] {what}: {}", brief(counts, &outcome)));
                    if rows.len() == row {
                        rows.push(Vec::new());
                    }
                    rows[row].push(measured(scenario, *peer, cell, counts, outcome, lab));
                    row += 1;
                }
            }
        }
        Ok(rows.iter().filter_map(|rounds| Row::of(rounds)).collect())
    }

    async fn run(&self, peer: Peer, cell: &Cell, lab: &Lab) -> anyhow::Result<Vec<Counted>> {
        let none = || format!("{} was not looked for", peer.name());
        match (peer, cell) {
            (Peer::Tailwater, cell) => {
                let tailwater = self.tailwater.as_ref().with_context(none)?;
                tailwater.run(cell, lab).await
            }
            (Peer::Redis, cell) => self.redis.as_ref().with_context(none)?.run(cell, lab).await,
            (Peer::Nats | Peer::NatsUnsynced, cell) => {
                let flush = if peer == Peer::Nats {
                    Flush::Always
                } else {
                    Flush::Shipped
                };
                self.nats.as_ref().with_context(none)?.run(flush, cell, lab).await
            }
            (Peer::Fio, Cell::Floor(floor)) => {
                let fio = self.fio.as_ref().with_context(none)?;
                Ok(vec![("writes", fio.run(floor, lab)?)])
            }
            (Peer::Fio, _) => anyhow::bail!("fio measures the disk alone"),
        }
    }
}

fn measured(
    scenario: Scenario,
    peer: Peer,
    cell: &Cell,
    counts: &'static str,
    outcome: Outcome,
    lab: &Lab,
) -> Measured {
    let mut params = cell.params();
    if peer == Peer::Tailwater {
        params.insert("shards".to_owned(), Value::from(lab.options.shards));
    }
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
        // Payload alone, so at least so many.
        segments_filled: outcome.written_bytes.map(|bytes| bytes / SEGMENT_BYTES),
    }
}

fn describe(plan: &Plan, systems: &Systems) -> String {
    let options = &plan.options;
    let scenarios: Vec<&str> = plan.scenarios.iter().map(|scenario| scenario.name()).collect();
    let against: Vec<&str> = plan.against.iter().map(|peer| peer.name()).collect();
    let mut text = format!(
        "run {} --against {} --rounds {} --seconds {} --steady {} --warmup {} --rate {} --records {} --shards {}",
        scenarios.join(" "),
        against.join(","),
        plan.rounds,
        options.seconds.as_secs_f64(),
        options.steady.as_secs_f64(),
        options.warmup.as_secs_f64(),
        options.rate_per_s,
        options.stored_records,
        options.shards,
    );
    if options.quick {
        text.push_str(" --quick");
    }
    if let Some(only) = &plan.only {
        text.push_str(&format!(" --only '{only}'"));
    }
    if let Some(binary) = &plan.tailwater {
        text.push_str(&format!(" --tailwater {}", binary.display()));
    }
    if !plan.pin {
        text.push_str(" --no-pin");
    }
    let versions = [
        systems.fio.as_ref().map(Fio::version),
        systems.redis.as_ref().map(Redis::version),
        systems.nats.as_ref().map(Nats::version),
    ];
    let versions: Vec<&str> = versions.into_iter().flatten().collect();
    if !versions.is_empty() {
        text.push_str(&format!(" ({})", versions.join(", ")));
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
