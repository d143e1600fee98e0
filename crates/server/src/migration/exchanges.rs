//! The exchanges through which messages leave: their record on this disk, and their deletion at the other broker.
//!
//! An exchange is recorded before it is created. The next migration between the same brokers deletes those that a crash
//! left behind, before it creates any itself. Their names contain this broker's id, so that they are never another
//! broker's, and a broker has one migration at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::future::poll_fn;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::task::{Poll, Waker};
use std::time::Instant;

use amqp::method::{channel, exchange};
use amqp::{Fault, Method, ReplyCode};
use serde::{Deserialize, Serialize};

use super::MoveContext;
use super::counting::ANSWER_TIMEOUT;
use super::origin::exchange_for;
use super::run::{CHANNEL, CHECK_INTERVAL, close};
use crate::private_file::{MODE, remove_private_file, replace_private_file, sync_dir};
use crate::upstream::client::{AmqpClient, ClientEvent, announced};
use crate::upstream::multiplexing::task::OpenError;
use crate::upstream::open_refusal::OpenRefusal;

/// Unanswered deletions on a channel.
const WINDOW: usize = 64;

/// Class and method id of exchange.delete.
const DELETE: (u16, u16) = (40, 20);

/// Exchanges of a virtual host that are recorded together, as one line.
pub(super) const AT_ONCE: usize = 1_000;

/// The record of exchanges that may be at other brokers.
#[derive(Debug)]
pub struct ExchangeRecord {
    /// `None` if nothing is stored: a crash then leaves no data from which the exchanges could be known.
    path: Option<PathBuf>,
    /// The addresses of the other broker.
    other: BTreeSet<String>,
    /// The lines that remain once all exchanges of this migration are deleted. Set before it creates its first exchange.
    rest: OnceLock<Vec<RecordedExchanges>>,
}

/// A line of the record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct RecordedExchanges {
    other: BTreeSet<String>,
    vhost: String,
    exchanges: Vec<String>,
}

impl ExchangeRecord {
    /// The record in the file, for a migration between this broker and the one at these addresses.
    pub fn new(path: Option<PathBuf>, other: &[String]) -> Self {
        Self { path, other: other.iter().cloned().collect(), rest: OnceLock::new() }
    }

    /// Incomplete lines are skipped, since their exchanges were not created.
    fn read(path: &Path) -> io::Result<Vec<RecordedExchanges>> {
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let lines = text.split(|byte| *byte == b'\n');
        Ok(lines.filter_map(|line| serde_json::from_slice(line).ok()).collect())
    }

    /// Adds a line, which is on disk on return.
    fn append(path: &Path, line: &RecordedExchanges) -> io::Result<()> {
        let mut file = OpenOptions::new().append(true).create(true).mode(MODE).open(path)?;
        // Ends an incomplete line before it.
        let mut bytes = vec![b'\n'];
        serde_json::to_writer(&mut bytes, line)?;
        bytes.push(b'\n');
        let is_new = file.metadata()?.len() == 0;
        file.write_all(&bytes)?;
        file.sync_data()?;
        if is_new { sync_dir(path) } else { Ok(()) }
    }

    /// Replaces all lines.
    fn write(path: &Path, lines: &[RecordedExchanges]) -> io::Result<()> {
        if lines.is_empty() {
            return remove_private_file(path);
        }
        let mut bytes = Vec::new();
        for line in lines {
            serde_json::to_writer(&mut bytes, line)?;
            bytes.push(b'\n');
        }
        replace_private_file(path, &bytes)
    }

    /// Runs an operation on the file, if there is one, in its own thread. Returns `None` after a failure, which is
    /// logged: the only consequence is an exchange left at the other broker.
    async fn with_file<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
    ) -> Option<T> {
        let path = self.path.clone()?;
        let shown = path.display().to_string();
        let done = tokio::task::spawn_blocking(move || work(&path)).await;
        let done = done.unwrap_or_else(|error| Err(io::Error::other(error)));
        done.inspect_err(|error| {
            tracing::warn!(file = shown, %error, "migration exchanges may be left on the other broker after a crash");
        })
        .ok()
    }

    /// Records exchanges that are about to be created.
    pub(super) async fn record_new(&self, vhost: &str, exchanges: Vec<String>) {
        if exchanges.is_empty() {
            return;
        }
        let line = RecordedExchanges { other: self.other.clone(), vhost: vhost.to_owned(), exchanges };
        self.with_file(move |path| Self::append(path, &line)).await;
    }

    /// Forgets the exchanges of this migration, all of which are deleted.
    async fn all_deleted(&self) {
        if let Some(rest) = self.rest.get().cloned() {
            self.with_file(move |path| Self::write(path, &rest)).await;
        }
    }
}

/// Deletes the exchanges that earlier migrations have left at the other broker. Must precede the first exchange of this
/// one.
pub(super) async fn delete_left(context: &MoveContext) {
    let record = &context.exchanges;
    let Some(lines) = record.with_file(ExchangeRecord::read).await else { return };
    let (left, mut rest): (Vec<_>, Vec<_>) = lines.into_iter().partition(|line| line.other == record.other);
    let mut by_vhost: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in left {
        by_vhost.entry(line.vhost).or_default().extend(line.exchanges);
    }
    for (vhost, names) in by_vhost {
        let names: Vec<_> = names.into_iter().collect();
        let deleted: BTreeSet<_> = delete_in(context, &vhost, &names).await.into_iter().collect();
        let exchanges: Vec<_> =
            names.iter().filter(|name| !deleted.contains(name.as_str())).cloned().collect();
        tracing::info!(
            vhost,
            deleted = deleted.len(),
            left = exchanges.len(),
            "deleted exchanges of an earlier migration"
        );
        if !exchanges.is_empty() {
            rest.push(RecordedExchanges { other: record.other.clone(), vhost, exchanges });
        }
    }
    let remaining = rest.clone();
    record.with_file(move |path| ExchangeRecord::write(path, &remaining)).await;
    // Set here only.
    let _ = record.rest.set(rest);
}

/// Deletes the exchanges left by runs of this migration that did not end in order.
pub(super) async fn delete_own(context: &MoveContext) {
    let mut by_vhost: BTreeMap<Arc<str>, Vec<Arc<str>>> = BTreeMap::new();
    for (vhost, queue) in context.progress.left_exchanges() {
        by_vhost.entry(vhost).or_default().push(queue);
    }
    let mut is_done = true;
    for (vhost, queues) in by_vhost {
        let names: Vec<_> = queues.iter().map(|queue| exchange_for(&context.broker_id, queue)).collect();
        is_done &= delete_in(context, &vhost, &names).await.len() == names.len();
    }
    if is_done {
        context.exchanges.all_deleted().await;
    }
}

/// Deletes exchanges in a virtual host of the other broker; returns those that certainly do not exist any more.
async fn delete_in<'n>(context: &MoveContext, vhost: &str, names: &'n [String]) -> Vec<&'n str> {
    let mut client = match context.connect(vhost, false).await {
        Ok(client) => client,
        Err(OpenError::Refused(fault))
            if OpenRefusal::of(&fault, vhost, &context.user) == OpenRefusal::NoVirtualHost =>
        {
            // They were deleted with their virtual host.
            return names.iter().map(|name| &**name).collect();
        }
        Err(error) => {
            let error = super::MoveLoginError::from(error);
            tracing::warn!(vhost, %error, "migration exchanges left on the other broker");
            return Vec::new();
        }
    };
    let mut deletions = Deletions::new(names, false);
    deletions.run(&mut client).await;
    close(client).await;
    deletions.gone
}

/// Deletes a run's exchange on its connection, whose channel is open. Returns whether it certainly does not exist any
/// more.
pub(super) async fn delete_one(client: &mut AmqpClient, name: String) -> bool {
    let names = [name];
    let mut deletions = Deletions::new(&names, true);
    deletions.run(client).await;
    !deletions.gone.is_empty()
}

/// The deletion of exchanges, one after the other.
struct Deletions<'n> {
    names: &'n [String],
    is_open: bool,
    /// Number of deletions sent, and of those answered.
    sent: usize,
    answered: usize,
    /// Names of exchanges that no longer exist.
    gone: Vec<&'n str>,
}

impl<'n> Deletions<'n> {
    fn new(names: &'n [String], is_open: bool) -> Self {
        Self { names, is_open, sent: 0, answered: 0, gone: Vec::new() }
    }

    /// Deletes the exchanges, as far as the other broker answers.
    async fn run(&mut self, client: &mut AmqpClient) {
        let (mut answered, mut since) = (0, transport::now());
        while self.answered < self.names.len() {
            let turn = poll_fn(|cx| {
                let before = self.answered;
                match self.take_turn(client, cx.waker(), transport::now()) {
                    Ok(()) if self.answered == before => Poll::Pending,
                    turn => Poll::Ready(turn),
                }
            });
            // After a timeout, another turn is taken.
            if let Ok(Err(fault)) = tokio::time::timeout(CHECK_INTERVAL, turn).await {
                return tracing::warn!(%fault, "migration exchanges left on the other broker");
            }
            if self.answered > answered {
                (answered, since) = (self.answered, transport::now());
            } else if transport::now() - since > ANSWER_TIMEOUT {
                return tracing::warn!("migration exchanges left on the other broker: no response");
            }
        }
    }

    fn take_turn(&mut self, client: &mut AmqpClient, waker: &Waker, now: Instant) -> Result<(), Fault> {
        client.handle_nudge(waker, now)?;
        let mut received = client.take_received();
        while let Some(event) = received.next(client)? {
            match event {
                ClientEvent::Method(CHANNEL, Method::ExchangeDeleteOk(_)) => self.handle_answer(Ok(())),
                ClientEvent::Method(CHANNEL, Method::ChannelClose(close)) => {
                    // The closed channel has taken the later requests with it.
                    (self.sent, self.is_open) = (self.answered + 1, false);
                    self.handle_answer(Err(announced(&close)));
                }
                _ => {}
            }
        }
        client.put_back(received);
        while self.sent < self.names.len() && self.sent < self.answered + WINDOW && client.has_capacity() {
            if !std::mem::replace(&mut self.is_open, true) {
                client.send(CHANNEL, channel::Open { reserved_1: "" });
            }
            let exchange = &*self.names[self.sent];
            client.send(CHANNEL, exchange::Delete { exchange, ..Default::default() });
            self.sent += 1;
        }
        client.flush(now)
    }

    fn handle_answer(&mut self, answer: Result<(), Fault>) {
        let Some(name) = self.names.get(self.answered) else { return };
        self.answered += 1;
        match answer {
            Ok(()) => self.gone.push(name),
            // Not every broker ignores the deletion of a missing exchange. The channel may also have been closed because
            // of an earlier request, such as for a missing queue: then the exchange may exist.
            Err(fault) if fault.code == ReplyCode::NotFound && fault.method == DELETE => self.gone.push(name),
            Err(fault) => {
                tracing::warn!(exchange = name, %fault, "migration exchange left on the other broker")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_answer_to_its_deletion_says_that_an_exchange_is_not_there() {
        let names = ["of a queue that is not there", "deleted before", "deleted"].map(str::to_owned);
        let mut deletions = Deletions::new(&names, true);
        let missing = |what: &str, method| Fault::announced(404, &format!("NOT_FOUND - no {what}"), method);
        deletions.handle_answer(Err(missing("queue 'q' in vhost '/'", (50, 10))));
        assert!(deletions.gone.is_empty());
        deletions.handle_answer(Err(missing("exchange 'e' in vhost '/'", (40, 20))));
        deletions.handle_answer(Ok(()));
        assert_eq!(deletions.gone, names[1..]);
    }
}
