//! Tailwater's one binary: the node, and every command that speaks to one.
#![forbid(unsafe_code)]

//mod cli;
mod error;
mod feed;
mod inspect;
mod output;
mod verify;

fn main() {}
