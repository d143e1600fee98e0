//! The bytes of the current file formats, which every later version has to read.

use super::*;
use crate::pages::record;
use crate::pages::segment::PageSegment;
use crate::pages::segment_files::{decode_index, decode_sidecar, encode_index, encode_sidecar};

const SALT: u64 = 0x1122_3344_5566_7788;

const SEGMENT: &str = concat!(
    "4c56534547000002070000000000000088776655443322110000000086cc2fbb040000009ab0ec970500000000000000",
    "000000000000000000000000000100006669766503000000cdf5702706000000000000000068e5cf8b01000002000000",
    "0200000073697800000000cdd2bc9b08000000000000000000000000000000000000000100000000000000adad4e4108",
    "0000000000000088776655443322110000000004000000",
);
const INDEX: &str = "4c564944580000020d3c2b7715000000070000000000000088776655443322110508030206a70181d095ffbc310101000100200306";
const SIDECAR: &str =
    "4c56534554000002d351f98c0b000000070000000000000088776655443322110108020100020001010003";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect()
}

fn messages() -> [Record<'static>; 3] {
    let (expires, deliveries, transient, weight) = (None, 0, false, 3);
    let message = Record { position: 5, expires, deliveries, transient, weight, payload: b"five" };
    [
        message,
        Record { position: 6, expires: Some(1_700_000_000_000), deliveries: 2, payload: b"six", ..message },
        Record { position: 8, transient: true, weight: 0, payload: b"", ..message },
    ]
}

/// Position 5 is settled, and 6 was delivered three times.
fn written() -> (Vec<u8>, PageSegment) {
    let mut bytes = record::segment_header(QUEUE, SALT).to_vec();
    let file = small(&sim()).files.segment("queues/7", 0, SALT);
    let mut segment = PageSegment::open(file, QUEUE, 5);
    for message in messages() {
        record::encode(&message, SALT, bytes.len() as u64, &mut bytes);
        segment.count(&message, SMALL.block);
        segment.live.push(message.position);
    }
    segment.end().unwrap().transients.push(8);
    record::encode_mark(8, SALT, bytes.len() as u64, &mut bytes);
    segment.shape.length = bytes.len() as u64;
    segment.settle(5, 5);
    segment.mark(6, 6, 3);
    (bytes, segment)
}

#[test]
fn the_bytes_of_a_segment_are_these() {
    let (bytes, segment) = written();
    assert_eq!(hex(&bytes), SEGMENT);
    assert_eq!(hex(&encode_index(QUEUE, &segment)), INDEX);
    assert_eq!(hex(&encode_sidecar(QUEUE, &segment, 1)), SIDECAR);
}

#[test]
fn a_directory_of_these_bytes_is_read() {
    let disk = sim();
    disk.create_dir("queues/7").unwrap();
    for (name, hex) in [("segment", SEGMENT), ("index", INDEX), ("settled1", SIDECAR)] {
        let file = disk.open(&format!("queues/7/0000000000000000.{name}")).unwrap();
        file.write_at(&bytes(hex), 0).unwrap();
    }
    let index = decode_index(&bytes(INDEX), QUEUE).unwrap();
    assert_eq!((index.salt, index.first, index.shape.last, index.blocks.len()), (SALT, 5, 8, 1));
    let sidecar = decode_sidecar(&bytes(SIDECAR), QUEUE, 5).unwrap();
    assert_eq!((sidecar.generation, sidecar.through, sidecar.marks), (1, 8, vec![(6, 6, 3)]));
    for indexed in [true, false] {
        let (segments, recovered) = reopen(&disk);
        assert_eq!((recovered.live, recovered.last, recovered.scanned), (1, Some(8), usize::from(!indexed)));
        let read = segments.read(0, 10, 100).unwrap();
        let six = Stored {
            position: 6,
            expires: Some(1_700_000_000_000),
            deliveries: 3,
            transient: false,
            payload: b"six".to_vec(),
        };
        assert_eq!(read, [six]);
        disk.remove("queues/7/0000000000000000.index").unwrap();
    }
}
