//! AMQP: the listeners, bare, over TLS and over WebSocket.

use admin::WebSocketPorts;
use server::{Listener, Preface, Server};

use crate::config::Config;
use crate::listen::bind;
use crate::relays::ServedRelays;
use crate::serve::{ServeError, trusted_proxies, websocket_config};
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
        let over_tls = tls.server.clone();
        for (listener, tls) in [(self.amqp, None), (self.amqps, over_tls.clone())] {
            if let Some(listener) = listener {
                server.listen(listener, Preface { proxies: trusted_proxies(config), tls });
            }
        }
        for (listener, tls) in [(self.ws, None), (self.wss, over_tls)] {
            if let Some(listener) = listener {
                let preface = Preface { proxies: trusted_proxies(config), tls };
                server.listen_websocket(listener, preface, websocket_config(config, relays.routes(config)));
            }
        }
    }
}

fn port_of(listener: Option<&Listener>) -> Option<u16> {
    match listener? {
        Listener::Tcp(listeners) => listeners.local_addresses().next().map(|address| address.port()),
        Listener::Unix(..) => None,
    }
}
