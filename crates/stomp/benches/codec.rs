//! Frames and bytes per second of the codec: `cargo bench -p stomp`.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use stomp::{FrameWriter, StompDecoder, StompVersion};

/// Bytes of body: a small event, a common message, and a large one.
const SIZES: [usize; 3] = [64, 1024, 64 * 1024];
/// Bytes in one receive buffer.
const BUFFER: usize = 256 * 1024;

/// Appends a SEND as clients write it.
fn write(out: &mut Vec<u8>, body: &[u8]) {
    let mut frame = FrameWriter::new(out, StompVersion::V12, "SEND");
    frame.header("destination", "/exchange/amq.topic/sensors.kitchen.temperature");
    frame
        .header("content-type", "application/json")
        .header("persistent", "true")
        .header("receipt", "message-12345");
    frame.end(body);
}

fn codec(c: &mut Criterion) {
    for size in SIZES {
        let body = vec![b'x'; size];
        let mut input = Vec::new();
        while input.len() < BUFFER {
            write(&mut input, &body);
        }
        let mut group = c.benchmark_group("decode");
        group.throughput(Throughput::Bytes(input.len() as u64));
        group.bench_function(BenchmarkId::from_parameter(size), |b| {
            b.iter(|| {
                let mut decoder = StompDecoder::of_clients(u64::MAX);
                decoder.set_version(StompVersion::V12);
                let mut start = 0;
                while start < input.len() {
                    let step = decoder.decode(&input[start..]).expect("it is well-formed");
                    start += step.taken;
                    black_box(&step.frame);
                }
            });
        });
        group.finish();
        let mut group = c.benchmark_group("encode");
        group.throughput(Throughput::Bytes(size as u64));
        let mut out = Vec::with_capacity(BUFFER * 2);
        group.bench_function(BenchmarkId::from_parameter(size), |b| {
            b.iter(|| {
                out.clear();
                write(&mut out, black_box(&body));
            });
        });
        group.finish();
    }
}

criterion_group!(benches, codec);
criterion_main!(benches);
