//! Every bound of the protocol and the formats, each checked against the ones it must agree with.

/// Bytes of a topic name.
pub const NAME_BYTES_MAX: usize = 128;
/// Partitions of a topic.
pub const PARTITIONS_MAX: u32 = 1_024;
/// Children of one parent (SPEC.md F1).
pub const CHILDREN_MAX: usize = 108;
/// The longest delay of a link: one year of 365 days, in milliseconds (G1).
pub const DELAY_MILLIS_MAX: u64 = 365 * 24 * 3_600 * 1_000;
/// What the parent of a delay child must retain beyond the delay: one hour, in milliseconds (G4).
pub const DELAY_RETENTION_MARGIN_MILLIS: u64 = 3_600 * 1_000;
/// Key, value and headers of one record together, in bytes.
pub const RECORD_BYTES_MAX: usize = 8 << 20;
/// Records of one batch.
pub const BATCH_RECORDS_MAX: usize = 65_536;
/// A whole batch, header and padding included, in bytes. A record of the greatest size fits with its columns.
pub const BATCH_BYTES_MAX: usize = RECORD_BYTES_MAX + (64 << 10);
/// What a producer aims at for one batch, in bytes; larger ones are for single large records.
pub const BATCH_BYTES_TARGET: usize = 1 << 20;
/// The typed part of a frame, in bytes.
pub const FRAME_META_BYTES_MAX: usize = 4 << 20;
/// The raw part of a frame, in bytes.
pub const FRAME_PAYLOAD_BYTES_MAX: usize = BATCH_BYTES_MAX;
/// What a fetch may ask for, in bytes.
pub const FETCH_BYTES_MAX: usize = 4 << 20;
/// The longest wait of a fetch at the tail, in milliseconds.
pub const FETCH_WAIT_MILLIS_MAX: u64 = 30_000;
/// Records of one fan-out slab (`fanout.max_batch_records`, F3).
pub const FANOUT_BATCH_RECORDS: usize = 4_096;
/// Bytes of one fan-out slab (`fanout.max_batch_bytes`, F3).
pub const FANOUT_BATCH_BYTES: usize = 4 << 20;
/// Producers that a partition remembers (D9).
pub const PRODUCERS_PER_PARTITION: usize = 10_000;
/// How long a silent producer is remembered: 7 days, in milliseconds (D9).
pub const PRODUCER_TTL_MILLIS: u64 = 7 * 24 * 3_600 * 1_000;
/// Bytes of a named producer's name.
pub const PRODUCER_NAME_BYTES_MAX: usize = 128;
/// Requests that a client may have unanswered on one connection; one more is answered `too many in flight`.
pub const REQUESTS_IN_FLIGHT_MAX: usize = 256;
/// Batches are padded to this many bytes.
pub const BATCH_ALIGN: usize = 64;

const _: () = assert!(BATCH_BYTES_TARGET <= BATCH_BYTES_MAX);
const _: () = assert!(FRAME_PAYLOAD_BYTES_MAX >= BATCH_BYTES_MAX);
const _: () = assert!(FANOUT_BATCH_RECORDS <= BATCH_RECORDS_MAX);
const _: () = assert!(BATCH_BYTES_MAX < (1 << 31), "ends of keys are 31 bits");
const _: () = assert!(FETCH_BYTES_MAX + BATCH_BYTES_MAX < u32::MAX as usize);
