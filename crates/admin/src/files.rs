//! Files of the pages. They are compiled into the program, so there is nothing to build or install.

use std::sync::Arc;

use axum::Router;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::Source;

/// A file as it is served.
#[derive(Debug, Clone, Copy)]
pub(crate) struct File {
    /// Path of its URL, with the leading slash.
    pub(crate) path: &'static str,
    /// Its content type, one of those below.
    pub(crate) kind: &'static str,
    /// Content of the file, sent as it is.
    pub(crate) text: &'static str,
}

pub(crate) const HTML: &str = "text/html; charset=utf-8";
pub(crate) const CSS: &str = "text/css; charset=utf-8";
pub(crate) const SCRIPT: &str = "text/javascript; charset=utf-8";
pub(crate) const PICTURE: &str = "image/svg+xml";

/// The routes of a page's files, all sent with the page's Content-Security-Policy.
pub(crate) fn routes(files: &'static [File], policy: HeaderValue) -> Router<Arc<dyn Source>> {
    files.iter().fold(Router::new(), |router, file| {
        let policy = policy.clone();
        router.route(file.path, get(move || std::future::ready(file.response(policy))))
    })
}

impl File {
    /// The response, with the Content-Security-Policy of the page that the file belongs to.
    fn response(&self, policy: HeaderValue) -> Response {
        let headers = [
            (header::CONTENT_TYPE, HeaderValue::from_static(self.kind)),
            (header::CONTENT_SECURITY_POLICY, policy),
        ];
        (headers, self.text).into_response()
    }
}

/// Panics if a file refers to another one that is served neither from `files` nor at a path in `also`, or to a
/// file on another server.
#[cfg(test)]
pub(crate) fn assert_complete(files: &[File], also: &[&str]) {
    for file in files {
        for attribute in ["src=\"http", "href=\"http", "src=\"//", "href=\"//", "url(", "from \"http"] {
            assert!(!file.text.contains(attribute), "{}: {attribute}", file.path);
        }
        let directory = file.path.rsplit_once('/').map_or("", |(directory, _)| directory);
        for reference in file.text.split(['"', '\'']) {
            let is_file = [".js", ".css", ".svg", ".json"].iter().any(|end| reference.ends_with(end));
            let path = if !is_file {
                continue;
            } else if let Some(name) = reference.strip_prefix("./") {
                format!("{directory}/{name}")
            } else if let Some(name) = reference.strip_prefix("../") {
                format!("{}/{name}", directory.rsplit_once('/').map_or("", |(parent, _)| parent))
            } else if reference.starts_with('/') {
                reference.to_owned()
            } else {
                continue;
            };
            let is_known = also.contains(&path.as_str()) || files.iter().any(|file| file.path == path);
            assert!(is_known, "{} refers to {reference}", file.path);
        }
    }
}
