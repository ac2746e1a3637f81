//! How a command fails: one line that says what, why and by which code, a hint where there is one, and an exit code.

use std::fmt;
use std::io;

use tailwater_wire::client::error::ClientError;
use tailwater_wire::code::ErrorCode;

use crate::output::printable;

/// Exit codes, as scripts rely on them.
pub mod exit {
    /// Done.
    pub const OK: u8 = 0;
    /// It failed.
    pub const FAILED: u8 = 1;
    /// It was asked wrongly.
    pub const USAGE: u8 = 2;
    /// What it was asked for is not there.
    pub const NOT_FOUND: u8 = 3;
    /// A verification found something.
    pub const FOUND: u8 = 5;
    /// Interrupted by a person.
    pub const INTERRUPTED: u8 = 130;
    /// Ended by SIGTERM.
    pub const TERMINATED: u8 = 143;
}

/// Why a command ends with another code than 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Printed on standard error as `error: ...`; nothing is printed when there is none.
    message: Option<String>,
    /// The message does not say yet what failed, only why.
    bare: bool,
    /// Printed below it as `hint: ...`.
    hint: Option<String>,
    exit: u8,
}

impl Failure {
    /// `what: why (code)`, with the exit code that belongs to the code.
    pub fn coded(what: impl fmt::Display, why: impl fmt::Display, code: ErrorCode) -> Failure {
        Failure {
            message: Some(format!("{what}: {why} ({})", code.name())),
            bare: false,
            hint: hint_of(code).map(str::to_owned),
            exit: code.exit_code(),
        }
    }

    /// A failure of this machine: a file, a directory, a terminal.
    pub fn local(what: impl fmt::Display, why: impl fmt::Display, code: &str) -> Failure {
        Failure {
            message: Some(format!("{what}: {why} ({code})")),
            bare: false,
            hint: None,
            exit: exit::FAILED,
        }
    }

    /// A file cannot be used; one that is not there ends with the exit code for things not found.
    pub fn file(file: impl fmt::Display, error: &io::Error) -> Failure {
        let failure = Failure::local(format!("file {file}"), error, "IO");
        if error.kind() == io::ErrorKind::NotFound {
            failure.with_exit(exit::NOT_FOUND)
        } else {
            failure
        }
    }

    /// The command was asked for something that makes no sense.
    pub fn usage(what: impl fmt::Display, why: impl fmt::Display) -> Failure {
        Failure {
            message: Some(format!("{what}: {why} (USAGE)")),
            bare: false,
            hint: None,
            exit: exit::USAGE,
        }
    }

    /// What a verification found was printed already; only the exit code tells.
    #[must_use]
    pub fn found() -> Failure {
        Failure::silent(exit::FOUND)
    }

    /// A person pressed Ctrl-C.
    #[must_use]
    pub fn interrupted() -> Failure {
        Failure::silent(exit::INTERRUPTED)
    }

    /// Someone sent SIGTERM.
    #[must_use]
    pub fn terminated() -> Failure {
        Failure::silent(exit::TERMINATED)
    }

    /// The reader of our output went away: the work is done, as far as anyone wants it.
    #[must_use]
    pub fn quiet() -> Failure {
        Failure::silent(exit::OK)
    }

    /// What the parser has to show is shown, and nothing else is to be said.
    #[must_use]
    pub fn shown(page: &clap::Error, exit: u8) -> Failure {
        // Help to a reader that went away is nothing lost.
        let _ = page.print();
        Failure::silent(exit)
    }

    /// With a message that has its code, and a hint.
    #[must_use]
    pub fn told(message: String, hint: String, exit: u8) -> Failure {
        Failure {
            message: Some(message),
            bare: false,
            hint: Some(hint),
            exit,
        }
    }

    fn silent(exit: u8) -> Failure {
        Failure {
            message: None,
            bare: false,
            hint: None,
            exit,
        }
    }

    /// Standard output could not be written.
    #[must_use]
    pub fn stdout(error: io::Error) -> Failure {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Failure::quiet()
        } else {
            Failure::local("standard output", error, "IO")
        }
    }

    /// Said of a line of the input, from 1.
    #[must_use]
    pub fn at_line(mut self, number: u64) -> Failure {
        self.message = self.message.map(|message| format!("line {number}: {message}"));
        self
    }

    /// Says what failed, if that was not said yet.
    #[must_use]
    pub fn about(mut self, what: &str) -> Failure {
        if std::mem::take(&mut self.bare) {
            self.message = self.message.map(|why| format!("{what}: {why}"));
        }
        self
    }

    /// With another exit code.
    #[must_use]
    pub fn with_exit(mut self, exit: u8) -> Failure {
        self.exit = exit;
        self
    }

    /// With another hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Failure {
        self.hint = Some(hint.into());
        self
    }

    /// The process's exit code.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        self.exit
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Failure {
        let code = error.code();
        let text = error.to_string();
        // A refusal is one sentence, and need not say first what it is about.
        let bare = matches!(&error, ClientError::Refused(refusal) if !refusal.what.contains(": "));
        Failure {
            message: Some(text),
            bare,
            hint: hint_of(code).map(str::to_owned),
            exit: code.exit_code(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(message) = &self.message {
            write!(f, "error: {}", printable(&one_line(message)))?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "\nhint: {}", printable(&one_line(hint)))?;
        }
        Ok(())
    }
}

fn one_line(text: &str) -> String {
    text.split(['\n', '\r'])
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

/// What to do about a code, where that is nearly always the same.
fn hint_of(code: ErrorCode) -> Option<&'static str> {
    match code {
        ErrorCode::UnknownTopic => Some("`tailwater topic list` shows the topics that are there"),
        ErrorCode::UnknownLink => Some("`tailwater link list` shows the links that are there"),
        ErrorCode::Unreachable => Some(
            "is a node running there? `tailwater serve` starts one; --server or TAILWATER_SERVER names it",
        ),
        ErrorCode::TopicInUse => Some("detach its links first: `tailwater link list` shows them"),
        ErrorCode::PartitionLatched => Some(
            "the node's log says why; after a failed write a restart of the node recovers the partition, \
             a damaged header or a missing segment needs a restore",
        ),
        ErrorCode::DiskFull => {
            Some("free space in the node's data directory, or shorten a topic's retention")
        }
        ErrorCode::ClockHeld => Some(
            "`tailwater clock status` shows the clocks; when the wall clock is right, `tailwater clock accept`",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use tailwater_wire::code::Refusal;

    use super::*;

    #[test]
    fn a_failure_is_one_line_and_its_hint() {
        let failure = Failure::coded("topic `a`", "no such\ntopic", ErrorCode::UnknownTopic);
        assert_eq!(
            failure.to_string(),
            "error: topic `a`: no such topic (UNKNOWN_TOPIC)\nhint: `tailwater topic list` shows the topics that are there"
        );
        assert_eq!(failure.exit_code(), 3);
        assert_eq!(Failure::usage("-p", "no").exit_code(), 2);
    }

    /// A file that is no text has bytes that a terminal would take for commands.
    #[test]
    fn what_is_quoted_cannot_command_a_terminal() {
        let failure =
            Failure::local("f\x1b[2Jg", "no column `\u{7}\u{9b}\u{202e}é`", "FEED").hint("\x1b]0;x\x07");
        assert_eq!(
            failure.to_string(),
            "error: f\\u{1b}[2Jg: no column `\\u{7}\\u{9b}\\u{202e}é` (FEED)\nhint: \\u{1b}]0;x\\u{7}"
        );
    }

    #[test]
    fn a_latched_partition_is_a_failure_with_a_way_out() {
        let refusal = Refusal::new(ErrorCode::PartitionLatched, "partition 1 of `a`: damaged");
        let failure = Failure::from(ClientError::Refused(refusal));
        let text = failure.to_string();
        assert_eq!(failure.exit_code(), 1);
        assert!(text.starts_with("error: partition 1 of `a`: damaged (PARTITION_LATCHED)\nhint: "));
        assert!(
            ["log", "restart", "restore"]
                .iter()
                .all(|word| text.contains(word)),
            "{text}"
        );
    }

    #[test]
    fn a_bare_refusal_is_told_what_it_is_about() {
        let refused = |what: &str| Failure::from(ClientError::Refused(Refusal::new(ErrorCode::Busy, what)));
        assert_eq!(
            refused("no room").about("produce").to_string(),
            "error: produce: no room (BUSY)"
        );
        assert_eq!(
            refused("topic a: no room").about("produce").to_string(),
            "error: topic a: no room (BUSY)"
        );
    }

    #[test]
    fn a_reader_that_went_away_is_no_failure() {
        let gone = Failure::stdout(io::ErrorKind::BrokenPipe.into());
        assert_eq!((gone.exit_code(), gone.to_string()), (0, String::new()));
        let full = Failure::stdout(io::ErrorKind::StorageFull.into());
        assert_eq!(full.exit_code(), 1);
    }
}
