//! The interface through which the server runs a connection's protocol.

use std::sync::Arc;
use std::time::Instant;

use transport::{Outbox, Peer, Protocol};

use crate::access::AccessRecord;
use crate::limits::ConnectionLease;
use crate::registry::Arrival;
use crate::server::Shared;

/// A protocol spoken with clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spoken {
    /// AMQP 0-9-1.
    Amqp,
    /// MQTT.
    Mqtt,
    /// STOMP.
    Stomp,
}

impl Spoken {
    /// The protocol's name as a URL scheme.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Amqp => "amqp",
            Self::Mqtt => "mqtt",
            Self::Stomp => "stomp",
        }
    }
}

/// The server's end of one client's connection.
pub(crate) trait ClientStream: Protocol + Send + Sized + 'static {
    /// Creates a connection that has received nothing yet. Its output goes to `outbox`; `now` is when it was accepted.
    fn new(
        shared: Arc<Shared>,
        id: u64,
        peer: Peer,
        outbox: Arc<Outbox>,
        place: ConnectionLease,
        now: Instant,
    ) -> Self;
    /// Offers login by the client's verified certificate, which stands for `user`. Called before the first input.
    fn offer_external(&mut self, user: Arc<str>);
    /// Notes where the connection came from and to. Called before the first input.
    fn arrived(&mut self, arrival: Arrival);
    /// Sets the connection's access-log record, if there is an access log.
    fn keep_record(&mut self, record: Option<Box<AccessRecord>>);
    /// Takes the access-log record when the connection has ended.
    fn take_record(&mut self) -> Option<Box<AccessRecord>>;
    /// Why the connection ended, if its protocol knows.
    fn take_reason(&mut self) -> Option<String>;
}

/// Implements [`ClientStream`] for a connection that has all of its methods as inherent methods.
macro_rules! is_client {
    ($connection:ty) => {
        impl crate::client::ClientStream for $connection {
            fn new(
                shared: std::sync::Arc<crate::server::Shared>,
                id: u64,
                peer: transport::Peer,
                outbox: std::sync::Arc<transport::Outbox>,
                place: crate::limits::ConnectionLease,
                now: std::time::Instant,
            ) -> Self {
                Self::new(shared, id, peer, outbox, place, now)
            }

            fn offer_external(&mut self, user: std::sync::Arc<str>) {
                self.offer_external(user);
            }

            fn arrived(&mut self, arrival: crate::registry::Arrival) {
                self.arrived(arrival);
            }

            fn keep_record(&mut self, record: Option<Box<crate::access::AccessRecord>>) {
                self.keep_record(record);
            }

            fn take_record(&mut self) -> Option<Box<crate::access::AccessRecord>> {
                self.take_record()
            }

            fn take_reason(&mut self) -> Option<String> {
                self.take_reason()
            }
        }
    };
}

pub(crate) use is_client;
