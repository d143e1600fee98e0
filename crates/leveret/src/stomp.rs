//! The STOMP listeners.

use std::sync::Arc;

use server::{Listener, Server};

use crate::config::Config;
use crate::listen::{bind, serve_both};
use crate::relays::ServedRelays;
use crate::serve::{ServeError, websocket_config};
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
        serve_both((self.stomp, self.stomps), config, tls, |listener, preface| {
            server.listen_stomp(listener, preface);
        });
        serve_both((self.web_stomp, self.web_stomps), config, tls, |listener, preface| {
            server.listen_websocket(
                listener,
                preface,
                websocket_config(config, relays.web_stomp_routes(config)),
            );
        });
    }
}
