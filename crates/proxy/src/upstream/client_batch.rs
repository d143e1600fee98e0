//! Frames from a broker, gathered for the clients they are addressed to.

use std::sync::Arc;

use amqp::frame::{HEADER_LEN, max_body_payload, write_method};
use amqp::{Frame, Method};

use super::slot::Lease;
use crate::frames::{copy_frame, put_frame};
use crate::link::ClientLink;
use crate::waiting::ALWAYS;

/// Consecutive frames for one client, handed over at once.
pub(super) struct ClientBatch {
    client: Option<Arc<ClientLink>>,
    bytes: Vec<u8>,
    shared: bool,
    /// On a shared connection, the bytes that may wait for a client before deliveries to it are withheld.
    budget: usize,
    /// Messages seen, returned ones included.
    pub(super) messages: u64,
}

impl ClientBatch {
    pub(super) fn new(shared: bool, budget: usize) -> Self {
        Self { client: None, bytes: Vec::new(), shared, budget, messages: 0 }
    }

    /// Whether a message of this size would exceed the client's allowed backlog on this connection.
    #[inline]
    pub(super) fn is_over_budget(&self, link: &Arc<ClientLink>, size: u64) -> bool {
        if !self.shared {
            return false;
        }
        let is_its = self.client.as_ref().is_some_and(|client| Arc::ptr_eq(client, link));
        let gathered = if is_its { self.bytes.len() } else { 0 };
        let waiting = size.saturating_add((link.outbox.backlog() + gathered) as u64);
        if waiting > self.budget as u64 {
            return true;
        }
        let is_over_total_limit = waiting > ALWAYS as u64 && waiting > link.waiting.allowance() as u64;
        if is_over_total_limit {
            link.waiting.count_over_total_limit();
        }
        is_over_total_limit
    }

    #[inline]
    pub(super) fn add(&mut self, lease: &Lease, frame: &Frame<'_>) {
        self.switch_to(lease);
        put_frame(&mut self.bytes, frame.kind, lease.client_channel, frame.payload, lease.link.frame_max);
    }

    /// Like [`Self::add`], with the frame in wire format: copied as a whole unless it has to be split for the
    /// client.
    #[inline]
    pub(super) fn add_wire(&mut self, lease: &Lease, frame: &Frame<'_>, wire: &[u8]) {
        if frame.payload.len() > max_body_payload(lease.link.frame_max) {
            return self.add(lease, frame);
        }
        self.switch_to(lease);
        copy_frame(&mut self.bytes, wire, lease.client_channel);
    }

    /// Like [`Self::add_wire`], for a method with a delivery tag at offset `at` in the payload.
    pub(super) fn add_delivery(&mut self, lease: &Lease, wire: &[u8], at: usize, tag: u64) {
        self.switch_to(lease);
        let start = self.bytes.len() + HEADER_LEN + at;
        copy_frame(&mut self.bytes, wire, lease.client_channel);
        if let Some(bytes) = self.bytes.get_mut(start..start + size_of::<u64>()) {
            bytes.copy_from_slice(&tag.to_be_bytes());
        }
    }

    pub(super) fn add_method<'a>(&mut self, lease: &Lease, method: impl Into<Method<'a>>) {
        self.switch_to(lease);
        write_method(&mut self.bytes, lease.client_channel, method);
    }

    #[inline]
    fn switch_to(&mut self, lease: &Lease) {
        if !self.client.as_ref().is_some_and(|client| Arc::ptr_eq(client, &lease.link)) {
            self.hand_over();
            self.client = Some(lease.link.clone());
        }
    }

    pub(super) fn hand_over(&mut self) {
        if let Some(client) = &self.client
            && !self.bytes.is_empty()
        {
            client.deliver(std::mem::take(&mut self.bytes));
        }
    }
}
