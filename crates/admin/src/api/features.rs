//! Feature flags and deprecated features. RabbitMQ's are listed if Leveret has them, as each release lists them.

use broker::Compatibility;
use serde_json::{Value, json};

use super::call::{ApiAnswer, Call, Reply};
use super::error::ApiError;

/// `GET /api/feature-flags`.
pub(super) fn flags(call: &Call) -> ApiAnswer {
    let show = match call.compatibility() {
        Compatibility::V3_10 => show_3_10,
        Compatibility::V4 => show_4,
    };
    Ok(Reply::json(of_release(call).map(show).collect::<Vec<_>>()))
}

/// `PUT /api/feature-flags/{name}/enable`: all flags are enabled.
pub(super) fn enable(call: &Call) -> ApiAnswer {
    match of_release(call).any(|flag| flag.name == call.at("name")) {
        true => Ok(Reply::no_content()),
        false => Err(ApiError::bad_request("unsupported")),
    }
}

/// `GET /api/deprecated-features`.
pub(super) fn deprecated(_: &Call) -> ApiAnswer {
    let show = |feature: &Deprecated| {
        let mut shown = show_deprecated(feature);
        shown["state"] = json!(if feature.is_permitted() { "permitted" } else { "denied" });
        shown
    };
    Ok(Reply::json(DEPRECATED.iter().map(show).collect::<Vec<_>>()))
}

/// `GET /api/deprecated-features/used`. Those that are denied are never in use.
pub(super) fn deprecated_in_use(call: &Call) -> ApiAnswer {
    let permitted = DEPRECATED.iter().filter(|feature| feature.is_permitted());
    let is_used = call.broker()?.vhosts().iter().any(|vhost| {
        vhost.all_queues().iter().any(|queue| {
            let properties = queue.properties();
            !properties.durable && properties.owner.is_none()
        })
    });
    Ok(Reply::json(permitted.filter(|_| is_used).map(show_deprecated).collect::<Vec<_>>()))
}

/// A feature that RabbitMQ has a flag for, and Leveret has.
struct Flag {
    name: &'static str,
    about: &'static str,
    /// Whether only RabbitMQ 4 knows the flag.
    is_of_4: bool,
}

const fn flag(name: &'static str, about: &'static str) -> Flag {
    Flag { name, about, is_of_4: false }
}

fn of_release(call: &Call) -> impl Iterator<Item = &'static Flag> {
    let is_4 = call.compatibility() == Compatibility::V4;
    FLAGS.iter().filter(move |flag| is_4 || !flag.is_of_4)
}

fn show_3_10(flag: &Flag) -> Value {
    json!({
        "name": flag.name, "desc": flag.about, "doc_url": "", "state": "enabled", "stability": "stable",
        "provided_by": "leveret",
    })
}

fn show_4(flag: &Flag) -> Value {
    json!({
        "name": flag.name, "desc": flag.about, "doc_url": "", "state": "enabled", "stability": "required",
        "require_level": "hard", "experiment_level": "supported", "callbacks": [], "provided_by": "leveret",
    })
}

/// A feature that RabbitMQ means to remove, or has removed.
struct Deprecated {
    name: &'static str,
    phase: Phase,
}

/// A step on the way of a feature out of RabbitMQ (RabbitMQ, "Deprecated Features").
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    PermittedByDefault,
    DeniedByDefault,
    Removed,
}

impl Deprecated {
    /// There is no setting to change the default.
    fn is_permitted(&self) -> bool {
        self.phase == Phase::PermittedByDefault
    }
}

fn show_deprecated(feature: &Deprecated) -> Value {
    let phase = match feature.phase {
        Phase::PermittedByDefault => "permitted_by_default",
        Phase::DeniedByDefault => "denied_by_default",
        Phase::Removed => "removed",
    };
    json!({
        "name": feature.name, "desc": "", "deprecation_phase": phase, "doc_url": "", "provided_by": "leveret",
    })
}

const FLAGS: &[Flag] = &[
    Flag { is_of_4: true, ..flag("detailed_queues_endpoint", "Add a detailed queues HTTP API endpoint") },
    flag("drop_unroutable_metric", "Count unroutable publishes to be dropped in stats"),
    flag("empty_basic_get_metric", "Count AMQP `basic.get` on empty queues in stats"),
    flag(
        "implicit_default_bindings",
        "Default bindings are now implicit, instead of being stored in the database",
    ),
    flag("quorum_queue", "Support queues of type `quorum`"),
    flag("user_limits", "Configure connection and channel limits for a user"),
    flag("virtual_host_metadata", "Virtual host metadata (description, tags, etc)"),
];

/// The deprecated features of RabbitMQ 4 that AMQP 0-9-1 clients meet. Only transient queues that are not exclusive are
/// permitted.
const DEPRECATED: &[Deprecated] = &[
    Deprecated { name: "queue_master_locator", phase: Phase::DeniedByDefault },
    Deprecated { name: "global_qos", phase: Phase::DeniedByDefault },
    Deprecated { name: "transient_nonexcl_queues", phase: Phase::PermittedByDefault },
    Deprecated { name: "classic_queue_mirroring", phase: Phase::Removed },
    Deprecated { name: "ram_node_type", phase: Phase::Removed },
];
