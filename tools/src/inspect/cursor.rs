//! `inspect cursor`: the durable position of one cursor, as its file holds it.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tailwater_wire::ids::{Epoch, Offset};

use crate::error::{Failure, exit};
use crate::inspect::batch;
use crate::output::{self, Format, Out};

/// A cursor file with nothing but its fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct CursorFile {
    epoch: Epoch,
    next_offset: Offset,
}

/// What is printed of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Report {
    /// The topic and partition whose log the file lies beside, and the child, as its path says; none where the path
    /// is another.
    parent: Option<String>,
    partition: Option<u32>,
    child: Option<String>,
    epoch: Epoch,
    next_offset: Offset,
}

/// Prints the position.
///
/// # Errors
/// When the file cannot be read; exit 5 when it is no cursor file.
pub fn run(out: &mut Out, format: Format, file: &Path) -> Result<(), Failure> {
    let bytes = batch::read(file)?;
    let report = report(file, &bytes).map_err(|why| {
        let hint =
            "a node treats such a file as absent, and starts from the watermarks of the child's partitions";
        Failure::local(file.display(), why, "CORRUPT_CURSOR_FILE")
            .with_exit(exit::FOUND)
            .hint(hint)
    })?;
    out.one(format, &report, |report| {
        let text = |part: &Option<String>| part.clone().unwrap_or_else(|| "?".to_owned());
        output::facts(vec![
            ("parent", text(&report.parent)),
            (
                "partition",
                text(&report.partition.map(|number| number.to_string())),
            ),
            ("child", text(&report.child)),
            ("epoch", report.epoch.to_string()),
            ("next offset", report.next_offset.to_string()),
        ])
    })
}

fn report(file: &Path, bytes: &[u8]) -> Result<Report, String> {
    let cursor: CursorFile = serde_json::from_slice(bytes)
        .map_err(|_| format!("not a cursor's position: {}", what_is_wrong(bytes)))?;
    let part = |path: Option<&Path>| Some(path?.file_name()?.to_str()?.to_owned());
    let folder = file.parent();
    Ok(Report {
        parent: part(folder.and_then(Path::parent)),
        partition: part(folder).and_then(|name| name.strip_prefix('p')?.parse().ok()),
        child: part(Some(file)).and_then(|name| {
            let name = name.strip_prefix("fanout-")?.strip_suffix(".offset")?;
            Some(name.to_owned())
        }),
        epoch: cursor.epoch,
        next_offset: cursor.next_offset,
    })
}

/// In words, of bytes that are no [`CursorFile`].
fn what_is_wrong(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "the file is empty".to_owned();
    }
    let fields = match serde_json::from_slice(bytes) {
        Ok(Value::Object(fields)) => fields,
        Ok(_) => return "it is JSON, but no object with `epoch` and `next_offset`".to_owned(),
        Err(error) => {
            return format!(
                "it is not JSON (line {}, column {})",
                error.line(),
                error.column()
            );
        }
    };
    let is = |name: &str, sound: fn(&Value) -> bool, wanted: &str| match fields.get(name) {
        None => Some(format!("`{name}` is missing")),
        Some(value) if !sound(value) => Some(format!("`{name}` is not {wanted}")),
        Some(_) => None,
    };
    let is_epoch = |value: &Value| serde_json::from_value::<Epoch>(value.clone()).is_ok();
    let is_offset = |value: &Value| value.is_u64();
    is("epoch", is_epoch, "16 hexadecimal digits")
        .or_else(|| is("next_offset", is_offset, "a whole number from 0"))
        .unwrap_or_else(|| "it has more than `epoch` and `next_offset`, once each".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_position_and_its_path_are_read() {
        let file = Path::new("topics/orders/p00003/fanout-analytics.offset");
        let json = br#"{"epoch":"67953471cc57a32a","next_offset":98332}"#;
        let report = report(file, json).expect("sound");
        assert_eq!(report.parent.as_deref(), Some("orders"));
        assert_eq!(
            (report.partition, report.child.as_deref()),
            (Some(3), Some("analytics"))
        );
        assert_eq!(report.next_offset, Offset(98_332));
        assert_eq!(report.epoch.to_string(), "67953471cc57a32a");
    }

    #[test]
    fn damage_is_named() {
        for (bytes, wrong) in [
            (&b""[..], "the file is empty"),
            (&[0; 48], "it is not JSON (line 1, column 1)"),
            (b"127.0.0.1 localhost\n", "it is not JSON (line 1, column 6)"),
            (b"{\"epoch\":\"67953471cc57", "it is not JSON (line 1, column 22)"),
            (b"[1]", "it is JSON, but no object with `epoch` and `next_offset`"),
            (
                br#"{"epoch":"6795","next_offset":1}"#,
                "`epoch` is not 16 hexadecimal digits",
            ),
            (br#"{"epoch":"67953471cc57a32a"}"#, "`next_offset` is missing"),
            (
                br#"{"epoch":"67953471cc57a32a","next_offset":-1}"#,
                "`next_offset` is not a whole number from 0",
            ),
            (
                br#"{"epoch":"67953471cc57a32a","next_offset":1,"more":2}"#,
                "it has more than `epoch` and `next_offset`, once each",
            ),
            (
                br#"{"epoch":"67953471cc57a32a","next_offset":1,"next_offset":1}"#,
                "it has more than `epoch` and `next_offset`, once each",
            ),
        ] {
            let why = report(Path::new("x"), bytes).expect_err("damaged");
            assert_eq!(why, format!("not a cursor's position: {wrong}"));
        }
    }
}
