//! Starting a node in this process: its log, and its failures as this command line says them.

use std::io::{self, IsTerminal};

use tailwater_node::config::{ConfigError, NodeConfig};
use tailwater_node::process::{Node, StartError, StopError};
use tracing_subscriber::EnvFilter;

use crate::error::{Failure, exit};

/// Which log lines are shown, in the words of `tracing`: `info`, `tailwater_node=debug`.
const LOG: &str = "TAILWATER_LOG";
/// `json` for one JSON object a line.
const LOG_FORMAT: &str = "TAILWATER_LOG_FORMAT";

/// Sends the node's log to standard error; TAILWATER_LOG says what of it, and TAILWATER_LOG_FORMAT=json how.
pub fn start_log(default: &str) {
    let filter = EnvFilter::try_from_env(LOG).unwrap_or_else(|_| EnvFilter::new(default));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr);
    let json = std::env::var(LOG_FORMAT).is_ok_and(|format| format == "json");
    // Only a second call can fail, and then there is a log already.
    let _ = if json {
        log.json().try_init()
    } else {
        log.with_ansi(io::stderr().is_terminal()).try_init()
    };
}

/// Starts a node.
///
/// # Errors
/// Exit 2 for a configuration that cannot be, 1 for a machine or a directory that does not fit.
pub fn start(config: NodeConfig) -> Result<Node, Failure> {
    Node::start(config).map_err(start_failure)
}

/// A configuration that cannot be used.
#[must_use]
pub fn config_failure(error: &ConfigError) -> Failure {
    let failure = Failure::local("configuration", error, "INVALID_CONFIG").with_exit(exit::USAGE);
    match error {
        ConfigError::Read { source, .. } if source.kind() == io::ErrorKind::NotFound => {
            failure.with_exit(exit::NOT_FOUND)
        }
        _ => failure,
    }
}

fn start_failure(error: StartError) -> Failure {
    let code = match &error {
        StartError::Config(error) => return config_failure(error),
        StartError::DataDir { .. } => "DATA_DIR",
        StartError::MetadataMissing(_) => "METADATA_MISSING",
        StartError::DataDirInUse(_) => "DATA_DIR_IN_USE",
        StartError::Listen { .. } | StartError::PortsExhausted { .. } => "LISTEN",
        StartError::OpenFiles { .. } => "OPEN_FILES",
        StartError::Shard(_) => "SHARD",
        StartError::Executor(_) => "MACHINE",
        StartError::Metastore(_) => "METASTORE",
        StartError::Thread(_) => "THREAD",
    };
    let failure = Failure::local("start", &error, code);
    match error {
        StartError::DataDirInUse(_) => {
            failure.hint("stop the other node, or choose another directory with --data")
        }
        StartError::OpenFiles { .. } => {
            failure.hint("raise `ulimit -n`, or LimitNOFILE= in the systemd unit, or lower connections_max")
        }
        StartError::Listen { .. } => {
            failure.hint("another program has the port; --listen and --admin choose others")
        }
        _ => failure,
    }
}

/// A node that did not end as it was asked to.
#[must_use]
pub fn stop_failure(error: &StopError) -> Failure {
    Failure::local("node", error, "NODE_DIED")
}
