//! The codec as a whole: against other implementations, against itself, and with random input.

pub mod common;
mod differential;
mod fuzz_corpus;
mod golden;
mod round_trip;

/// The bodies of the fuzz targets.
#[path = "../../fuzz/src/lib.rs"]
pub mod bodies;
