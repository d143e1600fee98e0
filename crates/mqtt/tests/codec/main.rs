//! The codec and the server's end as a whole: the specification's examples, other implementations, random
//! programs of clients, servers and failures, and random input.

pub mod common;
mod cuts;
mod differential;
mod flows;
mod fuzz_corpus;
mod golden;
mod round_trip;

/// The bodies of the fuzz targets.
#[path = "../../fuzz/src/lib.rs"]
pub mod bodies;
