//! placeholder
pub fn run(_: &crate::cli::Global, _: &crate::cli::Serve) -> Result<(), crate::error::Failure> { Ok(()) }
