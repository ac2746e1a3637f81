//! Segment files, in reading order: what they hold, how they are found sound, written and read.

pub mod format;

pub mod scan;

pub mod recovery;

pub mod appender;

pub mod index;

pub mod reader;
