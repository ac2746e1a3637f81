//! The installed redis-server, and one round on an instance of it.

use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::measure::{Counted, catch_up, catchup_topic, fill, produce, tail};
use crate::payload::Payloads;
use crate::peer::lab::Lab;
use crate::peer::redis::instance::Instance;
use crate::scenario::Cell;

/// redis-server, started anew for each round of each cell.
#[derive(Debug)]
pub struct Redis {
    version: String,
}

impl Redis {
    /// Finds it.
    ///
    /// # Errors
    /// When it is not installed.
    pub fn locate() -> anyhow::Result<Redis> {
        let output = Command::new("redis-server")
            .arg("--version")
            .stdin(Stdio::null())
            .output();
        let output =
            output.context("redis-server: cannot start it; `apt-get install redis-server` brings it")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let version = text.split(' ').find_map(|word| word.strip_prefix("v="));
        Ok(Redis {
            version: format!("redis-server {}", version.unwrap_or("of unknown version")),
        })
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
    pub async fn run(&self, cell: &Cell, lab: &Lab) -> anyhow::Result<Vec<Counted>> {
        let instance = Instance::start(lab).await?;
        let outcomes = instance
            .server
            .while_alive(async {
                match cell {
                    Cell::Produce(cell) => produce(&instance, cell, lab).await,
                    Cell::Tail(cell) => tail(&instance, cell, lab).await,
                    Cell::Catchup(cell) => {
                        let payloads = Payloads::new(cell.record_bytes, false);
                        fill(&instance, &catchup_topic(cell), &payloads, cell.records).await?;
                        catch_up(&instance, cell).await
                    }
                    Cell::Fanout(_) | Cell::Floor(_) => bail!("redis-server copies no streams"),
                }
            })
            .await?;
        instance.server.stop().await?;
        Ok(outcomes)
    }
}
