//! The STOMP listeners.

use std::sync::Arc;

use server::{Listener, Preface, Server};

use crate::config::Config;
use crate::listen::bind;
use crate::relays::ServedRelays;
use crate::serve::{ServeError, trusted_proxies, websocket_config};
use crate::tls::Tls;

/// The bound STOMP listeners.
pub(crate) struct StompListeners {
    stomp: Option<Listener>,
    stomps: Option<Listener>,
    web_stomp: Option<Listener>,
    web_stomps: Option<Listener>,
}

impl StompListeners {
    /// Binds and announces the configured listeners.
    ///
    /// # Errors
    ///
    /// A listener cannot be bound; the first such failure is returned.
    pub(crate) async fn bind(config: &Config) -> Result<Self, ServeError> {
        Ok(Self {
            stomp: bind("stomp", "stomp", &config.stomp).await?,
            stomps: bind("stomps", "stomps", &config.stomps).await?,
            web_stomp: bind("web_stomp", "ws", &config.web_stomp).await?,
            web_stomps: bind("web_stomps", "wss", &config.web_stomps).await?,
        })
    }

    /// Starts accepting.
    pub(crate) fn serve(self, server: &Server, config: &Config, relays: &ServedRelays, tls: &Tls) {
        if let Some(relay) = relays.stomp() {
            server.relay_stomp(Arc::clone(relay));
        }
        let over_tls = tls.server.clone();
        for (listener, tls) in [(self.stomp, None), (self.stomps, over_tls.clone())] {
            if let Some(listener) = listener {
                server.listen_stomp(listener, Preface { proxies: trusted_proxies(config), tls });
            }
        }
        for (listener, tls) in [(self.web_stomp, None), (self.web_stomps, over_tls)] {
            if let Some(listener) = listener {
                let preface = Preface { proxies: trusted_proxies(config), tls };
                let config = websocket_config(config, relays.web_stomp_routes(config));
                server.listen_websocket(listener, preface, config);
            }
        }
    }
}
