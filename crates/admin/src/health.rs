//! The probes: is the process alive, and should clients be sent to it.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderName, StatusCode, header};

use crate::Source;
use crate::api::is_local;

/// Whether clients should be sent here now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// Listeners are up and, with an upstream, it can be reached.
    Ready,
    /// Ready although something does not work, for this reason, worded as for `NotReady`. Clients that can
    /// remedy it must still be let in, such as consumers when a disk is full.
    Impaired(String),
    /// Not now.
    NotReady {
        /// Why: a few words without secrets, since anyone who can reach the address can read them.
        reason: String,
        /// More about it, such as addresses, for requests from this machine.
        details: Option<String>,
    },
}

/// `GET /healthz`: any answer at all shows that the process is alive. The header informs a client that looks for a Leveret that
/// it has found one, before it sends a password.
pub(crate) async fn alive() -> ([(HeaderName, &'static str); 1], &'static str) {
    ([(header::SERVER, "Leveret")], "ok\n")
}

/// `GET /readyz`: 200, or 503 with the reason.
pub(crate) async fn ready(State(source): State<Arc<dyn Source>>, request: Request) -> (StatusCode, String) {
    match source.ready() {
        Readiness::Ready => (StatusCode::OK, "ready\n".to_owned()),
        Readiness::Impaired(reason) => (StatusCode::OK, format!("ready, but {reason}\n")),
        Readiness::NotReady { reason, details } => {
            let details = details.filter(|_| is_local(request.headers(), request.extensions()));
            let details = details.map(|details| format!(": {details}")).unwrap_or_default();
            (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {reason}{details}\n"))
        }
    }
}
