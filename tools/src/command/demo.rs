//! placeholder
pub fn run(_: &crate::cli::Global, _: &crate::cli::Demo) -> Result<(), crate::error::Failure> { Ok(()) }
