//! The change of a broker to a pool in front of the broker that its messages have moved to.

use std::sync::Arc;
use std::time::{Duration, Instant};

use server::{Migration, MovedQueueState};

use super::record::{MoveRecord, MovedTo};
use super::{Migrator, MovePhase, random_id, shown};
use crate::signals::DrainRequest;
use crate::takeover::{UpgradeError, Upgrades};

/// Interval of progress checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// How long the process waits for the operator's command to copy the last definitions; clients wait meanwhile.
const DEFINITIONS_TIMEOUT: Duration = Duration::from_secs(30);

/// How long no message may move before the change is abandoned; clients wait meanwhile.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum time that clients wait for the last definitions, however often the state is requested.
const DEFINITIONS_MAX: Duration = Duration::from_mins(5);

/// Time for HTTP changes in progress to complete.
const CHANGES_TIMEOUT: Duration = Duration::from_secs(30);

/// How long the other broker may take to count its messages.
const COUNT_TIMEOUT: Duration = Duration::from_secs(20);

/// How long messages in flight may take at the end of the move.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a successor may take.
const SUCCESSOR_TIMEOUT: Duration = Duration::from_secs(120);

/// Attempts to start one, for as long as some 15 seconds.
const ATTEMPTS: usize = 5;

/// Pause before the second of them; each further one is twice as long.
const MIN_PAUSE: Duration = Duration::from_secs(1);

/// Why a broker stays one.
#[derive(Debug, thiserror::Error)]
enum CutOverError {
    #[error("final copy of definitions timed out")]
    NoDefinitions,
    #[error("queue '{queue}' of virtual host '{vhost}' cannot be moved: {reason}")]
    Stuck { vhost: String, queue: String, reason: String },
    #[error("migration stalled with {0} messages left")]
    TooSlow(u64),
    #[error("pending HTTP changes timed out")]
    Changing,
    #[error("{0} messages arrived after the final move")]
    Late(u64),
    #[error("other broker not responding")]
    NoAnswer,
    #[error("interrupted by a signal or takeover")]
    Interrupted,
    #[error("the record of the migration: {0}")]
    Record(#[from] std::io::Error),
}

/// No pool, and no broker, has taken over: the next start of this process is to be one.
#[derive(Debug, thiserror::Error)]
#[error("no successor took over after the migration: exiting; the next start follows the migration record")]
pub(crate) struct TakeoverError;

impl Migrator {
    /// Closes all clients, moves what they had, and hands the listening sockets to a successor: a pool, or, if something is in
    /// the way, the broker that this is. Clients that connect meanwhile wait for it. A signal ends this without a successor.
    ///
    /// # Errors
    ///
    /// There is no successor.
    pub(crate) async fn run_cut_over(
        &self,
        upgrades: &Arc<Upgrades>,
        drain: &mut DrainRequest,
        drain_timeout: Duration,
    ) -> Result<(), TakeoverError> {
        let left = self.server.drain(Duration::ZERO, drain_timeout).await;
        if left > 0 {
            tracing::warn!(
                connections = left,
                "drain_timeout exceeded: messages of these clients may not move"
            );
        }
        self.server.release_mqtt_deliveries();
        let Some(migration) = self.state.lock().migration.clone() else { return Ok(()) };
        let moved = tokio::select! {
            moved = self.move_rest(&migration) => moved,
            () = drain.cut_over_done() => Err(CutOverError::Interrupted),
        };
        match moved {
            Ok(()) => tracing::info!("migration complete: switching to pool mode"),
            Err(error) => {
                tracing::error!(%error, "migration incomplete: staying a broker with the remaining messages");
                if tokio::time::timeout(STOP_TIMEOUT, migration.stop()).await.is_err() {
                    tracing::warn!("other broker not responding: in-flight messages may be duplicated");
                }
                self.set_phase(MovePhase::Failed(error.to_string()));
            }
        }
        self.offer.resume();
        hand_over(upgrades, drain).await
    }

    async fn move_rest(&self, migration: &Arc<Migration>) -> Result<(), CutOverError> {
        self.end_changes().await?;
        self.set_phase(MovePhase::LastDefinitions);
        self.wait_for_definitions().await?;
        migration.retry();
        wait_for_rest(migration).await?;
        // Counts are for people: a move is complete without them.
        let counted = tokio::time::timeout(COUNT_TIMEOUT, migration.count_target_messages()).await;
        if !matches!(counted, Ok(Ok(()))) {
            tracing::warn!("cannot count messages on the other broker");
        }
        tokio::time::timeout(STOP_TIMEOUT, migration.stop()).await.map_err(|_| CutOverError::NoAnswer)?;
        // Nothing moves after this.
        let left = migration.messages_left();
        if left > 0 {
            return Err(CutOverError::Late(left));
        }
        let queues = shown(&migration.queues());
        let Some(file) = &self.file else { return Ok(()) };
        let broker_id = file.read()?.map_or_else(random_id, |record| record.broker_id);
        let upstream = self.state.lock().addresses.clone();
        file.write(&MoveRecord { broker_id, moved: Some(MovedTo { upstream, queues }) })?;
        self.set_phase(MovePhase::HandingOver);
        Ok(())
    }

    /// Refuses further changes over HTTP, and waits for those under way: what they make would stay here.
    async fn end_changes(&self) -> Result<(), CutOverError> {
        let Some(permits) = self.changes.lock().take() else { return Ok(()) };
        let deadline = Instant::now() + CHANGES_TIMEOUT;
        while Arc::strong_count(&permits) > 1 {
            if Instant::now() > deadline {
                return Err(CutOverError::Changing);
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
        Ok(())
    }

    async fn wait_for_definitions(&self) -> Result<(), CutOverError> {
        let begun = Instant::now();
        while self.state.lock().phase == MovePhase::LastDefinitions {
            // Many definitions take long, and their tool asks again and again meanwhile; so may others, forever.
            let asked = self.state.lock().asked_at.unwrap_or(begun).max(begun);
            if asked.elapsed() > DEFINITIONS_TIMEOUT || begun.elapsed() > DEFINITIONS_MAX {
                return Err(CutOverError::NoDefinitions);
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
        Ok(())
    }

    fn set_phase(&self, phase: MovePhase) {
        self.state.lock().phase = phase;
    }
}

/// Waits until nothing is left to move.
async fn wait_for_rest(migration: &Migration) -> Result<(), CutOverError> {
    let (mut moved, mut since) = (0, Instant::now());
    // Delivered messages count: those that move are among them.
    while migration.messages_left() > 0 || !migration.is_done() {
        tokio::time::sleep(CHECK_INTERVAL).await;
        let queues = migration.queues();
        let now_moved: u64 = queues.iter().map(|queue| queue.moved).sum();
        if now_moved != moved {
            (moved, since) = (now_moved, Instant::now());
        }
        let refused = queues.iter().find(|queue| queue.state == MovedQueueState::Refused && queue.ready > 0);
        if let Some(queue) = refused {
            return Err(CutOverError::Stuck {
                vhost: queue.vhost.to_string(),
                queue: queue.name.to_string(),
                reason: queue.trouble.clone().unwrap_or_default(),
            });
        }
        if since.elapsed() > DRAIN_TIMEOUT {
            return Err(CutOverError::TooSlow(migration.messages_left()));
        }
    }
    Ok(())
}

/// Starts a successor, and waits until it has taken over, or a signal has come. If there is none, the end of this process makes
/// room for its next start.
async fn hand_over(upgrades: &Arc<Upgrades>, drain: &mut DrainRequest) -> Result<(), TakeoverError> {
    let mut pause = Duration::ZERO;
    for _ in 0..ATTEMPTS {
        // A fault that passes, such as no memory, has time to.
        let _ = tokio::time::timeout(pause, drain.cut_over_done()).await;
        if drain.is_cut_over_done() {
            return Ok(());
        }
        pause = (2 * pause).max(MIN_PAUSE);
        match upgrades.start() {
            // One that an operator has started waits already.
            Ok(_) | Err(UpgradeError::UnderWay(_)) => {}
            // A signal has come, or a successor has taken over.
            Err(UpgradeError::Ending) => return Ok(()),
            Err(error @ UpgradeError::Start { .. }) => {
                tracing::error!(%error, "cannot start successor");
                continue;
            }
            Err(error) => {
                tracing::error!(%error, "no takeover possible");
                return Err(TakeoverError);
            }
        }
        let deadline = Instant::now() + SUCCESSOR_TIMEOUT;
        let has_failed = || upgrades.status()["upgrade"]["failure"].is_string();
        while !has_failed() && Instant::now() < deadline {
            if tokio::time::timeout(CHECK_INTERVAL, drain.cut_over_done()).await.is_ok() {
                return Ok(());
            }
        }
    }
    Err(TakeoverError)
}
