//! Guarantees to the owner of segments, one test each.

use super::*;
use crate::disk::simulated::Faults;
use crate::pages::PagesError;

#[test]
fn segments_without_live_messages_are_removed_whole() {
    let disk = sim();
    let segments = create(&disk);
    append(&segments, 0..100);
    segments.sync().unwrap();
    let before = segment_files(&disk).len();
    segments.settle([0..=60]);
    assert_eq!(segment_files(&disk).len(), before);
    segments.persist_settled().unwrap();
    assert!(segment_files(&disk).len() <= before / 2);
    assert_eq!(positions(&reopen(&disk.crash()).0), (61..100).collect::<Vec<_>>());
    segments.purge();
    segments.reap().unwrap();
    assert_eq!(segment_files(&disk), Vec::<String>::new());
    append(&segments, 100..103);
    assert_eq!(positions(&segments), [100, 101, 102]);
    segments.remove().unwrap();
    assert_eq!(disk.files(), Vec::<String>::new());
}

#[test]
fn an_existing_message_is_skipped_and_one_out_of_order_is_refused() {
    let disk = sim();
    let segments = create(&disk);
    append(&segments, [3, 4, 7]);
    append(&segments, [3, 4, 7, 9]);
    assert_eq!(positions(&segments), [3, 4, 7, 9]);
    let failed = append_one(&segments, 5, false).unwrap_err();
    assert!(matches!(failed.error, PagesError::OutOfOrder { position: 5, last: 9 }));
    assert_eq!((segments.is_live(7), segments.is_live(8), segments.next_live(8)), (true, false, Some(9)));
}

#[test]
fn transient_messages_are_read_but_do_not_survive() {
    let disk = sim();
    let segments = create(&disk);
    (0..40).for_each(|position| append_one(&segments, position, position % 2 == 1).unwrap());
    assert_eq!(positions(&segments).len(), 40);
    segments.sync().unwrap();
    let (segments, _) = reopen(&disk.crash());
    assert_eq!(positions(&segments), (0..40).step_by(2).collect::<Vec<_>>());
}

#[test]
fn a_transient_queue_is_never_synced_and_wiped_at_the_start() {
    let disk = sim();
    let segments = small(&disk).queue(Durability::Transient, QUEUE);
    append(&segments, 0..100);
    segments.sync().unwrap();
    segments.settle([0..=60]);
    segments.persist_settled().unwrap();
    assert_eq!(positions(&segments), (61..100).collect::<Vec<_>>());
    assert_eq!(disk.syncs(), 0);
    assert!(disk.files().iter().all(|name| name.ends_with(".segment")));
    assert_eq!(small(&disk).queues(Durability::Transient).unwrap(), [QUEUE]);
    small(&disk).wipe_transient().unwrap();
    assert_eq!(disk.files(), Vec::<String>::new());
}

#[test]
fn a_full_disk_loses_nothing_and_continues_when_there_is_space() {
    let disk = sim();
    let segments = create(&disk);
    append(&segments, 0..10);
    segments.sync().unwrap();
    disk.set_capacity(disk.used());
    let refused = (10..).find(|position| append_one(&segments, *position, false).is_err()).unwrap();
    assert!(matches!(segments.sync(), Err(PagesError::Io { .. })));
    assert_eq!(positions(&segments), (0..refused).collect::<Vec<_>>());
    assert!(reopen(&disk.crash()).1.live >= 10);
    disk.set_capacity(1 << 30);
    append(&segments, refused..refused + 5);
    segments.sync().unwrap();
    assert_eq!(positions(&reopen(&disk.crash()).0), (0..refused + 5).collect::<Vec<_>>());
}

#[test]
fn after_a_failed_sync_everything_is_written_again_elsewhere() {
    let disk = sim();
    let segments = create(&disk);
    append(&segments, 0..4);
    segments.sync().unwrap();
    append(&segments, 4..8);
    segments.mark_delivered([5..=5], 3);
    segments.settle([4..=4]);
    let before = segment_files(&disk);
    disk.fail_sync(0);
    assert!(matches!(segments.sync(), Err(PagesError::Io { .. })));
    assert_eq!(positions(&segments), [0, 1, 2, 3, 5, 6, 7]);
    assert_eq!(positions(&reopen(&disk.crash()).0)[..4], [0, 1, 2, 3]);
    segments.sync().unwrap();
    assert!(segment_files(&disk).len() > before.len());
    let (recovered, _) = reopen(&disk.crash());
    assert_eq!(read_all(&recovered)[3..], [(3, 0), (5, 3), (6, 0), (7, 0)]);
}

#[test]
fn delivery_counts_survive_when_persisted() {
    let disk = sim();
    let segments = create(&disk);
    append(&segments, 0..5);
    segments.sync().unwrap();
    segments.mark_delivered([1..=2, 4..=100], 2);
    segments.persist_settled().unwrap();
    let expected = [(0, 0), (1, 2), (2, 2), (3, 0), (4, 2)];
    assert_eq!(read_all(&segments), expected);
    assert_eq!(read_all(&reopen(&disk.crash()).0), expected);
}

#[test]
fn a_failed_persist_is_repeated() {
    let disk = sim();
    let segments = create(&disk);
    append(&segments, 0..5);
    segments.sync().unwrap();
    segments.settle([0..=2]);
    disk.set_faults(Faults { sync: 1000, ..Faults::default() });
    assert!(segments.persist_settled().is_err());
    disk.set_faults(Faults::default());
    segments.persist_settled().unwrap();
    assert_eq!(positions(&reopen(&disk.crash()).0), [3, 4]);
}

#[test]
fn a_sync_without_changes_costs_nothing() {
    let disk = sim();
    let segments = create(&disk);
    append(&segments, 0..5);
    segments.sync().unwrap();
    segments.persist_settled().unwrap();
    let syncs = disk.syncs();
    segments.sync().unwrap();
    segments.persist_settled().unwrap();
    assert_eq!((disk.syncs(), syncs), (1, 1));
}

#[test]
fn many_queues_hold_few_files_open() {
    let disk = sim();
    let pages = small(&disk);
    let queues: Vec<_> = (0..50).map(|queue| pages.queue(Durability::Durable, queue)).collect();
    for queue in &queues {
        append(queue, 0..40);
        queue.sync().unwrap();
        assert!(queue.writer.lock().pinned.is_none());
    }
    queues.iter().for_each(|queue| assert_eq!(positions(queue).len(), 40));
    assert!(pages.files.count() <= 3);
    let mut found = pages.queues(Durability::Durable).unwrap();
    found.sort_unstable();
    assert_eq!(found, (0..50).collect::<Vec<_>>());
}

#[test]
fn an_unused_queue_touches_no_file() {
    let disk = sim();
    let segments = create(&disk);
    segments.flush().unwrap();
    segments.sync().unwrap();
    segments.persist_settled().unwrap();
    assert_eq!(segments.read(0, 10, 10).unwrap(), []);
    assert_eq!((disk.files().len(), segments.usage().segments), (0, 0));
    assert!(segments.usage().memory < 1000);
    assert_eq!(reopen(&disk).1, RecoveredPages::default());
}
