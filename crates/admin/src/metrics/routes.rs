//! `/metrics`, `/metrics/per-object` and `/metrics/detailed`, each scrape on a thread of its own: reading /proc and walking
//! a big source may take its time.

use std::sync::Arc;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::sync::Semaphore;

use super::{Detail, MetricsWriter, Wanted};
use crate::{Source, process};

/// Scrapes being written at once; others wait. Each takes a thread and walks what there is to measure.
const SCRAPES_AT_ONCE: usize = 2;

/// What the answers need.
struct Context {
    source: Arc<dyn Source>,
    scrapes: Arc<Semaphore>,
    started: process::Started,
}

/// The routes of the metrics, wherever they are served.
pub(crate) fn router(source: Arc<dyn Source>) -> Router {
    let context = Context {
        source,
        scrapes: Arc::new(Semaphore::new(SCRAPES_AT_ONCE)),
        started: process::Started::now(),
    };
    Router::new()
        .route("/metrics", get(|State(context)| scrape(context, Wanted::Together)))
        .route("/metrics/per-object", get(|State(context)| scrape(context, Wanted::Apart)))
        .route("/metrics/detailed", get(detailed))
        .with_state(Arc::new(context))
}

/// `GET /metrics/detailed?family=F&vhost=V`, both as often as wanted.
async fn detailed(State(context): State<Arc<Context>>, RawQuery(query): RawQuery) -> Response {
    let detail = Detail::of_query(query.as_deref().unwrap_or_default());
    scrape(context, Wanted::Detailed(detail)).await
}

async fn scrape(context: Arc<Context>, wanted: Wanted) -> Response {
    let permit = Arc::clone(&context.scrapes).acquire_owned().await;
    let scrape = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        let mut out = MetricsWriter::new();
        process::write(&mut out, context.started, &wanted);
        context.source.metrics(&wanted, &mut out);
        out.into_text()
    });
    match scrape.await {
        Ok(text) => {
            ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
        }
        Err(error) => {
            tracing::error!(%error, "the metrics could not be written");
            (StatusCode::INTERNAL_SERVER_ERROR, "the metrics could not be written\n").into_response()
        }
    }
}
