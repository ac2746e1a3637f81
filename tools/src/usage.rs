//! What the command line's parser refuses, in the words of every other error: one line with a code, and a hint.

use clap::error::ErrorKind;

use crate::error::{Failure, exit};

/// Help and version as they are, anything else as a failure with exit code 2.
#[must_use]
pub fn failure(error: &clap::Error) -> Failure {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Failure::shown(error, exit::OK),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => Failure::shown(error, exit::USAGE),
        _ => {
            let (what, hint) = parts(&error.to_string());
            Failure::told(what, hint, exit::USAGE)
        }
    }
}

/// The parser's text in two: what is wrong, with its code, and what helps.
fn parts(text: &str) -> (String, String) {
    let mut paragraphs = text.split("\n\n").map(one_line).filter(|text| !text.is_empty());
    let first = paragraphs.next().unwrap_or_default();
    let what = first.strip_prefix("error: ").unwrap_or(&first).to_owned();
    let help = paragraphs.map(|text| {
        let text = text.strip_prefix("tip: ").unwrap_or(&text).to_owned();
        match text.strip_prefix("For more information, try ") {
            Some(flag) => format!("{} says more", flag.trim_end_matches('.').replace('\'', "`")),
            None => text,
        }
    });
    let help: Vec<String> = help.collect();
    (with_code(what), help.join("; "))
}

/// Many refusals of a value name their own code.
fn with_code(what: String) -> String {
    let own = what.rsplit_once(" (").and_then(|(_, end)| end.strip_suffix(')'));
    let is_code = |text: &str| {
        text.contains(|c: char| c.is_ascii_uppercase())
            && text.chars().all(|c| c.is_ascii_uppercase() || c == '_')
    };
    if own.is_some_and(is_code) {
        what
    } else {
        format!("{what} (USAGE)")
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    fn check(line: &str, error: &str, hint: &str) {
        let refused = Cli::try_parse_from(line.split(' ')).expect_err(line);
        let failure = failure(&refused);
        assert_eq!(failure.exit_code(), 2, "{line}");
        let text = failure.to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{line}: {text}");
        assert_eq!(lines[0], format!("error: {error}"), "{line}");
        assert!(
            lines[1].starts_with("hint: ") && lines[1].contains(hint),
            "{line}: {text}"
        );
    }

    #[test]
    fn refusals_are_one_line_with_a_code_and_a_hint() {
        check(
            "tailwater topik list",
            "unrecognized subcommand 'topik' (USAGE)",
            "a similar subcommand exists: 'topic'",
        );
        check(
            "tailwater topic create a..b",
            "invalid value 'a..b' for '<NAME>': a name must not contain `..` (INVALID_NAME)",
            "`--help` says more",
        );
        check(
            "tailwater produce",
            "the following required arguments were not provided: <TOPIC> (USAGE)",
            "Usage: tailwater produce <TOPIC>",
        );
        check(
            "tailwater consume t --partition x",
            "invalid value 'x' for '--partition <N>': partitions are numbered 0 to 1023 (USAGE)",
            "`--help`",
        );
    }

    #[test]
    fn help_is_no_failure() {
        for (line, code) in [
            ("tailwater --help", 0),
            ("tailwater --version", 0),
            ("tailwater topic", 2),
        ] {
            let shown = Cli::try_parse_from(line.split(' ')).expect_err(line);
            let failure = failure(&shown);
            assert_eq!(
                (failure.exit_code(), failure.to_string()),
                (code, String::new()),
                "{line}"
            );
        }
    }
}
