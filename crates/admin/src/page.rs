//! The page at `/messages`, for trying out AMQP over WebSocket in a browser.
//!
//! The files in `static` are served as they are. They load nothing from other servers, and their
//! Content-Security-Policy forbids it.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::Source;
use crate::files::{CSS, File, HTML, SCRIPT, routes};

/// The ports of the WebSocket listeners for AMQP; `None` for one that is off or has no port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WebSocketPorts {
    /// Port of the listener without TLS.
    pub ws: Option<u16>,
    /// Port of the listener over TLS.
    pub wss: Option<u16>,
}

/// The routes of the page and its files.
pub(crate) fn router() -> Router<Arc<dyn Source>> {
    routes(&FILES, POLICY).route("/page/listeners.json", get(listeners))
}

/// `GET /page/listeners.json`: the ports that the page connects to.
async fn listeners(State(source): State<Arc<dyn Source>>) -> Response {
    let WebSocketPorts { ws, wss } = source.websocket_ports();
    let json = |port: Option<u16>| port.map_or_else(|| "null".to_owned(), |port| port.to_string());
    let body = format!("{{\"ws\":{},\"wss\":{}}}\n", json(ws), json(wss));
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// Allows only this server's scripts and styles, and WebSocket connections to any broker the visitor names.
pub(crate) const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self' ws: wss:; frame-ancestors 'none'; \
     base-uri 'none'; form-action 'none'",
);

static FILES: [File; 9] = [
    File { path: "/messages", kind: HTML, text: include_str!("page/static/index.html") },
    File { path: "/page/style.css", kind: CSS, text: include_str!("page/static/style.css") },
    File { path: "/page/main.js", kind: SCRIPT, text: include_str!("page/static/main.js") },
    File {
        path: "/page/amqp/connection.js",
        kind: SCRIPT,
        text: include_str!("page/static/amqp/connection.js"),
    },
    File { path: "/page/amqp/channel.js", kind: SCRIPT, text: include_str!("page/static/amqp/channel.js") },
    File { path: "/page/amqp/errors.js", kind: SCRIPT, text: include_str!("page/static/amqp/errors.js") },
    File { path: "/page/amqp/frames.js", kind: SCRIPT, text: include_str!("page/static/amqp/frames.js") },
    File { path: "/page/amqp/methods.js", kind: SCRIPT, text: include_str!("page/static/amqp/methods.js") },
    File { path: "/page/amqp/wire.js", kind: SCRIPT, text: include_str!("page/static/amqp/wire.js") },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_that_is_referred_to_is_served_and_none_is_from_elsewhere() {
        crate::files::assert_complete(&FILES, &["/page/listeners.json", crate::dashboard::COLOURS]);
    }
}
