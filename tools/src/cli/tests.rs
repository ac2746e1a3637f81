//! Checks of the command line's definition.

use clap::CommandFactory;

use tailwater_wire::ids::Offset;
use tailwater_wire::limits::DELAY_MILLIS_MAX;

use super::template::Part;
use super::*;

fn parse(line: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(line.split(' '))
}

#[test]
fn the_definition_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn what_comes_later_is_not_there() {
    for line in [
        "publish c x",
        "subscribe a",
        "queue list",
        "position list",
        "cluster status",
        "node drain",
        "partition move",
        "doctor",
        "top",
        "man",
        "serve --kafka 127.0.0.1:9092",
        "consume t --group g",
        "demo --nodes 3",
    ] {
        let error = parse(&format!("tailwater {line}")).expect_err(line);
        assert_eq!(error.exit_code(), 2, "{line}");
    }
}

#[test]
fn wrong_values_are_refused_with_their_code() {
    for (line, code) in [
        ("topic create a..b", "INVALID_NAME"),
        ("topic create A", "INVALID_NAME"),
        ("topic create a --partitions 0", "INVALID_PARTITIONS"),
        ("topic create a --partitions 100000", "INVALID_PARTITIONS"),
        ("link attach a b --delay 2y", "DELAY_TOO_LONG"),
        ("link attach a b --from offset:-1", "offset"),
        ("link attach a b --from somewhere", "place"),
        ("consume t -f %q", "%q"),
        ("consume t -f x -o json", "cannot be used with"),
        ("produce t --rate 0", "rate"),
        ("produce t -p 1024", "1023"),
        ("topic list --server nowhere", "HOST:PORT"),
        ("topic alter t", "--partitions"),
        ("topic alter t --partitions 0", "INVALID_PARTITIONS"),
        ("topic alter t --retention never", "off"),
        ("replay f t --speed 0", "speed"),
        ("replay f t --time-unit weeks", "weeks"),
        ("link list a B", "INVALID_NAME"),
        ("topic list --server :1", "HOST:PORT"),
        ("topic list -o yaml", "yaml"),
    ] {
        let error = parse(&format!("tailwater {line}")).expect_err(line);
        assert_eq!(error.exit_code(), 2, "{line}");
        assert!(error.to_string().contains(code), "{line}: {error}");
    }
}

#[test]
fn formats_are_read_as_kcat_writes_them() {
    let template = Template::parse("%t[%p]@%o %k=%s%%\\t%T %h\\n").expect("valid");
    let text = |text: &str| Part::Text(text.to_owned());
    let want = [
        Part::Topic,
        text("["),
        Part::Partition,
        text("]@"),
        Part::Offset,
        text(" "),
        Part::Key,
        text("="),
        Part::Value,
        text("%\t"),
        Part::Timestamp,
        text(" "),
        Part::Headers,
        text("\n"),
    ];
    assert_eq!(template.parts, want);
    assert!(Template::parse("50%").is_err());
}

#[test]
fn places_and_quantities_are_read() {
    assert_eq!(attach_from("offset:12"), Ok(AttachFrom::Offset(Offset(12))));
    assert_eq!(attach_from("tail"), Ok(AttachFrom::Tail));
    assert!(matches!(
        attach_from("time:2026-11-30T09:30:00Z"),
        Ok(AttachFrom::Time(_))
    ));
    assert!(matches!(attach_from("time:15m"), Ok(AttachFrom::Time(_))));
    assert_eq!(delay("2s"), Ok(2_000));
    assert_eq!(delay("1us"), Ok(1));
    assert_eq!(delay("1y"), Ok(DELAY_MILLIS_MAX));
    assert_eq!(bytes("64KiB"), Ok(65_536));
}

#[test]
fn limits_can_be_set_and_taken_away() {
    let line = "tailwater topic alter t --retention 7d --retention-bytes off";
    let Command::Topic(Topic::Alter(alter)) = parse(line).expect("valid").command else {
        panic!("another command");
    };
    assert_eq!(alter.retention, Some(Limit::At(7 * 24 * 3_600_000)));
    assert_eq!(
        (alter.retention_bytes, alter.partitions),
        (Some(Limit::Off), None)
    );
}
