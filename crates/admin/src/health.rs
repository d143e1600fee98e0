//! The probes: is the process alive, and should clients be sent to it.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;

use crate::Source;

/// Whether clients should be sent here now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// Listeners are up and, with an upstream, it can be reached.
    Ready,
    /// Ready, and yet something does not work, for this reason, in such words: whoever can help with that (consumers, when
    /// a disk is full) is to be let in.
    Impaired(String),
    /// Not now, for this reason: a few words, without secrets, as anyone who can reach the address reads them.
    NotReady(String),
}

/// `GET /healthz`: that this is answered at all is the news.
pub(crate) async fn alive() -> &'static str {
    "ok\n"
}

/// `GET /readyz`: 200, or 503 with the reason.
pub(crate) async fn ready(State(source): State<Arc<dyn Source>>) -> (StatusCode, String) {
    match source.ready() {
        Readiness::Ready => (StatusCode::OK, "ready\n".to_owned()),
        Readiness::Impaired(reason) => (StatusCode::OK, format!("ready, but {reason}\n")),
        Readiness::NotReady(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {reason}\n")),
    }
}
