//! The binary under test, and one round on a node of it.

use std::path::{Path, PathBuf};

use anyhow::bail;

use crate::measure::{Counted, catch_up, catchup_topic, fill, produce, tail};
use crate::payload::Payloads;
use crate::peer::lab::Lab;
use crate::peer::process::release_binary;
use crate::peer::tailwater::fanout;
use crate::peer::tailwater::node::Node;
use crate::scenario::Cell;
use crate::store::Store;

/// The binary that is started anew for each round of each cell.
#[derive(Debug)]
pub struct Tailwater {
    binary: PathBuf,
}

impl Tailwater {
    /// A given binary, or the workspace's, built if need be.
    ///
    /// # Errors
    /// When there is none and none can be built.
    pub fn locate(given: Option<PathBuf>, workspace: &Path) -> anyhow::Result<Tailwater> {
        let binary = match given {
            Some(binary) => binary,
            None => release_binary("tailwater", "tailwater", workspace)?,
        };
        Ok(Tailwater { binary })
    }

    /// One round of one cell, on a node and a data directory of its own.
    ///
    /// # Errors
    /// When the node cannot be started, fails, or does not stop.
    pub async fn run(&self, cell: &Cell, lab: &Lab) -> anyhow::Result<Vec<Counted>> {
        let mut node = Node::start(&self.binary, lab).await?;
        if let Cell::Catchup(cell) = cell {
            let topic = catchup_topic(cell);
            let filled = async {
                node.make(&topic).await?;
                fill(
                    &node,
                    &topic,
                    &Payloads::new(cell.record_bytes, false),
                    cell.records,
                )
                .await
            };
            node.server.while_alive(filled).await?;
            node = node.restart(&self.binary, lab).await?;
        }
        let outcomes = node
            .server
            .while_alive(async {
                match cell {
                    Cell::Produce(cell) => produce(&node, cell, lab).await,
                    Cell::Fanout(cell) => fanout::run(&node, cell, lab).await,
                    Cell::Catchup(cell) => catch_up(&node, cell).await,
                    Cell::Tail(cell) => tail(&node, cell, lab).await,
                    Cell::Floor(_) => bail!("the disk's floor is not Tailwater's"),
                }
            })
            .await?;
        node.stop().await?;
        Ok(outcomes)
    }
}
