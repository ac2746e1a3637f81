//! Tailwater's one binary.
fn main() {}
