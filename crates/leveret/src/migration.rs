//! Moving this broker's messages to another broker, or those of another here, and the change to a pool at the end.
//!
//! `leveret ctl migrate` copies the definitions and steers the rest over HTTP: it starts the move ([`Migrator::start`]), and
//! once most of it is done asks for the change ([`Migrator::cut_over`]). For that the process drains, lets the last
//! definitions be copied, moves the rest, writes the [`record`], and starts a successor, which finds it and is a pool.

mod cut_over;
mod record;
mod state;

use std::sync::Arc;
use std::time::{Duration, Instant};

use admin::ChangePermit;
use broker::Broker;
use parking_lot::Mutex;
use proxy::Pool;
use serde_json::{Map, Value, json};
use server::{
    Clock, ExchangeRecord, Migration, MigrationConfig, MoveDirection, MoveLoginError, MovedQueue, Server,
    check_target_login,
};
use tokio::runtime::Handle;
use tokio::sync::{Mutex as AsyncMutex, oneshot};

pub(crate) use cut_over::TakeoverError;
pub(crate) use record::{RecordFile, forget_if_off, is_outdated, obey};
pub(crate) use state::{MoveError, direction_name, is_same_cluster};

use self::record::MoveRecord;
use self::state::{MovePhase, MoveState, read_addresses, read_direction};
use crate::config::{Config, UpstreamUrl};
use crate::serve;
use crate::signals::Drainer;
use crate::takeover::Offer;
use crate::tls::Tls;

/// The phase that is reported while this process ends.
const SHUTTING_DOWN: &str = "ending: this process shuts down";

/// How long messages in flight may delay a drain.
const HALT_TIMEOUT: Duration = Duration::from_secs(2);

/// The moves of this process, of which one at a time is under way.
pub(crate) struct Migrator {
    broker: Option<Arc<Broker>>,
    server: Server,
    clock: Clock,
    config: Config,
    is_upstream_set: bool,
    file: Option<RecordFile>,
    drainer: Drainer,
    offer: Offer,
    runtime: Handle,
    state: Mutex<MoveState>,
    /// Locked while a move begins or ends, so that the next one begins after that.
    turn: AsyncMutex<()>,
    /// Cloned for each change over HTTP that is under way. `None` once no more are to be made here.
    changes: Mutex<Option<ChangePermit>>,
}

/// The parts of the process that moves concern.
pub(crate) struct MigratorConfig {
    /// `None` in front of an upstream.
    pub(crate) broker: Option<Arc<Broker>>,
    pub(crate) server: Server,
    pub(crate) clock: Clock,
    pub(crate) config: Config,
    /// Whether `upstream` is set, also to `off`: the record of a move would have no effect.
    pub(crate) is_upstream_set: bool,
    pub(crate) drainer: Drainer,
    pub(crate) offer: Offer,
}

impl Migrator {
    pub(crate) fn new(config: MigratorConfig) -> Arc<Self> {
        let MigratorConfig { broker, server, clock, config, is_upstream_set, drainer, offer } = config;
        Arc::new(Self {
            broker,
            server,
            clock,
            is_upstream_set,
            file: RecordFile::of(&config).ok().flatten(),
            config,
            drainer,
            offer,
            runtime: Handle::current(),
            state: Mutex::default(),
            turn: AsyncMutex::default(),
            changes: Mutex::new(Some(ChangePermit::default())),
        })
    }

    /// Permits a change over HTTP, until the permit is dropped. `None` once everything is about to have moved.
    pub(crate) fn begin_change(&self) -> Option<ChangePermit> {
        self.changes.lock().clone()
    }

    /// Starts to move messages, with the other broker's addresses and a login there, of all virtual hosts or of those given. If
    /// the same move is under way, what was refused is tried again with the new login. Another one has to be stopped first.
    ///
    /// # Errors
    ///
    /// The request is wrong, or does not fit what is under way.
    pub(crate) fn start(self: &Arc<Self>, request: &Map<String, Value>) -> Result<Value, MoveError> {
        let broker = self.broker.as_ref().ok_or(MoveError::Pool)?;
        let direction = read_direction(member(request, "direction")?)?;
        let upstreams = read_addresses(member(request, "addresses")?)?;
        let vhosts = vhosts_of(request);
        let skipped = request.get("skip").and_then(|queues| serde_json::from_value(queues.clone()).ok());
        let (user, password) = (text(request, "user")?.to_owned(), text(request, "password")?.to_owned());
        let addresses: Vec<_> = upstreams.iter().map(ToString::to_string).collect();
        let mut state = self.state.lock();
        match &state.phase {
            MovePhase::None | MovePhase::Failed(_) => {}
            MovePhase::Moving => state.check_same(direction, &addresses)?,
            other => return Err(MoveError::NotNow(other.name())),
        }
        let pool = self.pool(&upstreams)?;
        let broker_id = self.broker_id()?;
        let exchanges = ExchangeRecord::new(self.file.as_ref().map(RecordFile::exchanges), &addresses);
        let before = state.migration.take();
        let alarms = Arc::clone(self.server.alarms());
        let config = MigrationConfig {
            direction,
            alarms,
            pool,
            user,
            password,
            vhosts,
            skipped: skipped.unwrap_or_default(),
            broker_id,
            exchanges,
        };
        state.phase = MovePhase::Starting;
        state.attempt += 1;
        let attempt = state.attempt;
        (state.direction, state.addresses) = (Some(direction), addresses);
        drop(state);
        let (broker, this) = (Arc::clone(broker), Arc::clone(self));
        self.runtime.spawn(async move {
            let _turn = this.turn.lock().await;
            if let Some(before) = before {
                before.stop().await;
            }
            this.begin(attempt, broker, config).await;
        });
        Ok(self.status())
    }

    /// Tries the login at the other broker in the virtual hosts that are given, as a start does, and changes nothing. Must be
    /// called outside the runtime, whose tasks it waits for.
    ///
    /// # Errors
    ///
    /// The request is wrong, or the messages are not here.
    pub(crate) fn check_login(&self, request: &Map<String, Value>) -> Result<Value, MoveError> {
        if self.broker.is_none() {
            return Err(MoveError::Pool);
        }
        let upstreams = read_addresses(member(request, "addresses")?)?;
        let (user, password) = (text(request, "user")?.to_owned(), text(request, "password")?.to_owned());
        let vhosts = vhosts_of(request).ok_or_else(|| MoveError::missing("vhosts"))?;
        let pool = self.pool(&upstreams)?;
        let (report, checked) = oneshot::channel();
        self.runtime.spawn(async move {
            // The request may be gone.
            let _ = report.send(check_target_login(&pool, &user, &password, &vhosts).await);
        });
        let checked = checked.blocking_recv().map_err(|_| MoveError::NotNow(SHUTTING_DOWN))?;
        Ok(json!({ "failure": checked.err().map(|error| error.to_string()) }))
    }

    /// Checks the login in every virtual host, removes what an earlier move has left, then starts.
    async fn begin(&self, attempt: u64, broker: Arc<Broker>, config: MigrationConfig) {
        let migration = Migration::new(broker, self.clock, config);
        let checked = migration.check_logins().await;
        if checked.is_ok() {
            migration.delete_left_exchanges().await;
        }
        if !self.begin_checked(attempt, &migration, checked) {
            migration.stop().await;
        }
    }

    /// Begins with a login that has been checked; returns whether it is accepted, and no other start or stop has come.
    fn begin_checked(
        &self,
        attempt: u64,
        migration: &Arc<Migration>,
        checked: Result<(), MoveLoginError>,
    ) -> bool {
        let mut state = self.state.lock();
        if state.attempt != attempt {
            return false;
        }
        if let Err(error) = checked {
            tracing::error!(%error, "migration not started");
            state.phase = MovePhase::Failed(error.to_string());
            return false;
        }
        migration.begin();
        let (address, direction) = (state.addresses.join(", "), direction_name(migration.direction()));
        tracing::info!(address, direction, "migration started");
        (state.migration, state.phase) = (Some(Arc::clone(migration)), MovePhase::Moving);
        true
    }

    /// Connections to the other broker.
    fn pool(&self, upstreams: &[UpstreamUrl]) -> Result<Arc<Pool>, MoveError> {
        let config = Config { upstream: upstreams.to_vec(), ..self.config.clone() };
        let tls = Tls::load(&config).map_err(|error| MoveError::Tls(error.to_string()))?;
        Ok(Pool::new(serve::pool_config(&config, &tls)))
    }

    fn broker_id(&self) -> Result<String, MoveError> {
        let Some(file) = &self.file else { return Ok(random_id()) };
        if let Some(record) = file.read()? {
            return Ok(record.broker_id);
        }
        let record = MoveRecord { broker_id: random_id(), moved: None };
        file.write(&record)?;
        Ok(record.broker_id)
    }

    /// Stops the move. Messages that have moved stay where they are.
    ///
    /// # Errors
    ///
    /// There is none, or its end has begun.
    pub(crate) fn stop(self: &Arc<Self>) -> Result<Value, MoveError> {
        let mut state = self.state.lock();
        match &state.phase {
            MovePhase::Moving | MovePhase::Starting | MovePhase::Failed(_) => {}
            other => return Err(MoveError::NotNow(other.name())),
        }
        state.phase = MovePhase::None;
        state.attempt += 1;
        if let Some(migration) = state.migration.take() {
            let this = Arc::clone(self);
            self.runtime.spawn(async move {
                let _turn = this.turn.lock().await;
                migration.stop().await;
            });
        }
        drop(state);
        Ok(self.status())
    }

    /// Lets messages in flight be answered before the process ends, so that they need not move again.
    pub(crate) async fn halt(&self) {
        let migration = self.state.lock().migration.take();
        if let Some(migration) = migration {
            // Past the limit they come twice.
            let _ = tokio::time::timeout(HALT_TIMEOUT, migration.stop()).await;
        }
    }

    /// Asks for the change to a pool. The request may name the move that it is about.
    ///
    /// # Errors
    ///
    /// It is not possible, or not the time for it, or another move is under way.
    pub(crate) fn cut_over(&self, request: &Map<String, Value>) -> Result<Value, MoveError> {
        if self.file.is_none() {
            return Err(MoveError::NoDirectory);
        }
        if self.is_upstream_set {
            return Err(MoveError::UpstreamSet);
        }
        if !self.offer.is_found() {
            return Err(MoveError::TakeoverError);
        }
        let mut state = self.state.lock();
        state.check_named(request)?;
        let is_out = state.migration.as_ref().is_some_and(|of| of.direction() == MoveDirection::Out);
        if state.phase != MovePhase::Moving || !is_out {
            return Err(MoveError::NotNow(state.phase.name()));
        }
        // A successor that started from now on would be a broker, with what this one has not moved.
        self.offer.pause();
        if !self.drainer.cut_over() {
            self.offer.resume();
            return Err(MoveError::NotNow(SHUTTING_DOWN));
        }
        state.phase = MovePhase::Closing;
        drop(state);
        tracing::info!("all messages moved except unacknowledged ones; closing clients");
        Ok(self.status())
    }

    /// The last definitions have been copied. The request may name the move that it is about.
    ///
    /// # Errors
    ///
    /// It is not the time for it, or another move is under way.
    pub(crate) fn finish(&self, request: &Map<String, Value>) -> Result<Value, MoveError> {
        let mut state = self.state.lock();
        state.check_named(request)?;
        if state.phase != MovePhase::LastDefinitions {
            return Err(MoveError::NotNow(state.phase.name()));
        }
        state.phase = MovePhase::MovingRest;
        drop(state);
        Ok(self.status())
    }

    /// The move, as an object. Of a pool, what was moved before it was one.
    pub(crate) fn status(&self) -> Value {
        let mut state = self.state.lock();
        state.asked_at = Some(Instant::now());
        let (phase, migration) = (state.phase.clone(), state.migration.clone());
        let (direction, addresses) = (state.direction.map(direction_name), state.addresses.clone());
        drop(state);
        let process = std::process::id();
        if self.broker.is_none() {
            let record = self.file.as_ref().and_then(|file| file.read().ok().flatten());
            return match record.and_then(|record| record.moved) {
                Some(moved) => json!({
                    "phase": "moved", "process": process, "direction": direction_name(MoveDirection::Out),
                    "addresses": moved.upstream, "queues": moved.queues,
                }),
                None => json!({ "phase": "none", "process": process, "addresses": [], "queues": [] }),
            };
        }
        let failure = match &phase {
            MovePhase::Failed(failure) => Some(failure),
            _ => None,
        };
        let queues = migration.as_ref().map(|migration| migration.queues()).unwrap_or_default();
        json!({
            "phase": phase.name(), "failure": failure, "process": process,
            "direction": direction, "addresses": addresses,
            "is_done": migration.as_ref().is_some_and(|migration| migration.is_done()),
            "can_be_pool": self.file.is_some() && !self.is_upstream_set && self.offer.is_found(),
            "upstream_is_set": self.is_upstream_set,
            "left": migration.as_ref().map(|migration| migration.ready_left()),
            "queues": shown(&queues),
        })
    }
}

fn member<'a>(request: &'a Map<String, Value>, key: &str) -> Result<&'a Value, MoveError> {
    request.get(key).ok_or_else(|| MoveError::missing(key))
}

fn text<'a>(request: &'a Map<String, Value>, key: &str) -> Result<&'a str, MoveError> {
    member(request, key)?.as_str().ok_or_else(|| MoveError::missing(key))
}

/// The virtual hosts that a request names, if it does.
fn vhosts_of(request: &Map<String, Value>) -> Option<Vec<String>> {
    request.get("vhosts").and_then(|names| serde_json::from_value(names.clone()).ok())
}

fn shown(queues: &[MovedQueue]) -> Value {
    let shown = |queue: &MovedQueue| {
        json!({
            "vhost": &*queue.vhost, "name": &*queue.name, "state": queue.state.name(), "moved": queue.moved,
            "moved_bytes": queue.moved_bytes, "maybe_twice": queue.maybe_twice, "before": queue.before,
            "there": queue.there, "messages_ready": queue.ready, "messages_unacknowledged": queue.unacked,
            "trouble": queue.trouble, "cause": queue.cause,
        })
    };
    queues.iter().map(shown).collect()
}

/// Eight hexadecimal digits.
fn random_id() -> String {
    let name = broker::generated_name("");
    let digits = name.bytes().fold(0_u64, |all, byte| all.wrapping_mul(31).wrapping_add(byte.into()));
    format!("{:08x}", digits & 0xffff_ffff)
}
