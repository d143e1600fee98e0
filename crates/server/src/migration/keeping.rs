//! Keeps queues with `x-expires` alive on the target. They have no consumers there yet, and publishing does not count as
//! use, but the passive declarations sent here do.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use broker::Queue;

use super::counting::{AskError, ask};
use super::{MoveContext, SurveyPause};

/// The number of passive declarations per expiry time of a queue.
const POLLS_PER_EXPIRY: u32 = 4;

/// Declares the queues passively until the migration is stopped.
pub(super) async fn keep(context: &MoveContext) {
    let mut asked: HashMap<(Arc<str>, Arc<str>), Instant> = HashMap::new();
    let mut pause = SurveyPause::default();
    while !context.is_stopped() {
        for vhost in context.vhosts() {
            let now = transport::now();
            let name: Arc<str> = vhost.name().into();
            let key = |queue: &Arc<Queue>| (Arc::clone(&name), Arc::clone(queue.name()));
            let due = pause.look(|| {
                let is_due = |queue: &Arc<Queue>| {
                    queue.arguments().expires.is_some_and(|after| {
                        let interval = Duration::from_millis(after) / POLLS_PER_EXPIRY;
                        asked.get(&key(queue)).is_none_or(|last| now - *last >= interval)
                    })
                };
                let mut due = context.queues_of(&vhost);
                due.retain(is_due);
                due
            });
            let mut rest = &due[..];
            while let Err(error) = ask(context, &vhost, rest, |_, _| {}).await {
                let (next, error) = match error {
                    AskError::Login(error) => (rest.len(), error.to_string()),
                    // A refused queue is skipped; the others must be kept all the same.
                    AskError::Queue(at, text) => (at + 1, text),
                };
                tracing::warn!(vhost = &*name, error, "queue with x-expires may expire on the other broker");
                rest = &rest[next..];
            }
            // Queues without an answer are retried at the same interval as the others.
            asked.extend(due.iter().map(|queue| (key(queue), transport::now())));
        }
        // Entries of deleted queues are removed.
        let broker = &context.broker;
        pause.look(|| {
            asked.retain(|(vhost, queue), _| {
                broker.vhost(vhost).is_some_and(|vhost| vhost.find_queue(queue).is_some())
            });
        });
        tokio::time::sleep(pause.take()).await;
    }
}
