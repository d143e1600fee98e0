//! Requests of a connected client: the checks that RabbitMQ makes before it involves the broker, with its wording.

use std::sync::Arc;

use super::connection::{Core, Subscription};
use super::event::{AckMode, EventKind, Request, Settle, SubscriptionRequest, TransactionId};
use super::form::{MessageForm, TAG_OF_DESTINATION, TAG_OF_ID, TEMP_QUEUE, parse_message_id};
use crate::fault::StompFault;
use crate::frame::{Headers, StompFrame};
use crate::limits::{MAX_SUBSCRIPTIONS, MAX_TRANSACTIONS};
use crate::version::StompVersion;

impl Core {
    pub(super) fn request<'a>(&mut self, frame: StompFrame<'a>) -> Result<Request<'a>, StompFault> {
        let StompFrame { command, headers, body } = frame;
        let kind = match command {
            "SEND" => {
                if headers.get("message-id").is_some() {
                    return Err(StompFault::header("'message-id' is not allowed on 'SEND'.\n"));
                }
                let destination = destination(&headers, command)?;
                EventKind::Send { destination, body, transaction: self.transaction(&headers)? }
            }
            "SUBSCRIBE" => EventKind::Subscribe(self.subscribe(&headers)?),
            "UNSUBSCRIBE" => self.unsubscribe(&headers)?,
            "ACK" | "NACK" => self.settle(&headers, command)?,
            "BEGIN" => EventKind::Begin(self.begin(transaction_name(&headers, command)?)?),
            "COMMIT" => EventKind::Commit(self.end_transaction(transaction_name(&headers, command)?)?),
            "ABORT" => EventKind::Abort(self.end_transaction(transaction_name(&headers, command)?)?),
            // DISCONNECT: the decoder rejects all other commands.
            _ => {
                self.start_leaving();
                EventKind::Disconnect
            }
        };
        Ok(Request { headers, kind })
    }

    fn subscribe(&mut self, headers: &Headers<'_>) -> Result<SubscriptionRequest, StompFault> {
        check_durable(headers)?;
        let destination = destination(headers, "SUBSCRIBE")?;
        let (tag, _) = tag(headers, "SUBSCRIBE")?;
        let ack = match headers.get("ack") {
            None | Some("auto") => AckMode::Auto,
            Some("client") => AckMode::Client,
            Some("client-individual") => AckMode::ClientIndividual,
            Some(other) => {
                let text = format!("'ack' must be auto, client or client-individual, not '{other}'\n");
                return Err(StompFault::header(text));
            }
        };
        if self.subscriptions.contains_key(&tag) {
            let detail = format!("A subscription identified by '{tag}' already exists.");
            return Err(StompFault::new("Duplicated subscription identifier", detail));
        }
        if self.subscriptions.len() >= MAX_SUBSCRIPTIONS {
            let detail = format!("A connection may have {MAX_SUBSCRIPTIONS} subscriptions at most.\n");
            return Err(StompFault::new("Too many subscriptions", detail));
        }
        let number = self.take_number();
        let session = Arc::clone(&self.session);
        let form = MessageForm::new(self.version, session, tag.clone(), ack != AckMode::Auto);
        self.subscriptions.insert(tag, Subscription { number, destination: destination.clone(), ack });
        Ok(SubscriptionRequest { number, destination, ack, form })
    }

    fn unsubscribe<'a>(&mut self, headers: &Headers<'_>) -> Result<EventKind<'a>, StompFault> {
        check_durable(headers)?;
        let (tag, description) = tag(headers, "UNSUBSCRIBE")?;
        let Some(Subscription { number, destination, .. }) = self.subscriptions.remove(&tag) else {
            let detail = format!(
                "UNSUBSCRIBE must refer to an existing subscription.\nSubscription to \"{description}\" not found.\n"
            );
            return Err(StompFault::new("No subscription found", detail));
        };
        Ok(EventKind::Unsubscribe { number, destination })
    }

    fn settle<'a>(&self, headers: &Headers<'_>, command: &str) -> Result<EventKind<'a>, StompFault> {
        let name = if self.version == StompVersion::V12 { "id" } else { "message-id" };
        let Some(id) = headers.get(name) else {
            let detail = format!("\"{command}\" must include the \"{name}\" header\n");
            return Err(StompFault::new("Missing header", detail));
        };
        let invalid =
            || StompFault::header(format!("\"{command}\" must include a valid \"{name}\" header\n"));
        let (tag, delivery_tag) = parse_message_id(id, &self.session).ok_or_else(invalid)?;
        let is_cancelled = self.cancelled.get(tag).is_some_and(|next| delivery_tag < *next);
        let subscription = self.subscriptions.get(tag);
        if subscription.is_none() && !is_cancelled {
            let detail = format!("Message with id \"{id}\" has no subscription");
            return Err(StompFault::new("Subscription not found", detail));
        }
        let (requeue, transaction) = (headers.flag("requeue")?.unwrap_or(true), self.transaction(headers)?);
        // The message may belong to a cancelled subscription even if a new one has the same tag.
        let Some(subscription) = subscription.filter(|_| !is_cancelled) else {
            return Ok(EventKind::SettleCancelled);
        };
        // 1.1 requires the header `subscription` beside the message's identifier, which contains the same.
        // Like RabbitMQ, this ignores it.
        Ok(EventKind::Settle(Settle {
            subscription: subscription.number,
            delivery_tag,
            cumulative: subscription.ack == AckMode::Client,
            is_ack: command == "ACK",
            requeue,
            transaction,
        }))
    }

    /// The transaction that a frame belongs to, if any.
    fn transaction(&self, headers: &Headers<'_>) -> Result<Option<TransactionId>, StompFault> {
        let Some(name) = headers.get("transaction") else { return Ok(None) };
        let found = self.transactions.iter().find(|(own, _)| **own == *name);
        found.map(|(_, id)| Some(*id)).ok_or_else(|| no_transaction(name))
    }

    fn begin(&mut self, name: &str) -> Result<TransactionId, StompFault> {
        let refuse = |detail: String| Err(StompFault::new("Bad transaction", detail));
        if self.transactions.iter().any(|(own, _)| **own == *name) {
            return refuse(format!("Transaction \"{name}\" has begun already\n"));
        }
        if self.transactions.len() >= MAX_TRANSACTIONS {
            return refuse(format!("A connection may have {MAX_TRANSACTIONS} transactions at most\n"));
        }
        let id = TransactionId(self.take_number());
        self.transactions.push((name.into(), id));
        Ok(id)
    }

    fn end_transaction(&mut self, name: &str) -> Result<TransactionId, StompFault> {
        let at = self.transactions.iter().position(|(own, _)| **own == *name);
        at.map(|at| self.transactions.swap_remove(at).1).ok_or_else(|| no_transaction(name))
    }
}

fn no_transaction(name: &str) -> StompFault {
    StompFault::new("Bad transaction", format!("Invalid transaction identifier: \"{name}\"\n"))
}

fn transaction_name<'h>(headers: &'h Headers<'_>, command: &str) -> Result<&'h str, StompFault> {
    headers.get("transaction").ok_or_else(|| {
        StompFault::new("Missing transaction", format!("\"{command}\" must include a 'transaction' header\n"))
    })
}

fn destination(headers: &Headers<'_>, command: &str) -> Result<Box<str>, StompFault> {
    headers.get("destination").map(Box::from).ok_or_else(|| {
        StompFault::new("Missing destination", format!("\"{command}\" must include a 'destination' header\n"))
    })
}

/// Checks that a durable subscription has an id, by which it is found again.
fn check_durable(headers: &Headers<'_>) -> Result<(), StompFault> {
    let durable = headers.flag("durable")? == Some(true) || headers.flag("persistent")? == Some(true);
    if durable && headers.get("id").is_none() {
        return Err(StompFault::new("Missing Header", "Header 'id' is required for durable subscriptions"));
    }
    Ok(())
}

/// The consumer tag of a subscription, and how RabbitMQ describes it.
fn tag(headers: &Headers<'_>, command: &str) -> Result<(Box<str>, String), StompFault> {
    if let Some(id) = headers.get("id") {
        if id.starts_with(TEMP_QUEUE) {
            let detail = format!("{command} 'id' may not start with {TEMP_QUEUE}\n");
            return Err(StompFault::new("Invalid id", detail));
        }
        return Ok((format!("{TAG_OF_ID}{id}").into(), format!("id='{id}'")));
    }
    match headers.get("destination") {
        Some(name) => Ok((format!("{TAG_OF_DESTINATION}{name}").into(), format!("destination='{name}'"))),
        None => {
            let detail = format!("{command} must include a 'destination' or 'id' header");
            Err(StompFault::new("Missing destination or id", detail))
        }
    }
}
