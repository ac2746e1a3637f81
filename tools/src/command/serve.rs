//! `serve`: a node in the foreground. SIGTERM or Ctrl-C drains it; a second Ctrl-C ends it at once.

use std::time::Duration;

use serde::Serialize;
use tailwater_node::config::NodeConfig;
use tokio::runtime::Builder;

use crate::cli::{Global, Serve};
use crate::command::node;
use crate::command::signals::Signals;
use crate::error::{Failure, exit};
use crate::output::{self, Format, Out};

/// How often it is looked whether the node still runs.
const ALIVE_POLL: Duration = Duration::from_millis(200);

/// Where the node serves, printed with `-o json` or `-o ndjson` when it does.
#[derive(Debug, Serialize)]
struct Serving {
    listen: String,
    admin: String,
    pid: u32,
}

/// Runs a node until it is told to end.
///
/// # Errors
/// When it cannot start, or died.
pub fn run(global: &Global, args: &Serve) -> Result<(), Failure> {
    node::start_log("info,openraft=warn");
    let mut config =
        NodeConfig::load(args.config.as_deref()).map_err(|error| node::config_failure(&error))?;
    if let Some(data) = &args.data {
        config.data.clone_from(data);
    }
    if let Some(shards) = args.shards {
        config.shards = Some(shards);
    }
    config.listen = args.listen.unwrap_or(config.listen);
    config.admin = args.admin.unwrap_or(config.admin);
    // Before the node's threads are there: a signal that comes while it starts drains it as well.
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::local("start", error, "IO"))?;
    let mut signals = runtime.block_on(async { Signals::new() })?;
    let node = node::start(config)?;
    let serving = Serving {
        listen: node.listen_addr().to_string(),
        admin: node.admin_addr().to_string(),
        pid: std::process::id(),
    };
    if matches!(global.output, Some(Format::Json | Format::Ndjson)) {
        let mut out = Out::new();
        out.json(&serving)?;
        out.flush()?;
    }
    runtime.block_on(async {
        loop {
            tokio::select! {
                _ = signals.next() => break,
                () = tokio::time::sleep(ALIVE_POLL), if !node.has_ended() => {}
                () = std::future::ready(()), if node.has_ended() => break,
            }
        }
    });
    if !node.has_ended() {
        output::note("draining; a second Ctrl-C ends at once");
    }
    #[expect(
        clippy::disallowed_methods,
        reason = "a person who asks twice does not wait for the drain"
    )]
    std::thread::spawn(move || {
        runtime.block_on(signals.interrupt());
        std::process::exit(i32::from(exit::INTERRUPTED));
    });
    node.stop().map_err(|error| node::stop_failure(&error))
}
