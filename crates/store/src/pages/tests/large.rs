//! With the sizes used in production, on a real file system.

use super::*;
use crate::disk::RealDisk;

const COUNT: u64 = 20_000;

#[test]
fn memory_stays_small_and_a_start_reads_indexes_only() {
    let directory = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(directory.path()).unwrap());
    let pages = Pages::new(disk.clone(), 8);
    let segments = pages.queue(Durability::Durable, QUEUE);
    let payload = vec![b'x'; 1024];
    for first in (0..COUNT).step_by(100) {
        let records: Vec<_> = (first..first + 100)
            .map(|position| Record {
                position,
                expires: None,
                deliveries: 0,
                transient: false,
                weight: 1024,
                payload: &payload,
            })
            .collect();
        segments.append(&records).unwrap();
    }
    segments.sync().unwrap();
    let usage = segments.usage();
    assert_eq!((usage.live, usage.weight), (COUNT, COUNT * 1024));
    assert!(usage.memory < 64 << 10, "{usage:?}");
    let (segments, recovered) = pages.open(QUEUE, Repair::Refuse).unwrap();
    assert_eq!((recovered.live, recovered.weight, recovered.scanned), (COUNT, COUNT * 1024, 1));
    segments.settle([0..=9_999]);
    assert_eq!(segments.usage().weight, 10_000 * 1024);
    let mut next = 10_000;
    while let Some(last) = segments.read(next, 5000, 1 << 20).unwrap().last() {
        assert_eq!(last.payload, payload);
        next = last.position + 1;
    }
    assert_eq!(next, COUNT);
    assert_eq!(segments.read(15_000, 1, 0).unwrap()[0].position, 15_000);
    segments.remove().unwrap();
    assert_eq!(disk.list("queues").unwrap(), Vec::<String>::new());
}
