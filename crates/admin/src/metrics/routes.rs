//! `/metrics`, `/metrics/per-object` and `/metrics/detailed`. Each scrape runs on a blocking thread, since
//! reading /proc and walking a big source may take a while.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{StatusCode, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::sync::Semaphore;

use super::{Detail, MetricsWriter, WantedMetrics};
use crate::api::{self, Api};
use crate::pieces::PiecewiseBody;
use crate::{Source, process};

/// Scrapes that may run at once; others wait. Each occupies a thread and walks all measured objects.
const SCRAPES_AT_ONCE: usize = 2;

/// State shared by the handlers.
struct Context {
    source: Arc<dyn Source>,
    scrapes: Arc<Semaphore>,
    started: process::Started,
}

/// The routes of the metrics, all open to everybody.
pub(crate) fn router(source: Arc<dyn Source>) -> Router {
    let context = Arc::new(Context::new(source));
    together(Arc::clone(&context)).merge(apart(context))
}

/// The routes of the metrics where there is also an API. Metrics that name queues and virtual hosts are only
/// for users who may see all of these in the API.
pub(crate) fn router_beside(api: Arc<Api>, source: Arc<dyn Source>) -> Router {
    let context = Arc::new(Context::new(source));
    let apart =
        apart(Arc::clone(&context)).route_layer(middleware::from_fn_with_state(api, api::for_monitors));
    together(context).merge(apart)
}

impl Context {
    fn new(source: Arc<dyn Source>) -> Self {
        let scrapes = Arc::new(Semaphore::new(SCRAPES_AT_ONCE));
        Self { source, scrapes, started: process::Started::now() }
    }
}

fn together(context: Arc<Context>) -> Router {
    Router::new()
        .route("/metrics", get(|State(context)| scrape(context, WantedMetrics::Together)))
        .with_state(context)
}

fn apart(context: Arc<Context>) -> Router {
    Router::new()
        .route("/metrics/per-object", get(|State(context)| scrape(context, WantedMetrics::Apart)))
        .route("/metrics/detailed", get(detailed))
        .with_state(context)
}

/// `GET /metrics/detailed?family=F&vhost=V`; both parameters may be repeated.
async fn detailed(State(context): State<Arc<Context>>, RawQuery(query): RawQuery) -> Response {
    let detail = Detail::of_query(query.as_deref().unwrap_or_default());
    scrape(context, WantedMetrics::Detailed(detail)).await
}

async fn scrape(context: Arc<Context>, wanted: WantedMetrics) -> Response {
    let permit = Arc::clone(&context.scrapes).acquire_owned().await;
    let scrape = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        let mut out = MetricsWriter::new();
        process::write(&mut out, context.started, &wanted);
        context.source.metrics(&wanted, &mut out);
        PiecewiseBody::from(out.into_pieces())
    });
    match scrape.await {
        Ok(text) => {
            let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
            (kind, Body::new(text)).into_response()
        }
        Err(error) => {
            tracing::error!(%error, "metrics rendering failed");
            (StatusCode::INTERNAL_SERVER_ERROR, "metrics rendering failed\n").into_response()
        }
    }
}
