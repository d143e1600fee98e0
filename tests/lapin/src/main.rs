//! Runs scenarios with lapin: one JSON request a line on standard input, one JSON answer a line on standard output.
//! The first line out lists the scenarios this driver knows. `tests/README.md` describes the protocol.

use std::io::{self, BufRead as _, Write as _};

use serde_json::{Value, json};

use session::{Observed, Session};

mod connecting;
mod consuming;
mod content;
mod exchanges;
mod publishing;
mod queues;
mod refusals;
mod session;
mod settling;

/// Names every scenario once: in the list of them, and in the dispatch to its function.
macro_rules! scenarios {
    ($($module:ident :: { $($scenario:ident),* $(,)? })*) => {
        const SCENARIOS: &[&str] = &[$($(stringify!($scenario)),*),*];

        async fn observe(scenario: &str, session: &Session) -> Observed {
            match scenario {
                $($(stringify!($scenario) => Box::pin($module::$scenario(session)).await,)*)*
                unknown => Err(format!("no scenario {unknown}").into()),
            }
        }
    };
}

scenarios! {
    connecting::{
        connect, wrong_password, wrong_vhost, heartbeat_two_seconds, frame_max_4096, frame_max_131072, many_channels,
        ten_connections,
    }
    content::{properties, header_values, body_sizes}
    exchanges::{
        default_exchange, predeclared_exchanges, direct_exchange, fanout_exchange, topic_exchange, headers_exchange,
        exchange_to_exchange, alternate_exchange,
    }
    publishing::{confirms, mandatory_return, immediate, tx_commit, tx_rollback, tx_refused}
    consuming::{
        get, consume_and_ack, consume_without_ack, prefetch_per_consumer, prefetch_of_later_consumers_only,
        prefetch_global, cancel, server_cancel, consumer_priority, exclusive_consumer, duplicate_consumer_tag,
        requeue_on_close, cancel_of_an_unknown_tag,
    }
    settling::{
        ack_multiple, ack_all_outstanding, nack_requeue_order, nack_drops, reject, recover, recover_without_requeue,
        unknown_delivery_tag,
    }
    queues::{
        server_named_queue, exclusive_queue, auto_delete_queue, auto_delete_exchange, passive_declare,
        purge_and_delete_counts, if_unused_if_empty,
    }
    refusals::{
        redeclare, redeclare_with_arguments, missing_queues_and_exchanges, reserved_names, default_exchange_is_fixed,
        internal_exchange, unknown_exchange_type, no_wait_errors,
    }
}

#[tokio::main]
async fn main() -> io::Result<()> {
    answer(&json!({ "scenarios": SCENARIOS }))?;
    for line in io::stdin().lock().lines() {
        let request: Value = serde_json::from_str(&line?)?;
        answer(&run(&request).await)?;
    }
    Ok(())
}

async fn run(request: &Value) -> Value {
    let text = |key: &str| request[key].as_str().unwrap_or_default().to_owned();
    let scenario = text("scenario");
    let session = Session::new(text("uri"), text("prefix"));
    let outcome = observe(&scenario, &session).await;
    session.close().await;
    match outcome {
        Ok(observed) => json!({ "scenario": scenario, "ok": true, "observed": observed }),
        Err(problem) => {
            json!({ "scenario": scenario, "ok": false, "error": format!("{problem}: {problem:?}") })
        }
    }
}

fn answer(message: &Value) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{message}")?;
    out.flush()
}
