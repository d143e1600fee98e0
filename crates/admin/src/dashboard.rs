//! The dashboard at `/`: a web interface to the management API.
//!
//! The files in `static` are served as they are: `main.js` logs in and shows the view that the address names,
//! `views` holds the views, `parts` their components, and only `api.js` calls the API. They load nothing from
//! other servers, and their Content-Security-Policy forbids it.

use std::sync::Arc;

use axum::Router;
use axum::http::HeaderValue;

use crate::Source;
use crate::files::{CSS, File, HTML, PICTURE, SCRIPT, routes};

/// The routes of the dashboard's files.
pub(crate) fn router() -> Router<Arc<dyn Source>> {
    routes(&FILES, POLICY)
}

/// Allows only this server's scripts, styles and pictures, and requests to this server alone. Strangers choose
/// the names of queues: even if a bug inserted one as markup, nothing would run, because inline scripts are
/// forbidden and so is turning text into markup (`trusted-types`).
pub(crate) const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     frame-ancestors 'none'; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; \
     trusted-types 'none'",
);

/// Path of the stylesheet with the colours, and their meaning for states, which all pages share.
pub(crate) const COLOURS: &str = "/dashboard/colours.css";

#[rustfmt::skip]
static FILES: [File; 45] = [
    File { path: "/", kind: HTML, text: include_str!("dashboard/static/index.html") },
    File { path: "/dashboard/api.js", kind: SCRIPT, text: include_str!("dashboard/static/api.js") },
    File { path: "/dashboard/base.css", kind: CSS, text: include_str!("dashboard/static/base.css") },
    File { path: COLOURS, kind: CSS, text: include_str!("dashboard/static/colours.css") },
    File { path: "/dashboard/dom.js", kind: SCRIPT, text: include_str!("dashboard/static/dom.js") },
    File { path: "/dashboard/format.js", kind: SCRIPT, text: include_str!("dashboard/static/format.js") },
    File { path: "/dashboard/graph.js", kind: SCRIPT, text: include_str!("dashboard/static/graph.js") },
    File { path: "/dashboard/history.js", kind: SCRIPT, text: include_str!("dashboard/static/history.js") },
    File { path: "/dashboard/icon.svg", kind: PICTURE, text: include_str!("dashboard/static/icon.svg") },
    File { path: "/dashboard/main.js", kind: SCRIPT, text: include_str!("dashboard/static/main.js") },
    File { path: "/dashboard/metrics.js", kind: SCRIPT, text: include_str!("dashboard/static/metrics.js") },
    File { path: "/dashboard/parts.css", kind: CSS, text: include_str!("dashboard/static/parts.css") },
    File { path: "/dashboard/places.js", kind: SCRIPT, text: include_str!("dashboard/static/places.js") },
    File { path: "/dashboard/router.js", kind: SCRIPT, text: include_str!("dashboard/static/router.js") },
    File { path: "/dashboard/sampler.js", kind: SCRIPT, text: include_str!("dashboard/static/sampler.js") },
    File { path: "/dashboard/session.js", kind: SCRIPT, text: include_str!("dashboard/static/session.js") },
    File { path: "/dashboard/vhosts.js", kind: SCRIPT, text: include_str!("dashboard/static/vhosts.js") },
    File { path: "/dashboard/parts/columns.js", kind: SCRIPT, text: include_str!("dashboard/static/parts/columns.js") },
    File { path: "/dashboard/parts/declare.js", kind: SCRIPT, text: include_str!("dashboard/static/parts/declare.js") },
    File { path: "/dashboard/parts/diagram.js", kind: SCRIPT, text: include_str!("dashboard/static/parts/diagram.js") },
    File { path: "/dashboard/parts/dialog.js", kind: SCRIPT, text: include_str!("dashboard/static/parts/dialog.js") },
    File { path: "/dashboard/parts/fields.js", kind: SCRIPT, text: include_str!("dashboard/static/parts/fields.js") },
    File { path: "/dashboard/parts/figures.js", kind: SCRIPT, text: include_str!("dashboard/static/parts/figures.js") },
    File { path: "/dashboard/parts/list.js", kind: SCRIPT, text: include_str!("dashboard/static/parts/list.js") },
    File { path: "/dashboard/parts/messages.js", kind: SCRIPT, text: include_str!("dashboard/static/parts/messages.js") },
    File { path: "/dashboard/parts/notice.js", kind: SCRIPT, text: include_str!("dashboard/static/parts/notice.js") },
    File { path: "/dashboard/parts/slow.js", kind: SCRIPT, text: include_str!("dashboard/static/parts/slow.js") },
    File { path: "/dashboard/parts/sparkline.js", kind: SCRIPT, text: include_str!("dashboard/static/parts/sparkline.js") },
    File { path: "/dashboard/parts/table.js", kind: SCRIPT, text: include_str!("dashboard/static/parts/table.js") },
    File { path: "/dashboard/views/bindings.js", kind: SCRIPT, text: include_str!("dashboard/static/views/bindings.js") },
    File { path: "/dashboard/views/clients.js", kind: SCRIPT, text: include_str!("dashboard/static/views/clients.js") },
    File { path: "/dashboard/views/connections.js", kind: SCRIPT, text: include_str!("dashboard/static/views/connections.js") },
    File { path: "/dashboard/views/exchanges.js", kind: SCRIPT, text: include_str!("dashboard/static/views/exchanges.js") },
    File { path: "/dashboard/views/limits.js", kind: SCRIPT, text: include_str!("dashboard/static/views/limits.js") },
    File { path: "/dashboard/views/overview.js", kind: SCRIPT, text: include_str!("dashboard/static/views/overview.js") },
    File { path: "/dashboard/views/policies.js", kind: SCRIPT, text: include_str!("dashboard/static/views/policies.js") },
    File { path: "/dashboard/views/pool.js", kind: SCRIPT, text: include_str!("dashboard/static/views/pool.js") },
    File { path: "/dashboard/views/queue.js", kind: SCRIPT, text: include_str!("dashboard/static/views/queue.js") },
    File { path: "/dashboard/views/queues.js", kind: SCRIPT, text: include_str!("dashboard/static/views/queues.js") },
    File { path: "/dashboard/views/sessions.js", kind: SCRIPT, text: include_str!("dashboard/static/views/sessions.js") },
    File { path: "/dashboard/views/spool.js", kind: SCRIPT, text: include_str!("dashboard/static/views/spool.js") },
    File { path: "/dashboard/views/topology.js", kind: SCRIPT, text: include_str!("dashboard/static/views/topology.js") },
    File { path: "/dashboard/views/upstreams.js", kind: SCRIPT, text: include_str!("dashboard/static/views/upstreams.js") },
    File { path: "/dashboard/views/users.js", kind: SCRIPT, text: include_str!("dashboard/static/views/users.js") },
    File { path: "/dashboard/views/vhosts.js", kind: SCRIPT, text: include_str!("dashboard/static/views/vhosts.js") },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_that_is_referred_to_is_served_and_none_is_from_elsewhere() {
        crate::files::assert_complete(&FILES, &["/page/listeners.json"]);
    }

    #[test]
    fn nothing_makes_markup_of_texts() {
        for file in &FILES {
            for way in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "style=\""]
            {
                assert!(!file.text.contains(way), "{}: {way}", file.path);
            }
        }
    }
}
