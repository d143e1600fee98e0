//! The change of a broker to a pool in front of the broker that its messages have moved to.

use std::sync::Arc;
use std::time::{Duration, Instant};

use server::{Migration, MovedQueueState, Server};

use super::record::{MoveRecord, MovedTo};
use super::{Migrator, MovePhase, random_id, shown};
use crate::signals::DrainRequest;
use crate::takeover::Upgrades;

/// Interval of looks at what has been done.
const LOOK: Duration = Duration::from_millis(50);

/// How long the process waits for its operator's tool with the last definitions: clients wait meanwhile.
const DEFINITIONS_TIME: Duration = Duration::from_secs(30);

/// How long no message may move before the change is given up: clients wait meanwhile.
const REST_TIME: Duration = Duration::from_secs(60);

/// How long a successor may take.
const SUCCESSOR_TIME: Duration = Duration::from_secs(120);

/// Attempts to start one.
const ATTEMPTS: usize = 3;

/// Why a broker stays one.
#[derive(Debug, thiserror::Error)]
enum CutOverError {
    #[error("nobody has copied the last definitions in time")]
    NoDefinitions,
    #[error("queue '{queue}' of virtual host '{vhost}' cannot be moved: {reason}")]
    Stuck { vhost: String, queue: String, reason: String },
    #[error("{0} messages are left, and none of them moves")]
    TooSlow(u64),
    #[error(transparent)]
    Counting(#[from] server::MoveLoginError),
    #[error("the record of the move: {0}")]
    Record(#[from] std::io::Error),
}

impl Migrator {
    /// Closes all clients, moves what they had, and hands the listening sockets to a successor: a pool, or, if something is in
    /// the way, the broker that this is. Clients that connect meanwhile wait for it.
    pub(crate) async fn run_cut_over(
        &self,
        server: &Server,
        upgrades: &Arc<Upgrades>,
        drain: &mut DrainRequest,
        drain_timeout: Duration,
    ) {
        let left = server.drain(Duration::ZERO, drain_timeout).await;
        if left > 0 {
            tracing::warn!(
                connections = left,
                "drain_timeout exceeded: messages of these clients may not move"
            );
        }
        server.release_mqtt_deliveries();
        let migration = self.state.lock().migration.clone();
        let Some(migration) = migration else { return };
        match self.move_rest(&migration).await {
            Ok(()) => tracing::info!("everything has moved: a pool takes over"),
            Err(error) => {
                tracing::error!(%error, "the move is not complete: a broker with the rest takes over");
                migration.stop().await;
                self.set_phase(MovePhase::Failed(error.to_string()));
            }
        }
        hand_over(upgrades, drain).await;
    }

    async fn move_rest(&self, migration: &Arc<Migration>) -> Result<(), CutOverError> {
        self.set_phase(MovePhase::LastDefinitions);
        self.wait_for_definitions().await?;
        migration.retry();
        let (mut moved, mut since) = (0, Instant::now());
        // Delivered messages count: those that move are among them.
        while migration.messages_left() > 0 || !migration.is_done() {
            tokio::time::sleep(LOOK).await;
            let queues = migration.queues();
            let now_moved: u64 = queues.iter().map(|queue| queue.moved).sum();
            if now_moved != moved {
                (moved, since) = (now_moved, Instant::now());
            }
            let refused =
                queues.iter().find(|queue| queue.state == MovedQueueState::Refused && queue.ready > 0);
            if let Some(queue) = refused {
                return Err(CutOverError::Stuck {
                    vhost: queue.vhost.to_string(),
                    queue: queue.name.to_string(),
                    reason: queue.trouble.clone().unwrap_or_default(),
                });
            }
            if since.elapsed() > REST_TIME {
                return Err(CutOverError::TooSlow(migration.messages_left()));
            }
        }
        while let Err(error) = migration.count_there().await {
            if since.elapsed() > REST_TIME {
                return Err(error.into());
            }
            tokio::time::sleep(LOOK).await;
        }
        let queues = shown(&migration.queues());
        migration.stop().await;
        let Some(file) = &self.file else { return Ok(()) };
        let broker_id = file.read()?.map_or_else(random_id, |record| record.broker_id);
        let upstream = self.state.lock().addresses.clone();
        file.write(&MoveRecord { broker_id, moved: Some(MovedTo { upstream, queues }) })?;
        self.set_phase(MovePhase::HandingOver);
        Ok(())
    }

    async fn wait_for_definitions(&self) -> Result<(), CutOverError> {
        let begun = Instant::now();
        while self.state.lock().phase == MovePhase::LastDefinitions {
            // Many definitions take long, and their tool asks again and again meanwhile.
            let asked = self.state.lock().asked_at.unwrap_or(begun).max(begun);
            if asked.elapsed() > DEFINITIONS_TIME {
                return Err(CutOverError::NoDefinitions);
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    fn set_phase(&self, phase: MovePhase) {
        self.state.lock().phase = phase;
    }
}

/// Starts a successor, and waits until it has taken over. If there is none, the end of this process makes room for its next
/// start.
async fn hand_over(upgrades: &Arc<Upgrades>, drain: &mut DrainRequest) {
    for _ in 0..ATTEMPTS {
        if let Err(error) = upgrades.start() {
            tracing::error!(%error, "no successor can take over: this process ends, to be started again");
            return;
        }
        let deadline = Instant::now() + SUCCESSOR_TIME;
        loop {
            if drain.is_taken_over() {
                return;
            }
            let has_failed = upgrades.status()["upgrade"]["failure"].is_string();
            if has_failed || Instant::now() > deadline {
                break;
            }
            tokio::time::sleep(LOOK).await;
        }
    }
    tracing::error!("no successor has taken over: this process ends, to be started again");
}
