//! Tailwater's one binary: the node, and every command that speaks to one.
#![forbid(unsafe_code)]

mod cli;
mod clock;
mod command;
mod error;
mod feed;
mod inspect;
mod output;
mod usage;
mod verify;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let result = match cli::Cli::try_parse() {
        Ok(cli) => command::run(cli),
        Err(error) => Err(usage::failure(&error)),
    };
    match result {
        Ok(()) => ExitCode::from(error::exit::OK),
        Err(failure) => {
            let text = failure.to_string();
            if !text.is_empty() {
                output::note(&text);
            }
            ExitCode::from(failure.exit_code())
        }
    }
}
