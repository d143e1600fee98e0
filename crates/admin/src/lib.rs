//! The HTTP side of Leveret: `/healthz`, `/readyz`, `/metrics` and a page at `/` today, the management API and the
//! dashboard later.
//!
//! * [`serve`] (`http`) keeps the connections: limits, time-outs, security headers, shutdown.
//! * `health` answers the probes, `metrics` writes Prometheus' text format, `process` measures this process.
//! * `page` is where a visitor's browser speaks AMQP over WebSocket.
//!
//! What there is to tell comes from a [`Source`]. Never add a messaging protocol or a back end here: the process that
//! joins them to this crate writes the `Source`, so that each can be tested without the others.
//!
//! Invariants: no client holds a connection without using it, nor keeps others out by opening many (`http`); no
//! request body is read.

mod health;
mod http;
mod listener;
mod metrics;
mod page;
mod process;
mod stall;

pub use health::Readiness;
pub use http::serve;
pub use listener::Listener;
pub use metrics::{Kind, MetricsWriter, Number};
pub use page::WebSocketPorts;

/// What the process behind the HTTP listener can tell about itself.
pub trait Source: Send + Sync + 'static {
    /// Whether clients should be sent here now. Called on a thread that serves others: it must not block.
    fn ready(&self) -> Readiness;

    /// Writes the metrics. Called on a thread of its own, at most a few times at once.
    fn metrics(&self, out: &mut MetricsWriter);

    /// Where the page at `/` finds AMQP over WebSocket. Must not block, either.
    fn websocket_ports(&self) -> WebSocketPorts;
}
