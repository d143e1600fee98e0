//! The codec as a whole: the RFC's own examples, a list of cases, another implementation, and random input.

mod cases;
pub mod common;
mod cuts;
mod deflate;
mod differential;
mod fuzz_corpus;
mod golden;

/// The bodies of the fuzz targets.
#[path = "../../fuzz/src/lib.rs"]
pub mod bodies;
