//! The guarantees of queue segments, on disks that keep everything and on one that does not.

mod crash;
mod damage;
mod format;
mod large;
mod model;
mod promises;
mod states;

use std::sync::Arc;

use super::files::{OpenFiles, Sizes};
use super::{Durability, Pages, QueueSegments, Record, RecoveredPages, Repair, Stored};
use crate::disk::Disk;
use crate::disk::simulated::SimDisk;

const QUEUE: u64 = 7;

/// So small that a few messages fill a segment.
const SMALL: Sizes = Sizes { segment: 2048, buffer: 300, block: 200 };

fn small(disk: &SimDisk) -> Pages {
    Pages { files: Arc::new(OpenFiles::new(Arc::new(disk.clone()), 3, SMALL)) }
}

fn sim() -> SimDisk {
    SimDisk::new(1, 1 << 30)
}

/// The payload of the message at a position.
fn payload(position: u64) -> Vec<u8> {
    let len = (position * 37 % 150) as usize;
    format!("{position}:").bytes().cycle().take(len).collect()
}

fn append(segments: &QueueSegments, positions: impl IntoIterator<Item = u64>) {
    for position in positions {
        append_one(segments, position, false).unwrap();
    }
}

fn append_one(segments: &QueueSegments, position: u64, transient: bool) -> Result<(), super::AppendError> {
    let payload = payload(position);
    let expires = position.is_multiple_of(3).then_some(position + 1000);
    let weight = weight(position);
    segments.append(&[Record { position, expires, deliveries: 0, transient, weight, payload: &payload }])
}

/// The weight of the message at a position.
fn weight(position: u64) -> u32 {
    payload(position).len() as u32 / 2
}

/// Reads all live messages in pieces, and verifies that each is as it was appended.
fn read_all(segments: &QueueSegments) -> Vec<(u64, u32)> {
    let mut read: Vec<Stored> = Vec::new();
    loop {
        let from = read.last().map_or(0, |last| last.position + 1);
        let more = segments.read(from, 7, 500).unwrap();
        assert!(more.len() <= 7);
        let bytes: usize = more.iter().map(|message| message.payload.len()).sum();
        assert!(more.len() == 1 || bytes <= 500);
        if more.is_empty() {
            break;
        }
        read.extend(more);
    }
    for message in &read {
        assert_eq!(message.payload, payload(message.position));
        assert_eq!(message.expires, (message.position % 3 == 0).then_some(message.position + 1000));
    }
    assert!(read.windows(2).all(|pair| pair[0].position < pair[1].position));
    assert_eq!(read.len() as u64, segments.live());
    let survey = segments.survey().unwrap();
    assert_eq!(survey.weight, read.iter().map(|message| u64::from(weight(message.position))).sum::<u64>());
    let ends = read.first().zip(read.last()).map(|(first, last)| (first.position, last.position));
    assert_eq!((survey.live, survey.positions), (segments.live(), ends));
    assert!(read.iter().all(|message| message.expires.is_none_or(|expires| survey.expires <= expires)));
    read.iter().map(|message| (message.position, message.deliveries)).collect()
}

fn positions(segments: &QueueSegments) -> Vec<u64> {
    read_all(segments).into_iter().map(|(position, _)| position).collect()
}

fn reopen(disk: &SimDisk) -> (QueueSegments, RecoveredPages) {
    small(disk).open(QUEUE, Repair::Refuse).unwrap()
}

fn create(disk: &SimDisk) -> QueueSegments {
    small(disk).queue(Durability::Durable, QUEUE)
}

fn segment_files(disk: &dyn Disk) -> Vec<String> {
    let mut names = disk.list("queues/7").unwrap();
    names.retain(|name| name.ends_with(".segment"));
    names.sort();
    names.into_iter().map(|name| format!("queues/7/{name}")).collect()
}
