//! How fast messages arrive in a queue behind a system that confirms them earlier.

use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::ClientError;
use crate::mailbox::{Mailbox, TIMEOUT};

/// The interval between checks of the queue's length.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// The messages that have arrived in an empty queue.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Arrivals {
    /// Number of messages that have arrived.
    pub(crate) count: u64,
    /// Messages per second, from the first check that found any to the last one at which the number had grown; `None` if
    /// no two checks found different numbers.
    pub(crate) rate: Option<f64>,
}

/// Watches an empty queue while `publish` runs, which returns how many messages are to arrive, and afterwards until all have
/// arrived or none has for a while.
///
/// # Errors
/// The error of `publish`, or else of the connection to the queue.
pub(crate) fn watched<T, E: From<ClientError>>(
    mailbox: &mut Mailbox,
    publish: impl FnOnce() -> Result<(T, u64), E>,
) -> Result<(T, u64, Arrivals), E> {
    thread::scope(|scope| {
        let (sent, expected) = sync_channel(1);
        let watching = scope.spawn(move || watch(mailbox, &expected));
        let published = publish();
        if let Ok((_, count)) = &published {
            // The receiver is gone if the watching thread has failed.
            let _ = sent.send(*count);
        } else {
            drop(sent);
        }
        let arrivals = watching.join().map_err(|_| ClientError::Panicked("watch"))?;
        let (outcome, count) = published?;
        Ok((outcome, count, arrivals?))
    })
}

fn watch(mailbox: &mut Mailbox, expected: &Receiver<u64>) -> Result<Arrivals, ClientError> {
    let (mut first, mut last, mut wanted) = (None, (Instant::now(), 0), None);
    let mut waits_since = last.0;
    loop {
        match expected.recv_timeout(CHECK_INTERVAL) {
            Ok(count) => {
                wanted = Some(count);
                waits_since = Instant::now();
            }
            Err(RecvTimeoutError::Timeout) => {}
            // Publishing has failed, or the number was received and its sender is gone.
            Err(RecvTimeoutError::Disconnected) if wanted.is_none() => break,
            Err(RecvTimeoutError::Disconnected) => thread::sleep(CHECK_INTERVAL),
        }
        let count = mailbox.count()?;
        if count != last.1 {
            last = (Instant::now(), count);
            waits_since = last.0;
            first.get_or_insert(last);
        }
        if wanted.is_some_and(|wanted| count >= wanted || waits_since.elapsed() > TIMEOUT) {
            break;
        }
    }
    let rate = first.filter(|first| first.1 < last.1).map(|first: (Instant, u64)| {
        (last.1 - first.1) as f64 / (last.0 - first.0).as_secs_f64().max(f64::MIN_POSITIVE)
    });
    Ok(Arrivals { count: last.1, rate })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::fake_broker::{FakeBroker, ScriptedFate};
    use crate::uri::Uri;

    #[test]
    fn missing_messages_are_waited_for_briefly_and_failures_are_returned() {
        // This broker never reports a message in its queue.
        let broker = FakeBroker::start(|_| ScriptedFate::Dropped);
        let mut mailbox = Mailbox::open(&Uri::parse(&broker.uri()).unwrap()).unwrap();
        let published = watched(&mut mailbox, || Ok::<_, ClientError>(("done", 3))).unwrap();
        assert_eq!(published, ("done", 3, Arrivals { count: 0, rate: None }));
        let nothing = watched(&mut mailbox, || Ok::<_, ClientError>(("done", 0))).unwrap();
        assert_eq!(nothing.1, 0);
        let failed = watched::<(), _>(&mut mailbox, || Err(ClientError::TimedOut("a step")));
        assert!(matches!(failed, Err(ClientError::TimedOut("a step"))));
    }
}
