//! The codec and the server's end as a whole: the specification's examples, other implementations, and random input.

mod fuzz_corpus;
mod golden;
mod round_trip;

/// The bodies of the fuzz targets.
#[path = "../../fuzz/src/lib.rs"]
pub mod bodies;
