//! The listeners of HTTP: dashboard, API, health and metrics.

use std::sync::Arc;

use admin::{Listener, Source};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::config::Config;
use crate::listen::bind_http;
use crate::serve::ServeError;
use crate::status::Status;
use crate::tls::Tls;

/// The listeners, bound.
pub(crate) struct HttpListeners {
    http: Option<Listener>,
    https: Option<Listener>,
    prometheus: Option<Listener>,
}

impl HttpListeners {
    /// Binds and announces those that are on.
    ///
    /// # Errors
    ///
    /// The first that cannot be bound.
    pub(crate) async fn bind(config: &Config, tls: &Tls) -> Result<Self, ServeError> {
        let http = bind_http("http", "http", &config.http).await?;
        let https = bind_http("https", "https", &config.https).await?;
        let https = https.zip(tls.server.clone());
        Ok(Self {
            http,
            https: https.map(|(listener, tls)| listener.over_tls(tls, config.https_strict)),
            prometheus: bind_http("prometheus", "http", &config.prometheus).await?,
        })
    }
}

/// The listeners at work.
pub(crate) struct Http {
    /// Its end is what the tasks wait for.
    may_end: watch::Sender<()>,
    tasks: Vec<JoinHandle<()>>,
}

impl Http {
    /// Starts accepting.
    pub(crate) fn serve(listeners: HttpListeners, status: &Arc<Status>) -> Self {
        let source = || Arc::clone(status) as Arc<dyn Source>;
        let may_end = watch::Sender::new(());
        let HttpListeners { http, https, prometheus } = listeners;
        // Each with bounds of its own: strangers who reach one do not keep others from the other.
        let serve = |listener| {
            let mut end = may_end.subscribe();
            tokio::spawn(admin::serve(listener, source(), async move {
                let _ = end.changed().await;
            }))
        };
        let tasks = http.into_iter().chain(https).map(serve).collect();
        if let Some(listener) = prometheus {
            // To the end of the process: nobody waits for a scrape.
            tokio::spawn(admin::serve_metrics(listener, source(), std::future::pending()));
        }
        Self { may_end, tasks }
    }

    /// Finishes the requests at hand.
    pub(crate) async fn end(self) {
        drop(self.may_end);
        for task in self.tasks {
            let _ = task.await;
        }
    }
}
