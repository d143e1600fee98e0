//! The end of a virtual host.

use std::sync::Arc;

use crate::queue::Queue;
use crate::vhost::VirtualHost;

impl VirtualHost {
    /// Deletes everything in a virtual host that has lost its name. What connections that are still open declare in it
    /// meanwhile goes, too, or is kept nowhere.
    pub(crate) fn tear_down(&self) {
        for _ in 0..ROUNDS {
            let queues = self.all_queues();
            let exchanges = self.doom_exchanges();
            if queues.is_empty() && exchanges.is_empty() {
                break;
            }
            for queue in queues {
                self.delete_for_good(&queue);
            }
            self.finish_exchanges(exchanges);
        }
        self.keep_no_more();
    }

    fn delete_for_good(&self, queue: &Arc<Queue>) {
        if queue.delete(false, false).is_ok() {
            self.forget_queue(queue);
        }
    }
}

/// How often what was declared meanwhile is looked for.
const ROUNDS: usize = 16;
