//! The page at `/`: AMQP over WebSocket, tried out in a browser.
//!
//! Its files stand in `static` as they are served, and are part of the program: there is nothing to build and nothing
//! to install. They load nothing from elsewhere, and their policy lets them load nothing from elsewhere.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::Source;

/// The ports of the listeners that a page can speak AMQP to; `None` for one that is off or has no port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WebSocketPorts {
    /// Of the bare one.
    pub ws: Option<u16>,
    /// Of the one over TLS.
    pub wss: Option<u16>,
}

/// The routes of the page.
pub(crate) fn router() -> Router<Arc<dyn Source>> {
    let page = Router::new().route("/page/listeners.json", get(listeners));
    FILES.iter().fold(page, |page, file| page.route(file.path, get(async || file.response())))
}

/// `GET /page/listeners.json`: where the page's connections go.
async fn listeners(State(source): State<Arc<dyn Source>>) -> Response {
    let WebSocketPorts { ws, wss } = source.websocket_ports();
    let json = |port: Option<u16>| port.map_or_else(|| "null".to_owned(), |port| port.to_string());
    let body = format!("{{\"ws\":{},\"wss\":{}}}\n", json(ws), json(wss));
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

struct File {
    path: &'static str,
    kind: &'static str,
    text: &'static str,
}

impl File {
    fn response(&self) -> Response {
        let headers = [
            (header::CONTENT_TYPE, HeaderValue::from_static(self.kind)),
            (header::CONTENT_SECURITY_POLICY, POLICY),
        ];
        (headers, self.text).into_response()
    }
}

/// Only this server's scripts and styles, and connections to brokers wherever the visitor says.
pub(crate) const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self' ws: wss:; frame-ancestors 'none'; \
     base-uri 'none'; form-action 'none'",
);

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

const FILES: [File; 9] = [
    File { path: "/", kind: HTML, text: include_str!("static/index.html") },
    File { path: "/page/style.css", kind: CSS, text: include_str!("static/style.css") },
    File { path: "/page/main.js", kind: SCRIPT, text: include_str!("static/main.js") },
    File { path: "/page/amqp/connection.js", kind: SCRIPT, text: include_str!("static/amqp/connection.js") },
    File { path: "/page/amqp/channel.js", kind: SCRIPT, text: include_str!("static/amqp/channel.js") },
    File { path: "/page/amqp/errors.js", kind: SCRIPT, text: include_str!("static/amqp/errors.js") },
    File { path: "/page/amqp/frames.js", kind: SCRIPT, text: include_str!("static/amqp/frames.js") },
    File { path: "/page/amqp/methods.js", kind: SCRIPT, text: include_str!("static/amqp/methods.js") },
    File { path: "/page/amqp/wire.js", kind: SCRIPT, text: include_str!("static/amqp/wire.js") },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_that_is_referred_to_is_served() {
        for file in &FILES {
            let quoted = file.text.split(['"', '\'']);
            for reference in quoted.filter(|text| text.starts_with("/page/") || text.starts_with("./")) {
                let path = reference.replace("./", "/page/amqp/");
                let known = path == "/page/listeners.json" || FILES.iter().any(|file| file.path == path);
                assert!(known, "{} refers to {reference}", file.path);
            }
        }
    }

    #[test]
    fn nothing_is_loaded_from_elsewhere() {
        for file in &FILES {
            for attribute in ["src=\"http", "href=\"http", "src=\"//", "href=\"//", "url(", "from \"http"] {
                assert!(!file.text.contains(attribute), "{}: {attribute}", file.path);
            }
        }
    }
}
