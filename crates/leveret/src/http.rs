//! The HTTP listeners: dashboard, API, health and metrics.

use std::sync::Arc;

use admin::{AdminListener, Source};
use server::ListenerKind;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use transport::{Inherited, Listener};

use crate::config::Config;
use crate::listen::bind;
use crate::serve::ServeError;
use crate::status::Status;
use crate::tls::Tls;

/// The bound listeners.
pub(crate) struct HttpListeners {
    http: Option<AdminListener>,
    https: Option<AdminListener>,
    prometheus: Option<AdminListener>,
}

impl HttpListeners {
    /// Binds and announces the configured listeners.
    ///
    /// # Errors
    ///
    /// A listener cannot be bound; the first such failure is returned.
    pub(crate) async fn bind(config: &Config, tls: &Tls, inherited: &Inherited) -> Result<Self, ServeError> {
        let bound =
            async |setting, scheme, rabbitmq_name, address| -> Result<Option<AdminListener>, ServeError> {
                let listener = bind(listener(setting, scheme, rabbitmq_name), address, inherited).await?;
                Ok(listener.map(AdminListener::from))
            };
        let http = bound("http", "http", "http", &config.http).await?;
        let https = bound("https", "https", "https", &config.https).await?;
        let https = https.zip(tls.server.clone());
        Ok(Self {
            http,
            https: https.map(|(listener, tls)| listener.over_tls(tls, config.https_strict)),
            prometheus: bound("prometheus", "http", "http/prometheus", &config.prometheus).await?,
        })
    }

    /// The sockets of all.
    pub(crate) fn listeners(&self) -> impl Iterator<Item = &Listener> {
        let Self { http, https, prometheus } = self;
        http.iter().chain(https).chain(prometheus).map(AdminListener::listener)
    }
}

fn listener(setting: &'static str, scheme: &'static str, rabbitmq_name: &'static str) -> ListenerKind {
    ListenerKind { setting, scheme, rabbitmq_name, websocket: false, tls: scheme == "https" }
}

/// The running listeners.
pub(crate) struct Http {
    /// The first message ends the tasks.
    may_end: watch::Sender<()>,
    tasks: Vec<JoinHandle<()>>,
}

impl Http {
    /// Starts accepting. The end of `release` ends this at once, so that a successor can bind the addresses.
    pub(crate) fn serve(
        listeners: HttpListeners,
        status: &Arc<Status>,
        release: impl Future<Output = ()> + Send + 'static,
    ) -> Self {
        let source = || Arc::clone(status) as Arc<dyn Source>;
        let may_end = watch::Sender::new(());
        let HttpListeners { http, https, prometheus } = listeners;
        // Each listener has its own connection limits, so that strangers who can reach one cannot exhaust
        // another.
        let end = || {
            let mut end = may_end.subscribe();
            async move {
                let _ = end.changed().await;
            }
        };
        let serve = |listener| tokio::spawn(admin::serve(listener, source(), end()));
        let tasks = http.into_iter().chain(https).map(serve).collect();
        if let Some(listener) = prometheus {
            // Shutdown does not wait for scrapes.
            tokio::spawn(admin::serve_metrics(listener, source(), end()));
        }
        let released = may_end.clone();
        tokio::spawn(async move {
            release.await;
            released.send_replace(());
        });
        Self { may_end, tasks }
    }

    /// Finishes the requests in progress.
    pub(crate) async fn end(self) {
        self.may_end.send_replace(());
        for task in self.tasks {
            let _ = task.await;
        }
    }
}
