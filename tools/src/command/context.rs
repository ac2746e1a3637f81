//! What every client command has: a connected client, standard output, and an end when someone presses Ctrl-C.

use std::future::Future;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use tailwater_wire::client::config::ClientConfig;
use tailwater_wire::client::handle::Client;
use tokio::runtime::{Builder, Runtime};

use crate::cli::Global;
use crate::command::signals::Signals;
use crate::error::Failure;
use crate::output::{Format, Out};

/// The surroundings of a client command.
pub struct Context {
    /// Connected to the node that was named.
    pub client: Client,
    /// Standard output.
    pub out: Out,
    /// The form that was asked for.
    pub output: Option<Format>,
}

impl Context {
    /// The form of a document.
    #[must_use]
    pub fn document(&self) -> Format {
        Format::for_document(self.output)
    }
}

/// Connects, and runs a command until it ends or is interrupted.
///
/// # Errors
/// The command's, `UNREACHABLE` before it begins, or that it was interrupted.
pub fn with_client(
    global: &Global,
    command: impl AsyncFnOnce(&mut Context) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let config = client_config(global)?;
    run_until_interrupted(async move {
        let client = Client::connect(config).await.map_err(Failure::from)?;
        let mut context = Context {
            client,
            out: Out::new(),
            output: global.output,
        };
        command(&mut context).await?;
        context.out.flush()
    })
}

/// Connects, and runs a command that ends by itself when a signal comes: it has something to finish.
///
/// # Errors
/// The command's, `UNREACHABLE` before it begins, or that it was interrupted by then.
pub fn with_signals(
    global: &Global,
    command: impl AsyncFnOnce(&mut Context, &mut Signals) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let config = client_config(global)?;
    let runtime = runtime()?;
    let result = runtime.block_on(async {
        let mut signals = Signals::new()?;
        let client = signals.unless(Client::connect(config)).await??;
        let mut context = Context {
            client,
            out: Out::new(),
            output: global.output,
        };
        command(&mut context, &mut signals).await?;
        context.out.flush()
    });
    // A thread may still wait for its input; the process ends without it.
    runtime.shutdown_background();
    result
}

/// Runs on a runtime of its own; Ctrl-C ends it.
///
/// # Errors
/// The work's, or that it was interrupted.
pub fn run_until_interrupted(work: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = runtime()?;
    let result = runtime.block_on(async {
        tokio::select! {
            result = work => result,
            _ = tokio::signal::ctrl_c() => Err(Failure::interrupted()),
        }
    });
    // A thread may still wait for standard input; the process ends without it.
    runtime.shutdown_background();
    result
}

/// A runtime on this thread.
///
/// # Errors
/// When the machine has none to give.
pub fn runtime() -> Result<Runtime, Failure> {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::local("start", error, "IO"))
}

/// How to reach the node, with the token from its file.
///
/// # Errors
/// When the token's file cannot be read.
pub fn client_config(global: &Global) -> Result<ClientConfig, Failure> {
    let mut config = ClientConfig::new(global.server.clone());
    config.name = concat!("tailwater/", env!("CARGO_PKG_VERSION")).to_owned();
    if let Some(file) = &global.token_file {
        let token = std::fs::read_to_string(file).map_err(|error| Failure::file(file.display(), &error))?;
        config.token = Some(token.trim().to_owned());
    }
    Ok(config)
}

/// A bar of known length; invisible until it is added to what is drawn.
#[must_use]
pub fn bar(len: u64, what: &'static str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(len), ProgressDrawTarget::hidden());
    bar.set_style(
        style("{msg:9} [{bar:30}] {human_pos}/{human_len}  {rate}  {elapsed}").progress_chars("=> "),
    );
    bar.set_message(what);
    bar
}

/// How far a file has been read, on standard error; invisible when that is no terminal. Without a length only what the
/// message says is shown.
#[must_use]
pub fn percent(bytes: Option<u64>) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(bytes, ProgressDrawTarget::stderr_with_hz(10));
    bar.set_style(style(match bytes {
        Some(_) => "[{bar:30}] {percent}%  {msg}  {elapsed}",
        None => "{spinner} {msg}  {elapsed}",
    }));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// A count that goes up without a known end, on standard error; invisible when that is no terminal.
#[must_use]
pub fn counter(what: &'static str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
    bar.set_style(style("{spinner} {msg} {human_pos}  {rate}  {elapsed}"));
    bar.set_message(what);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

fn style(template: &str) -> ProgressStyle {
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    style.with_key("rate", |state: &ProgressState, out: &mut dyn std::fmt::Write| {
        // A rate that cannot be written leaves its place empty.
        let _ = write!(out, "{:.0}/s", state.per_sec());
    })
}
