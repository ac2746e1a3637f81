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

/// Seen once: "unexpected argument '-1' found", with the advice to write `-- -1`.
#[test]
fn a_value_below_zero_is_refused_by_the_option_it_was_given_to() {
    for (line, says) in [
        (
            "topic create a --partitions -1",
            "a topic has 1 to 1024 partitions",
        ),
        ("topic create a --retention -1d", "--retention <T>"),
        ("topic create a --retention-bytes -1GiB", "--retention-bytes <B>"),
        (
            "topic alter a --partitions -1",
            "a topic has 1 to 1024 partitions",
        ),
        ("topic alter a --retention -1d", "and not `off`"),
        ("topic alter a --retention-bytes -5", "and not `off`"),
        ("partition reset-clock a -p -1", "numbered 0 to 1023"),
        ("link attach a b --delay -2s", "--delay <T>"),
        ("link attach a b --linger -2ms", "--linger <T>"),
        ("link attach a b --from -15m", "a place is tail"),
        ("produce t --rate -5", "a rate is a number"),
        ("produce t -p -1", "numbered 0 to 1023"),
        ("produce t --batch -1", "-1 is not in 1..=65536"),
        ("consume t -n -5", "a count is a whole number"),
        ("consume t --partition -1", "numbered 0 to 1023"),
        ("consume t --from -1", "a place is tail"),
        ("replay f t --speed -1", "a speed is a finite number"),
        ("replay f t --speed -inf", "a speed is a finite number"),
        ("demo --speed -1", "a speed is a finite number"),
        ("demo --nodes -1", "-1 is not in 1..=1"),
        ("serve --shards -1", "-1 is not in 1..=1024"),
    ] {
        let error = parse(&format!("tailwater {line}")).expect_err(line);
        let text = error.to_string();
        assert!(
            text.contains("invalid value '-") && text.contains(says),
            "{line}: {text}"
        );
        assert!(!text.contains("'-- "), "{line}: {text}");
    }
}

/// What a person has to know of a command before it is used, and cannot see from what it prints.
#[test]
fn long_helps_say_what_surprises() {
    for (command, words) in [
        (
            &["link", "list"][..],
            &[
                "since the link's cursors started",
                "`link verify`",
                "control batches",
            ][..],
        ),
        (
            &["topic", "alter"],
            &["goes on with the partitions it began with"],
        ),
        (&["topic", "create"], &["about 1.1 GB", "upper bound"]),
        (&["link", "detach"], &["more than 2 s"]),
        (&["consume"], &["\\n, \\t, \\\\."]),
        (&["produce"], &["SIGTERM (exit 143)"]),
    ] {
        let help = parse(&format!("tailwater {} --help", command.join(" "))).expect_err("help");
        let help = help.to_string();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        for word in words {
            assert!(help.contains(word), "{command:?} does not say {word:?}: {help}");
        }
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
