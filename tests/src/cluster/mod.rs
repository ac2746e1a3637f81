//! Real nodes under test: the release binary as users run it, on a real disk, with everything that the end-to-end
//! tests do to it and ask of it.
//!
//! A test that cannot run here fails; nothing is skipped. Whatever a test starts or mounts ends with it, also when it
//! fails.

pub mod place;
pub mod setup;
pub mod node;
pub mod cli;
pub mod http;
pub mod raw;
pub mod load;
pub mod reading;
pub mod oracle;
pub mod witness;
pub mod rounds;
pub mod mutual;
pub mod storm;
pub mod mount;
pub mod block_device;
pub mod by_hand;
