//! AMQP: the listeners, bare, over TLS and over WebSocket.

use admin::WebSocketPorts;
use server::{Listener, Server};

use crate::config::Config;
use crate::listen::{bind, serve_both};
use crate::relays::ServedRelays;
use crate::serve::{ServeError, websocket_config};
use crate::tls::Tls;

/// The bound AMQP listeners.
pub(crate) struct AmqpListeners {
    amqp: Option<Listener>,
    amqps: Option<Listener>,
    ws: Option<Listener>,
    wss: Option<Listener>,
}

impl AmqpListeners {
    /// Binds and announces the configured listeners.
    ///
    /// # Errors
    ///
    /// A listener cannot be bound; the first such failure is returned.
    pub(crate) async fn bind(config: &Config) -> Result<Self, ServeError> {
        Ok(Self {
            amqp: bind("amqp", "amqp", &config.amqp).await?,
            amqps: bind("amqps", "amqps", &config.amqps).await?,
            ws: bind("ws", "ws", &config.ws).await?,
            wss: bind("wss", "wss", &config.wss).await?,
        })
    }

    /// The ports on which the page in the browser may connect.
    pub(crate) fn websocket_ports(&self) -> WebSocketPorts {
        WebSocketPorts { ws: port_of(self.ws.as_ref()), wss: port_of(self.wss.as_ref()) }
    }

    /// Starts accepting.
    pub(crate) fn serve(self, server: &Server, config: &Config, relays: &ServedRelays, tls: &Tls) {
        serve_both((self.amqp, self.amqps), config, tls, |listener, preface| {
            server.listen(listener, preface);
        });
        serve_both((self.ws, self.wss), config, tls, |listener, preface| {
            server.listen_websocket(listener, preface, websocket_config(config, relays.routes(config)));
        });
    }
}

fn port_of(listener: Option<&Listener>) -> Option<u16> {
    match listener? {
        Listener::Tcp(listeners) => listeners.local_addresses().next().map(|address| address.port()),
        Listener::Unix(..) => None,
    }
}
