//! Bytes and messages per second of the codec: `cargo bench -p websocket`.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use websocket::{DecoderLimits, FrameDecoder, MessageKind, Role, encode, mask};

/// Bytes of payload: a small event, a common message, and a large frame.
const SIZES: [usize; 3] = [64, 1024, 64 * 1024];
/// Bytes in one receive buffer.
const BUFFER: usize = 256 * 1024;
const KEY: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

/// A receive buffer of a client's messages.
fn received(size: usize, kind: MessageKind) -> Vec<u8> {
    let payload = vec![b'x'; size];
    let mut out = Vec::new();
    while out.len() < BUFFER {
        encode::message(&mut out, Some(KEY), kind, &payload);
    }
    out
}

fn decode(c: &mut Criterion) {
    for (name, kind) in [("decode_binary", MessageKind::Binary), ("decode_text", MessageKind::Text)] {
        let mut group = c.benchmark_group(name);
        for size in SIZES {
            let input = received(size, kind);
            group.throughput(Throughput::Bytes(input.len() as u64));
            let mut payload = Vec::with_capacity(BUFFER * 2);
            group.bench_function(BenchmarkId::from_parameter(size), |b| {
                b.iter(|| {
                    payload.clear();
                    let mut decoder = FrameDecoder::new(Role::Server, DecoderLimits::NONE);
                    let mut start = 0;
                    while start < input.len() {
                        start +=
                            decoder.decode(&input[start..], &mut payload).expect("it is well-formed").taken;
                    }
                    black_box(&payload);
                });
            });
        }
        group.finish();
    }
}

fn masking(c: &mut Criterion) {
    let mut group = c.benchmark_group("mask");
    for size in SIZES {
        let mut bytes = vec![7; size];
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function(BenchmarkId::from_parameter(size), |b| {
            b.iter(|| mask(black_box(KEY), &mut bytes));
        });
    }
    group.finish();
}

criterion_group!(benches, decode, masking);
criterion_main!(benches);
