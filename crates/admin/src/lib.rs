//! The HTTP side of Leveret: `/healthz`, `/readyz`, `/metrics`, the management API under `/api`, the dashboard at `/` and a
//! page at `/messages` to try out AMQP over WebSocket.
//!
//! * [`serve`] (`http`) manages the connections, with or without TLS: limits, timeouts, security headers,
//!   shutdown.
//! * `health` answers the probes, `metrics` writes Prometheus' text format, `process` measures this process.
//! * `api` is the management API under `/api`.
//! * `dashboard` is the web interface to the API; `page` lets a visitor's browser speak AMQP over WebSocket.
//!   The files of both are compiled into the program (`files`).
//!
//! All figures and state come from a [`Source`]. Never add a messaging protocol or a backend here: the process
//! that joins them to this crate implements `Source`, so that each can be tested without the others.
//!
//! Invariants: no client can hold a connection without using it, or shut others out by opening many (`http`).
//! Only `api` reads request bodies, within bounds, and only after the client has logged in.

mod api;
mod dashboard;
mod files;
mod health;
mod http;
mod listener;
mod metrics;
mod page;
mod pieces;
mod process;
mod write_timeout;

use std::sync::Arc;

pub use api::{
    Api, CertificateFile, ChangePermit, ChannelInfo, ClientConnection, ConnectionInfo, Counters,
    DetachedSession, ListenerInfo, MigrationError, MigrationStep, NodeInfo, Process as ApiProcess,
    SessionInfo, TlsListener, UpgradeRefused,
};
pub use health::Readiness;
pub use http::{serve, serve_metrics};
pub use listener::AdminListener;
pub use metrics::{
    Detail, Families, FamiliesOfObjects, HistogramSeries, MetricKind, MetricsWriter, Number, WantedMetrics,
};
pub use page::WebSocketPorts;
pub use process::{descriptors, resident_memory};

/// The process behind the HTTP listener, as the answers report it.
pub trait Source: Send + Sync + 'static {
    /// Whether clients should be sent here now. Called on a thread that also serves other connections, so it
    /// must not block.
    fn ready(&self) -> Readiness;

    /// Writes the metrics. Called on a blocking thread, at most a few calls at a time.
    fn metrics(&self, wanted: &WantedMetrics, out: &mut MetricsWriter);

    /// The management API, if there is one.
    fn management(&self) -> Option<Arc<Api>> {
        None
    }

    /// The ports where the page at `/messages` finds AMQP over WebSocket. Must not block either.
    fn websocket_ports(&self) -> WebSocketPorts;
}
