//! Frames and bytes per second of the codec: `cargo bench -p amqp`.
//!
//! Reading borrows the bodies and does not touch them, so its bytes per second only show that the cost does not grow
//! with the size; the useful figure there is messages per second.

use std::hint::black_box;

use amqp::content::{Assembled, Assembler, Whole, write_content};
use amqp::frame::write_method;
use amqp::method::basic;
use amqp::{ContentHeader, FieldTable, FieldValue, Frame, FrameKind, Method, Properties, RawTable};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

const FRAME_MAX: u32 = 131_072;
const MAX_SIZE: u64 = 16 * 1024 * 1024;
/// Bytes of body: a small event, a common one, and half a frame.
const BODY_SIZES: [usize; 3] = [16, 1024, 64 * 1024];
/// Bytes in one receive buffer.
const BUFFER: usize = 256 * 1024;

const PUBLISH: basic::Publish<'static> = basic::Publish {
    reserved_1: 0,
    exchange: "events",
    routing_key: "orders.created",
    mandatory: false,
    immediate: false,
};

fn properties() -> Vec<u8> {
    let mut bytes = Vec::new();
    Properties::default().with_content_type("application/json").with_delivery_mode(2).encode(&mut bytes);
    bytes
}

/// A receive buffer of published messages, and their number.
fn published(body_size: usize) -> (Vec<u8>, usize) {
    let (properties, body) = (properties(), vec![7; body_size]);
    let mut out = Vec::new();
    let mut count = 0;
    while out.len() < BUFFER {
        write_content(&mut out, 1, PUBLISH, &properties, &body, FRAME_MAX);
        count += 1;
    }
    (out, count)
}

fn messages(c: &mut Criterion) {
    for (name, per_message) in [("messages", true), ("bytes", false)] {
        let mut group = c.benchmark_group(name);
        for size in BODY_SIZES {
            let (buffer, count) = published(size);
            group.throughput(match per_message {
                true => Throughput::Elements(count as u64),
                false => Throughput::Bytes(buffer.len() as u64),
            });
            group.bench_with_input(BenchmarkId::new("read_whole", size), &buffer, |b, buffer| {
                b.iter(|| read_whole(black_box(buffer)));
            });
            group.bench_with_input(BenchmarkId::new("assemble", size), &buffer, |b, buffer| {
                b.iter(|| assemble(black_box(buffer)));
            });
            let (properties, body) = (properties(), vec![7; size]);
            let mut out = Vec::new();
            group.bench_function(BenchmarkId::new("write", size), |b| {
                b.iter(|| {
                    out.clear();
                    for _ in 0..count {
                        write_content(&mut out, 1, PUBLISH, &properties, black_box(&body), FRAME_MAX);
                    }
                    out.len()
                });
            });
        }
        group.finish();
    }
}

fn read_whole(mut input: &[u8]) -> usize {
    let mut bytes = 0;
    while let Some(frame) = Frame::parse(input, FRAME_MAX).unwrap() {
        black_box(Method::decode(frame.payload).unwrap());
        input = &input[frame.wire_len()..];
        let whole = Whole::peek(input, frame.channel, FRAME_MAX, MAX_SIZE).unwrap().unwrap();
        input = &input[whole.wire_len..];
        bytes += whole.body.len();
    }
    bytes
}

fn assemble(mut input: &[u8]) -> usize {
    let mut assembler = Assembler::new();
    let mut bytes = 0;
    while let Some(frame) = Frame::parse(input, FRAME_MAX).unwrap() {
        input = &input[frame.wire_len()..];
        let progress = match frame.kind {
            FrameKind::Header => assembler.header(ContentHeader::decode(frame.payload).unwrap(), MAX_SIZE),
            FrameKind::Body => assembler.body(frame.payload),
            _ => {
                let method = Method::decode(frame.payload).unwrap();
                assembler.expect((), method.ids());
                Ok(Assembled::More)
            }
        };
        if let Assembled::Complete(content) = progress.unwrap() {
            bytes += content.body.len();
        }
    }
    bytes
}

fn frames(c: &mut Criterion) {
    let (buffer, count) = published(16);
    let mut group = c.benchmark_group("frames");
    group.throughput(Throughput::Elements(3 * count as u64));
    group.bench_function("parse", |b| {
        b.iter(|| {
            let mut input = black_box(&buffer[..]);
            while let Some(frame) = Frame::parse(input, FRAME_MAX).unwrap() {
                input = &input[frame.wire_len()..];
            }
        });
    });
    group.throughput(Throughput::Elements(1000));
    let mut out = Vec::new();
    group.bench_function("write_ack", |b| {
        b.iter(|| {
            out.clear();
            for delivery_tag in 0..1000 {
                write_method(&mut out, 1, basic::Ack { delivery_tag, multiple: false });
            }
            out.len()
        });
    });
    group.finish();
}

fn tables(c: &mut Criterion) {
    let table: FieldTable = (0..10).map(|n| (format!("x-header-{n}"), FieldValue::text("value"))).collect();
    let bytes = table.encode();
    let mut group = c.benchmark_group("tables");
    group.throughput(Throughput::Bytes(bytes.len() as u64));
    group.bench_function("check", |b| b.iter(|| RawTable::check(black_box(&bytes)).unwrap()));
    group.bench_function("decode", |b| b.iter(|| RawTable::check(black_box(&bytes)).unwrap().decode()));
    group.bench_function("encode", |b| b.iter(|| black_box(&table).encode()));
    group.finish();
}

criterion_group!(benches, messages, frames, tables);
criterion_main!(benches);
