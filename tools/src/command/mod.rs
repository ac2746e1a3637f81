//! The commands: from what was asked on the command line to what is printed, and the exit code.

pub mod context;
pub mod topic;
pub mod partition;
pub mod link;
pub mod link_list;
pub mod drain;
pub mod clock;
pub mod lines;
pub mod patience;
pub mod produce;
pub mod replay;
pub mod merge;
pub mod lane;
pub mod printer;
pub mod consume;
pub mod inspect;
pub mod node;
pub mod signals;
pub mod serve;
pub mod demo;

use clap::CommandFactory;

use crate::cli::{self, Cli, Command};
use crate::command::context::{with_client, with_signals};
use crate::error::Failure;
use crate::output::Out;

/// Runs a command to its end.
///
/// # Errors
/// [`Failure`], with what to print and the exit code.
pub fn run(cli: Cli) -> Result<(), Failure> {
    let Cli { global, command } = cli;
    let what = what(&command);
    let result = match command {
        Command::Serve(args) => serve::run(&global, &args),
        Command::Demo(args) => demo::run(&global, &args),
        Command::Topic(command) => with_client(&global, async |context| topic::run(context, command).await),
        Command::Link(command) => with_client(&global, async |context| link::run(context, command).await),
        Command::Partition(command) => {
            with_client(&global, async |context| partition::run(context, command).await)
        }
        Command::Clock { command } => {
            let command = command.unwrap_or(cli::Clock::Status);
            with_client(&global, async |context| clock::run(context, command).await)
        }
        Command::Produce(args) => with_signals(&global, async |context, signals| {
            produce::run(context, signals, args).await
        }),
        Command::Consume(args) => with_signals(&global, async |context, signals| {
            consume::run(context, signals, args).await
        }),
        Command::Replay(args) => replay::run(&global, &args),
        Command::Inspect(command) => inspect::run(&mut Out::new(), global.output, &command),
        Command::Completions { shell } => completions(shell),
    };
    result.map_err(|failure| failure.about(what))
}

/// A command in words, for errors that do not say what they are about.
fn what(command: &Command) -> &'static str {
    match command {
        Command::Serve(_) => "serve",
        Command::Demo(_) => "demo",
        Command::Topic(cli::Topic::Create(_)) => "topic create",
        Command::Topic(cli::Topic::List) => "topic list",
        Command::Topic(cli::Topic::Describe { .. }) => "topic describe",
        Command::Topic(cli::Topic::Alter(_)) => "topic alter",
        Command::Topic(cli::Topic::Delete { .. }) => "topic delete",
        Command::Partition(cli::Partition::List { .. }) => "partition list",
        Command::Link(cli::Link::Attach(_)) => "link attach",
        Command::Link(cli::Link::Detach { .. }) => "link detach",
        Command::Link(cli::Link::List(_)) => "link list",
        Command::Link(cli::Link::Verify(_)) => "link verify",
        Command::Partition(cli::Partition::ResetClock { .. }) => "partition reset-clock",
        Command::Clock {
            command: Some(cli::Clock::Accept),
        } => "clock accept",
        Command::Clock { .. } => "clock status",
        Command::Produce(_) => "produce",
        Command::Consume(_) => "consume",
        Command::Replay(_) => "replay",
        Command::Inspect(_) => "inspect",
        Command::Completions { .. } => "completions",
    }
}

fn completions(shell: clap_complete::Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "tailwater", &mut script);
    let mut out = Out::new();
    out.bytes(&script)?;
    out.flush()
}
