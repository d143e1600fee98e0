use std::cell::Cell;

use broker::BrokerConfig;

use super::*;

#[derive(Default)]
struct Fake {
    used: Cell<Option<u64>>,
    free: Cell<Option<u64>>,
    needs_space: Cell<bool>,
    kept_free: Cell<u64>,
    paged_at: Cell<Option<(u64, Option<u64>)>>,
}

impl Sources for Fake {
    fn memory_used(&self) -> Option<u64> {
        self.used.get()
    }

    fn disk_free(&self) -> Option<u64> {
        self.free.get()
    }

    fn needs_space(&self) -> bool {
        self.needs_space.get()
    }

    fn keep_free(&self, bytes: u64) {
        self.kept_free.set(bytes);
    }

    fn page(&self, used: u64, limit: Option<u64>) {
        self.paged_at.set(Some((used, limit)));
    }
}

fn watch(memory_limit: Option<u64>, disk_limit: Option<u64>) -> Watch<Fake> {
    let levels = Arc::new(Levels::new(memory_limit, disk_limit));
    Watch { alarms: Arc::default(), levels, sources: Fake::default() }
}

#[test]
fn memory_above_its_limit_raises_the_alarm_and_a_little_less_does_not_clear_it() {
    let watch = watch(Some(1000), None);
    for (used, stands) in
        [(1000, false), (1001, true), (1000, true), (951, true), (950, false), (1000, false)]
    {
        watch.sources.used.set(Some(used));
        watch.sample();
        assert_eq!(watch.alarms.is_raised(Resource::Memory), stands, "at {used}");
        assert_eq!(watch.sources.paged_at.get(), Some((used, Some(1000))));
    }
}

#[test]
fn free_space_below_its_limit_raises_the_alarm_and_a_little_more_does_not_clear_it() {
    let watch = watch(None, Some(1000));
    for (free, stands) in [(1000, false), (999, true), (1049, true), (1050, false), (1000, false)] {
        watch.sources.free.set(Some(free));
        watch.sample();
        assert_eq!(watch.alarms.is_raised(Resource::Disk), stands, "at {free}");
    }
    assert_eq!(watch.levels.disk_free(), 1000);
}

#[test]
fn the_disk_alarm_is_raised_while_the_store_needs_space() {
    let watch = watch(None, Some(1000));
    watch.sources.free.set(Some(u64::MAX));
    for needs_space in [false, true, false] {
        watch.sources.needs_space.set(needs_space);
        let interval = watch.sample();
        assert_eq!(watch.alarms.is_raised(Resource::Disk), needs_space);
        assert_eq!(interval == INTERVAL_NEAR, needs_space);
    }
    assert_eq!(watch.sources.kept_free.get(), 1000);
}

#[test]
fn no_limit_is_never_passed() {
    let watch = watch(None, None);
    watch.sources.used.set(Some(u64::MAX));
    watch.sources.free.set(Some(0));
    watch.sample();
    assert!(!watch.alarms.is_raised(Resource::Memory) && !watch.alarms.is_raised(Resource::Disk));
}

#[test]
fn failed_measurements_do_not_change_alarms() {
    let watch = watch(Some(1000), Some(1000));
    watch.sources.used.set(Some(2000));
    watch.sources.free.set(Some(0));
    watch.sample();
    watch.sources.used.set(None);
    watch.sources.free.set(None);
    watch.sample();
    assert!(watch.alarms.is_raised(Resource::Memory) && watch.alarms.is_raised(Resource::Disk));
}

#[test]
fn a_share_of_an_unknown_total_is_one_of_the_last_known_total() {
    let levels = Levels::new(None, None);
    levels.set_memory_limit(Watermark::Share(0.5), None);
    assert_eq!(levels.memory_limit(), None);
    levels.set_memory_limit(Watermark::Share(0.5), Some(1000));
    levels.set_memory_limit(Watermark::Share(0.6), None);
    assert_eq!(levels.memory_limit(), Some(600));
    levels.set_memory_limit(Watermark::Off, None);
    assert_eq!(levels.memory_limit(), None);
}

#[test]
fn near_a_limit_it_is_looked_at_more_often() {
    let watch = watch(Some(NEAR + 1000), Some(1000));
    for (used, free, interval) in [
        (1000, u64::MAX, INTERVAL),
        (1001, u64::MAX, INTERVAL_NEAR),
        (0, NEAR, INTERVAL_NEAR),
        (0, CLOSE + 999, INTERVAL_CLOSE),
        (0, CLOSE + 1000, INTERVAL_NEAR),
        (0, 999, INTERVAL_NEAR),
        (0, NEAR + 1000, INTERVAL),
    ] {
        watch.sources.used.set(Some(used));
        watch.sources.free.set(Some(free));
        assert_eq!(watch.sample(), interval, "{used} used, {free} free");
    }
}

#[test]
fn a_limit_of_nothing_blocks_from_the_first_sample_on() {
    let alarms = Arc::new(Alarms::default());
    let directory = tempfile::tempdir().unwrap();
    let everything = ByteSize(u64::MAX);
    let path = Some(directory.path().to_owned());
    let (nothing, broker) = (Watermark::Share(0.0), Broker::new(BrokerConfig::default()));
    let sampler = Sampler::start(Arc::clone(&alarms), nothing, everything, path, broker).unwrap();
    assert!(alarms.is_raised(Resource::Memory) && alarms.is_raised(Resource::Disk));
    assert!(sampler.levels().disk_free() > 0);
}
