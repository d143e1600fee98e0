//! Torn ends are cut off, and damage is reported, never ignored.

use super::*;
use crate::pages::{Cut, PagesError};

/// Three segments; the last one is open, and synced with a mark.
fn three_segments() -> (SimDisk, Vec<String>) {
    let disk = sim();
    let segments = create(&disk);
    append(&segments, 0..50);
    segments.sync().unwrap();
    let files = segment_files(&disk);
    assert!(files.len() >= 3);
    (disk, files)
}

fn flip(disk: &SimDisk, file: &str, at: usize) {
    disk.damage(file, |bytes| bytes[at] ^= 0x40);
}

fn refusal(disk: &SimDisk) -> String {
    small(disk).open(QUEUE, Repair::Refuse).err().expect("it must be refused").to_string()
}

#[test]
fn a_torn_end_that_was_not_synced_is_cut_off() {
    let (disk, files) = three_segments();
    let last = files.last().unwrap();
    disk.damage(last, |bytes| bytes.extend_from_slice(&[0; 77]));
    let (segments, recovered) = reopen(&disk);
    assert_eq!(positions(&segments), (0..50).collect::<Vec<_>>());
    assert_eq!(recovered.cut.len(), 1);
    assert_eq!((&recovered.cut[0].file, recovered.cut[0].bytes), (last, 77));
    assert_eq!(recovered.last, Some(49));
    append(&segments, 50..60);
    segments.sync().unwrap();
    let (segments, recovered) = reopen(&disk.crash());
    assert_eq!(positions(&segments), (0..60).collect::<Vec<_>>());
    assert!(recovered.cut.is_empty());
}

/// The example in the documentation of `recover`.
#[test]
fn the_documented_recovery_example_holds() {
    let disk = sim();
    let segments = create(&disk);
    let append = |positions: std::ops::RangeInclusive<u64>| {
        for position in positions {
            let (expires, payload) = (None, &[b'x'; 68][..]);
            let record = Record { position, expires, deliveries: 0, transient: false, weight: 68, payload };
            segments.append(&[record]).unwrap();
        }
    };
    append(10..=12);
    segments.sync().unwrap();
    append(13..=14);
    segments.flush().unwrap();
    drop(segments);
    let file = segment_files(&disk).pop().unwrap();
    disk.damage(&file, |bytes| bytes.truncate(500));
    let damaged = disk.kill();
    let (_, recovered) = reopen(&disk);
    assert_eq!(recovered.cut, [Cut { file: file.clone(), offset: 464, bytes: 36 }]);
    assert_eq!((recovered.live, recovered.first, recovered.last), (4, Some(10), Some(13)));
    flip(&damaged, &file, 140);
    assert!(
        refusal(&damaged).starts_with(&format!("{file} is damaged at offset 132")),
        "{}",
        refusal(&damaged)
    );
    let (_, recovered) = small(&damaged).open(QUEUE, Repair::Skip).unwrap();
    assert_eq!(recovered.damaged[0].lost, 11..=11);
    assert_eq!((recovered.live, recovered.last), (3, Some(13)));
}

#[test]
fn damage_in_front_of_a_sync_mark_is_refused_with_file_and_offset_and_can_be_repaired() {
    let (disk, files) = three_segments();
    let last = files.last().unwrap();
    flip(&disk, last, 40);
    assert!(refusal(&disk).starts_with(&format!("{last} is damaged at offset 32")), "{}", refusal(&disk));
    let report = small(&disk).check(QUEUE).unwrap();
    assert_eq!(report.segments.iter().map(|segment| segment.damage.len()).sum::<usize>(), 1);
    assert!(!report.is_sound());
    let (segments, recovered) = small(&disk).open(QUEUE, Repair::Skip).unwrap();
    assert_eq!(recovered.damaged.len(), 1);
    assert_eq!(recovered.live, 49);
    let left = positions(&segments);
    assert_eq!(left.len(), 49);
    let lost = (0..50).find(|position| !left.contains(position)).unwrap();
    assert!(recovered.damaged[0].lost.contains(&lost));
    let (segments, recovered) = reopen(&disk.crash());
    assert_eq!((positions(&segments), recovered.damaged.len()), (left, 0));
}

#[test]
fn a_damaged_header_is_refused_and_repaired() {
    for which in [0, 2] {
        let (disk, files) = three_segments();
        flip(&disk, &files[which], 18);
        assert!(refusal(&disk).contains("offset 0"));
        let (segments, _) = small(&disk).open(QUEUE, Repair::Skip).unwrap();
        assert_eq!(positions(&segments).len(), 50);
        assert_eq!(positions(&reopen(&disk.crash()).0).len(), 50);
    }
}

#[test]
fn a_sealed_segment_that_lost_its_end_is_refused() {
    let (disk, files) = three_segments();
    disk.damage(&files[0], |bytes| bytes.truncate(1000));
    assert!(refusal(&disk).contains(&files[0]));
    assert!(!small(&disk).check(QUEUE).unwrap().is_sound());
    let (segments, recovered) = small(&disk).open(QUEUE, Repair::Skip).unwrap();
    assert_eq!(recovered.damaged.len(), 1);
    assert!(positions(&segments).len() < 50);
    assert!(reopen(&disk.crash()).1.damaged.is_empty());
}

#[test]
fn a_read_stops_at_damage_and_goes_on_when_it_is_settled() {
    let (disk, files) = three_segments();
    let (segments, _) = reopen(&disk);
    flip(&disk, &files[1], 700);
    let mut read = Vec::new();
    let lost = loop {
        let from = read.last().map_or(0, |last| last + 1);
        match segments.read(from, 4, 10_000) {
            Ok(more) => read.extend(more.iter().map(|message| message.position)),
            Err(PagesError::Damaged(damage)) => {
                assert_eq!(damage.file, files[1]);
                break damage.lost;
            }
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(*lost.start(), read.last().unwrap() + 1);
    assert_eq!(segments.settle([lost.clone()]), 1);
    let left = positions(&segments);
    assert_eq!(left, (0..50).filter(|position| !lost.contains(position)).collect::<Vec<_>>());
}

#[test]
fn a_torn_sidecar_leaves_the_one_before() {
    let (disk, files) = three_segments();
    let segments = create(&disk.kill());
    drop(segments);
    let (segments, _) = reopen(&disk);
    segments.settle([0..=1]);
    segments.persist_settled().unwrap();
    segments.settle([2..=3]);
    segments.persist_settled().unwrap();
    disk.damage(&files[0].replace(".segment", ".settled0"), |bytes| bytes.truncate(20));
    assert_eq!(positions(&reopen(&disk.kill()).0), (2..50).collect::<Vec<_>>());
    disk.damage(&files[0].replace(".segment", ".settled1"), |bytes| bytes[40] ^= 1);
    assert_eq!(reopen(&disk).1.live, 50);
}

#[test]
fn a_missing_or_damaged_index_costs_only_a_scan() {
    let (disk, files) = three_segments();
    disk.remove(&files[0].replace(".segment", ".index")).unwrap();
    flip(&disk, &files[1].replace(".segment", ".index"), 50);
    let (segments, recovered) = reopen(&disk);
    assert_eq!(recovered.scanned, 3);
    assert_eq!(positions(&segments), (0..50).collect::<Vec<_>>());
}

#[test]
fn leftovers_are_tolerated_and_removed() {
    let (disk, files) = three_segments();
    disk.remove(&files[0]).unwrap();
    for name in ["00000000000000ff.settled1", "note.txt", "00000000000000fe.segment"] {
        disk.open(&format!("queues/7/{name}")).unwrap();
    }
    assert_eq!(small(&disk).check(QUEUE).unwrap().leftovers, 2);
    let (segments, recovered) = reopen(&disk);
    assert_eq!(recovered.live, positions(&segments).len() as u64);
    segments.persist_settled().unwrap();
    let left = disk.files();
    assert!(left.iter().all(|name| !name.contains("0000000f") && !name.contains("00000000.")), "{left:?}");
    assert!(left.contains(&"queues/7/note.txt".to_owned()));
}

#[test]
fn another_version_is_refused() {
    for version in [1, 3] {
        let (disk, files) = three_segments();
        disk.damage(&files[2], |bytes| {
            bytes[7] = version;
            let crc = crc32fast::hash(&bytes[..28]);
            bytes[28..32].copy_from_slice(&crc.to_le_bytes());
        });
        assert!(refusal(&disk).ends_with(&format!(": unsupported format version {version}")));
    }
}
