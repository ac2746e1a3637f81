//! `inspect segment|cursor|batch`.

use crate::cli;
use crate::error::Failure;
use crate::inspect::{batch, cursor, segment};
use crate::output::{Format, Out};

/// Runs an inspection.
///
/// # Errors
/// When a file cannot be read, or exit 5 when it is damaged.
pub fn run(out: &mut Out, output: Option<Format>, command: &cli::Inspect) -> Result<(), Failure> {
    let format = Format::for_document(output);
    match command {
        cli::Inspect::Segment { file } => segment::run(out, format, file),
        cli::Inspect::Cursor { file } => cursor::run(out, format, file),
        cli::Inspect::Batch { file } => batch::run(out, format, file),
    }
}
