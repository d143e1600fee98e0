//! How often and how long threads wait for locks, in a build that measures it (`make lock-profile`).

use admin::{MetricKind, MetricsWriter};
use sync::profile::{LockFigures, figures};

pub(super) fn write(out: &mut MetricsWriter) {
    let locks = figures();
    let mut family = |name: &str, help: &str, value: fn(&LockFigures) -> u64| {
        let mut family = out.family(name, help, MetricKind::Counter);
        for lock in &locks {
            let rank = format!("{:?}", lock.rank);
            family.sample(&[("rank", &rank), ("contents", lock.contents)], value(lock));
        }
    };
    family("leveret_lock_acquisitions_total", "Times that a lock was taken.", |lock| lock.acquisitions);
    let help = "Times that a thread had to wait for a lock.";
    family("leveret_lock_contended_total", help, |lock| lock.contended);
    let help = "Nanoseconds that threads have waited for a lock.";
    family("leveret_lock_waited_nanoseconds_total", help, |lock| lock.waited);
    let help = "Nanoseconds for which a lock was held, from a sample.";
    family("leveret_lock_held_nanoseconds_total", help, |lock| lock.held);
}
