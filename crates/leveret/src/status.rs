//! Readiness and metrics of the process, for the HTTP listeners.

mod alarms;
mod broker;
mod certificates;
mod identity;
mod locks;
mod objects;
mod pool;
mod server;
mod store;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use ::broker::{Compatibility, Store};
use ::proxy::{AddressState, Pool};
use ::server::{Backend, Server};
use admin::{Api, MetricsWriter, Readiness, Source, WantedMetrics, WebSocketPorts};
use transport::tls::ServerTls;

use crate::alarms::Levels;

/// Readiness and metrics of the running server.
pub(crate) struct Status {
    server: Server,
    backend: Backend,
    websocket_ports: WebSocketPorts,
    /// Alarm levels of the embedded broker, or of the spool.
    levels: Option<Arc<Levels>>,
    /// TLS of listeners, for the expiry of certificates.
    tls: Option<Arc<ServerTls>>,
    draining: AtomicBool,
    management: OnceLock<Arc<Api>>,
}

impl Status {
    pub(crate) fn new(
        server: Server,
        backend: Backend,
        websocket_ports: WebSocketPorts,
        levels: Option<Arc<Levels>>,
        tls: Option<Arc<ServerTls>>,
    ) -> Self {
        Self {
            server,
            backend,
            websocket_ports,
            levels,
            tls,
            draining: AtomicBool::new(false),
            management: OnceLock::new(),
        }
    }

    /// Sets the management API.
    pub(crate) fn manage(&self, api: Arc<Api>) {
        let _ = self.management.set(api);
    }

    pub(crate) fn start_draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Writes all metrics that are not per object.
    fn write_all(&self, out: &mut MetricsWriter) {
        let draining = u64::from(self.draining.load(Ordering::Relaxed));
        out.gauge("leveret_draining", "1 while the server is shutting down.", draining);
        if cfg!(feature = "lock-profile") {
            locks::write(out);
        }
        server::write(&self.server, out);
        certificates::write(self.tls.as_deref(), out);
        match &self.backend {
            Backend::Broker(embedded) => {
                broker::write(embedded, out);
                if embedded.compatibility().has_message_size_metrics() {
                    broker::write_sizes(embedded.metrics(), out);
                }
                broker::write_confirms(self.server.metrics(), embedded.metrics(), out);
            }
            Backend::Upstream(pool) => pool::write(&self.server, pool, out),
        }
        if let Some(store) = self.store() {
            store::write(store, out);
        }
        if let Some(levels) = &self.levels {
            let alarms = self.server.spool().map_or(self.server.alarms(), |spool| spool.alarms());
            alarms::write(levels, alarms, out);
        }
    }

    /// The store on this disk: that of the embedded broker, or of the spool.
    fn store(&self) -> Option<&Store> {
        match &self.backend {
            Backend::Broker(broker) => broker.store().map(|store| &**store),
            Backend::Upstream(_) => self.server.spool()?.store().map(|store| &**store),
        }
    }

    fn broker(&self) -> Option<&::broker::Broker> {
        match &self.backend {
            Backend::Broker(broker) => Some(broker),
            Backend::Upstream(_) => None,
        }
    }
}

impl Source for Status {
    fn ready(&self) -> Readiness {
        if self.draining.load(Ordering::Relaxed) {
            return Readiness::NotReady { reason: "shutting down".to_owned(), details: None };
        }
        match &self.backend {
            Backend::Upstream(pool) if !pool.is_reachable() => {
                Readiness::NotReady { reason: "upstream unreachable".to_owned(), details: causes(pool) }
            }
            Backend::Broker(_) | Backend::Upstream(_) => match self.store().and_then(store::impairment) {
                Some(impairment) => Readiness::Impaired(impairment),
                None => Readiness::Ready,
            },
        }
    }

    fn metrics(&self, wanted: &WantedMetrics, out: &mut MetricsWriter) {
        let follows_4 = self.broker().is_some_and(|broker| broker.compatibility() == Compatibility::V4);
        let endpoint = match wanted {
            WantedMetrics::Together => "aggregated",
            WantedMetrics::Apart => "per-object",
            WantedMetrics::Detailed(_) => "detailed",
        };
        identity::write(follows_4.then_some(endpoint), out);
        match wanted {
            WantedMetrics::Together => {
                self.write_all(out);
                objects::write_together(&self.server, self.broker(), out);
            }
            WantedMetrics::Apart => {
                self.write_all(out);
                objects::write_protocols(&self.server, out);
                objects::write_apart(
                    &self.server,
                    self.broker(),
                    &admin::Detail::per_object(),
                    "rabbitmq",
                    out,
                );
            }
            WantedMetrics::Detailed(detail) => {
                server::write_detailed(&self.server, detail, out);
                broker::write_detailed(self.broker(), detail, out);
                if let Some(levels) = &self.levels {
                    alarms::write_detailed(levels, detail, out);
                }
                objects::write_apart(&self.server, self.broker(), detail, "rabbitmq_detailed", out);
                objects::write_names(self.broker(), detail, out);
            }
        }
    }

    fn management(&self) -> Option<Arc<Api>> {
        self.management.get().cloned()
    }

    fn websocket_ports(&self) -> WebSocketPorts {
        self.websocket_ports
    }
}

/// Every upstream with the reason why it cannot be reached, as far as any is known.
fn causes(pool: &Pool) -> Option<String> {
    let show = |state: AddressState| match state.cause {
        Some(cause) => format!("{}: {cause}", state.address),
        None => state.address,
    };
    let causes: Vec<_> = pool.addresses().into_iter().map(show).collect();
    (!causes.is_empty()).then(|| causes.join("; "))
}
