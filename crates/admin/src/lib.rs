//! The HTTP side of Leveret: `/healthz`, `/readyz`, `/metrics`, the management API under `/api`, the dashboard at `/` and a
//! page at `/messages` to try out AMQP over WebSocket.
//!
//! * [`serve`] (`http`) keeps the connections, over TLS or not: limits, time-outs, security headers, shutdown.
//! * `health` answers the probes, `metrics` writes Prometheus' text format, `process` measures this process.
//! * `api` is the management API under `/api`.
//! * `dashboard` is what people see of the API, `page` where a visitor's browser speaks AMQP over WebSocket; the files of
//!   both are part of the program (`files`).
//!
//! What there is to tell comes from a [`Source`]. Never add a messaging protocol or a back end here: the process that
//! joins them to this crate writes the `Source`, so that each can be tested without the others.
//!
//! Invariants: no client holds a connection without using it, nor keeps others out by opening many (`http`); no
//! request body is read but by `api`, within bounds, and from those who have logged in.

mod api;
mod dashboard;
mod files;
mod health;
mod http;
mod listener;
mod metrics;
mod page;
mod process;
mod stall;

use std::sync::Arc;

pub use api::{
    Api, CertificateFile, ChannelInfo, Connection, ConnectionInfo, Counters, ListenerInfo, NodeInfo,
    Process as ApiProcess, TlsListener,
};
pub use health::Readiness;
pub use http::{serve, serve_metrics};
pub use listener::Listener;
pub use metrics::{Detail, Families, Kind, Labels, MetricsWriter, Number, Wanted};
pub use page::WebSocketPorts;
pub use process::{descriptors, resident_memory};

/// What the process behind the HTTP listener can tell about itself.
pub trait Source: Send + Sync + 'static {
    /// Whether clients should be sent here now. Called on a thread that serves others: it must not block.
    fn ready(&self) -> Readiness;

    /// Writes the metrics. Called on a thread of its own, at most a few times at once.
    fn metrics(&self, wanted: &Wanted, out: &mut MetricsWriter);

    /// The management API, if there is one.
    fn management(&self) -> Option<Arc<Api>> {
        None
    }

    /// Where the page at `/messages` finds AMQP over WebSocket. Must not block, either.
    fn websocket_ports(&self) -> WebSocketPorts;
}
