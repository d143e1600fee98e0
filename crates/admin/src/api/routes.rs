//! The table of paths, with the users that may use them and their handlers. The OpenAPI description is
//! generated from the same table.

use axum::http::Method;
use broker::Compatibility;
use percent_encoding::percent_decode_str;

use super::call::{ApiAnswer, Call};
use super::login::RequiredTag::{
    self, Administrator, Anyone, AnyoneMonitors, Everybody, Member, Monitoring, Policymaker,
};
use super::{
    bindings, certificates, connections, consumers, definitions, exchanges, features, health, leveret,
    limits, messages, openapi, overview, parameters, permissions, policies, queues, quorum, sessions, users,
    vhosts,
};

/// A path and its methods.
pub(super) struct Route {
    /// Below `/api/`, with variable parts in braces.
    pub(super) path: &'static str,
    pub(super) back: Back,
    /// The only release of RabbitMQ that has the path, unless both have it.
    pub(super) only: Option<Compatibility>,
    pub(super) actions: &'static [Action],
}

/// The backend and the release that an API serves, on which its paths depend.
#[derive(Debug, Clone, Copy)]
pub(super) struct Served {
    pub(super) has_broker: bool,
    pub(super) compatibility: Compatibility,
}

impl Served {
    pub(super) fn has(self, route: &Route) -> bool {
        (self.has_broker || route.back == Back::Any)
            && route.only.is_none_or(|release| release == self.compatibility)
    }
}

/// The backend that a path requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Back {
    /// The embedded broker, not an upstream.
    Broker,
    /// The embedded broker or an upstream.
    Any,
}

/// One method of a path.
pub(super) struct Action {
    pub(super) verb: Verb,
    pub(super) who: RequiredTag,
    pub(super) size: Size,
    /// The response is a list, which can be requested in pages.
    pub(super) is_list: bool,
    pub(super) run: fn(&Call) -> ApiAnswer,
    /// Summary in a few words, for the OpenAPI description.
    pub(super) about: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    Get,
    Put,
    Post,
    Delete,
}

/// Limit on the size of the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Size {
    /// The body is not read.
    Nothing,
    Usual,
    Large,
}

impl Verb {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Put => "PUT",
            Self::Post => "POST",
            Self::Delete => "DELETE",
        }
    }
}

/// The route that matches a request's path.
pub(super) struct Found {
    pub(super) route: &'static Route,
    /// The variable parts by their names, decoded.
    pub(super) names: Vec<(&'static str, String)>,
}

impl Found {
    /// The action of a method. HEAD runs GET; the HTTP server omits the response's body.
    pub(super) fn action(&self, method: &Method) -> Option<&'static Action> {
        let name = if method == Method::HEAD { "GET" } else { method.as_str() };
        self.route.actions.iter().find(|action| action.verb.name() == name)
    }

    /// The value of the header Allow, in RabbitMQ's order.
    pub(super) fn allow(&self) -> String {
        let has = |verb| self.route.actions.iter().any(|action| action.verb == verb);
        let verbs = [
            ("HEAD", Verb::Get),
            ("GET", Verb::Get),
            ("PUT", Verb::Put),
            ("POST", Verb::Post),
            ("DELETE", Verb::Delete),
        ];
        let known = verbs.iter().filter(|(_, verb)| has(*verb)).map(|(name, _)| *name);
        known.chain(["OPTIONS"]).collect::<Vec<_>>().join(", ")
    }

    pub(super) fn vhost(&self) -> Option<&str> {
        self.names.iter().find(|(name, _)| *name == "vhost").map(|(_, value)| value.as_str())
    }
}

/// Finds the route of a path. The first match in `ROUTES` wins, where literal parts stand before variable ones.
pub(super) fn find(path: &str, served: Served) -> Option<Found> {
    let path = path.strip_prefix("/api")?;
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    ROUTES
        .iter()
        .filter(|route| served.has(route))
        .find_map(|route| Some(Found { route, names: matched(route.path, &parts)? }))
}

fn matched(pattern: &'static str, parts: &[&str]) -> Option<Vec<(&'static str, String)>> {
    let mut names = Vec::new();
    let mut rest = parts.iter();
    for wanted in pattern.split('/') {
        let part = rest.next()?;
        match wanted.strip_prefix('{').and_then(|name| name.strip_suffix('}')) {
            None if wanted == *part => {}
            None => return None,
            Some(_) if part.is_empty() => return None,
            Some(name) => names.push((name, percent_decode_str(part).decode_utf8().ok()?.into_owned())),
        }
    }
    rest.next().is_none().then_some(names)
}

const fn action(verb: Verb, who: RequiredTag, run: fn(&Call) -> ApiAnswer, about: &'static str) -> Action {
    let size = match verb {
        Verb::Get | Verb::Delete => Size::Nothing,
        Verb::Put | Verb::Post => Size::Usual,
    };
    Action { verb, who, size, is_list: false, run, about }
}

const fn get(who: RequiredTag, run: fn(&Call) -> ApiAnswer, about: &'static str) -> Action {
    action(Verb::Get, who, run, about)
}

const fn list(who: RequiredTag, run: fn(&Call) -> ApiAnswer, about: &'static str) -> Action {
    Action { is_list: true, ..action(Verb::Get, who, run, about) }
}

const fn put(who: RequiredTag, run: fn(&Call) -> ApiAnswer, about: &'static str) -> Action {
    action(Verb::Put, who, run, about)
}

const fn post(who: RequiredTag, run: fn(&Call) -> ApiAnswer, about: &'static str) -> Action {
    action(Verb::Post, who, run, about)
}

const fn large(who: RequiredTag, run: fn(&Call) -> ApiAnswer, about: &'static str) -> Action {
    Action { size: Size::Large, ..post(who, run, about) }
}

/// A `POST` that takes no body.
const fn bare(who: RequiredTag, run: fn(&Call) -> ApiAnswer, about: &'static str) -> Action {
    Action { size: Size::Nothing, ..post(who, run, about) }
}

const fn delete(who: RequiredTag, run: fn(&Call) -> ApiAnswer, about: &'static str) -> Action {
    action(Verb::Delete, who, run, about)
}

const fn delete_with_body(who: RequiredTag, run: fn(&Call) -> ApiAnswer, about: &'static str) -> Action {
    Action { size: Size::Usual, ..delete(who, run, about) }
}

const fn route(path: &'static str, actions: &'static [Action]) -> Route {
    Route { path, back: Back::Broker, only: None, actions }
}

const fn broker_or_pool(path: &'static str, actions: &'static [Action]) -> Route {
    Route { path, back: Back::Any, only: None, actions }
}

/// A path that RabbitMQ has no more.
const fn until_3_10(route: Route) -> Route {
    Route { only: Some(Compatibility::V3_10), ..route }
}

/// A path that RabbitMQ has got since.
const fn since_4(route: Route) -> Route {
    Route { only: Some(Compatibility::V4), ..route }
}

/// All paths below `/api`, in the order in which they are tried.
#[rustfmt::skip]
pub(super) static ROUTES: &[Route] = &[
    broker_or_pool("overview", &[get(Anyone, overview::overview, "Versions, totals, rates and listeners")]),
    broker_or_pool("whoami", &[get(Anyone, overview::whoami, "The user that has logged in")]),
    since_4(broker_or_pool("version", &[get(Everybody, overview::version, "The release of RabbitMQ that is followed")])),
    since_4(route("auth/hash_password/{password}", &[get(Administrator, overview::hash_password, "Hash a password")])),
    until_3_10(broker_or_pool("auth", &[get(Everybody, overview::auth, "How to log in")])),
    broker_or_pool("openapi.json", &[get(Everybody, openapi::description, "This description")]),
    route("extensions", &[get(Anyone, overview::extensions, "Extensions of the dashboard")]),
    until_3_10(route("feature-flags", &[get(Administrator, features::flags, "Features that are there")])),
    since_4(route("feature-flags", &[get(Anyone, features::flags, "Features that are there")])),
    route("feature-flags/{name}/enable", &[put(Administrator, features::enable, "Nothing, for all are enabled")]),
    since_4(route("deprecated-features", &[get(Anyone, features::deprecated, "Features that RabbitMQ removes")])),
    since_4(route("deprecated-features/used", &[
        get(Anyone, features::deprecated_in_use, "Features in use that RabbitMQ removes"),
    ])),
    route("reset", &[delete(Administrator, overview::reset, "Nothing, for figures are not collected")]),
    route("reset/{node}", &[delete(Administrator, overview::reset, "The same for a node")]),
    route("cluster-name", &[
        get(Anyone, overview::cluster_name, "The name of the broker"),
        put(Administrator, overview::set_cluster_name, "Name the broker"),
    ]),
    route("nodes", &[list(Monitoring, overview::nodes, "The node")]),
    route("nodes/{node}", &[get(Monitoring, overview::node, "The node, by name")]),
    route("rebalance/queues", &[bare(Administrator, overview::rebalance, "Nothing, for there is one node")]),
    route("definitions", &[
        get(Administrator, definitions::export, "All definitions"),
        large(Administrator, definitions::import, "Load definitions"),
    ]),
    // An older name of the same.
    route("all-configuration", &[
        get(Administrator, definitions::export, "All definitions"),
        large(Administrator, definitions::import, "Load definitions"),
    ]),
    route("definitions/{vhost}", &[
        get(Administrator, definitions::export_vhost, "The definitions of a virtual host"),
        large(Administrator, definitions::import_vhost, "Load definitions into a virtual host"),
    ]),
    route("parameters", &[list(Policymaker, parameters::all, "Parameters")]),
    route("parameters/{component}", &[list(Policymaker, parameters::all, "Parameters of a component")]),
    route("parameters/{component}/{vhost}", &[list(Policymaker, parameters::all, "Parameters of a component in a virtual host")]),
    route("parameters/{component}/{vhost}/{name}", &[
        get(Policymaker, parameters::one, "A parameter"),
        put(Policymaker, parameters::set, "Set a parameter"),
        delete(Policymaker, parameters::clear, "Clear a parameter"),
    ]),
    route("global-parameters", &[list(Policymaker, parameters::all_global, "Parameters of the broker as a whole")]),
    route("global-parameters/{name}", &[
        get(Policymaker, parameters::one_global, "A global parameter"),
        put(Policymaker, parameters::set_global, "Set a global parameter"),
        delete(Policymaker, parameters::clear_global, "Clear a global parameter"),
    ]),
    route("policies", &[list(Anyone, policies::all, "Policies")]),
    route("policies/{vhost}", &[list(Anyone, policies::all, "Policies of a virtual host")]),
    route("policies/{vhost}/{name}", &[
        get(Policymaker, policies::one, "A policy"),
        put(Policymaker, policies::set, "Set a policy"),
        delete(Policymaker, policies::clear, "Clear a policy"),
    ]),
    route("operator-policies", &[list(Anyone, policies::all_operator, "Operator policies")]),
    route("operator-policies/{vhost}", &[list(Anyone, policies::all_operator, "Operator policies of a virtual host")]),
    route("operator-policies/{vhost}/{name}", &[
        get(Administrator, policies::one_operator, "An operator policy"),
        put(Administrator, policies::set_operator, "Set an operator policy"),
        delete(Administrator, policies::clear_operator, "Clear an operator policy"),
    ]),
    route("vhost-limits", &[list(Anyone, limits::of_vhosts, "Limits of virtual hosts")]),
    route("vhost-limits/{vhost}", &[list(AnyoneMonitors, limits::of_vhosts, "Limits of a virtual host")]),
    route("vhost-limits/{vhost}/{name}", &[
        put(Administrator, limits::set_of_vhost, "Limit a virtual host"),
        delete(Administrator, limits::clear_of_vhost, "Lift a limit of a virtual host"),
    ]),
    until_3_10(route("user-limits", &[list(Anyone, limits::of_users, "Limits of users")])),
    since_4(route("user-limits", &[list(Administrator, limits::of_users, "Limits of users")])),
    route("user-limits/{user}", &[list(Anyone, limits::of_users, "Limits of a user")]),
    route("user-limits/{user}/{name}", &[
        put(Administrator, limits::set_of_user, "Limit a user"),
        delete(Administrator, limits::clear_of_user, "Lift a limit of a user"),
    ]),
    broker_or_pool("connections", &[list(Anyone, connections::all, "Open connections")]),
    broker_or_pool("connections/username/{user}", &[
        list(Anyone, connections::of_user, "Open connections of a user"),
        delete(Anyone, connections::close_of_user, "Close the connections of a user"),
    ]),
    broker_or_pool("connections/{name}", &[
        get(Anyone, connections::one, "A connection"),
        delete(Anyone, connections::close, "Close a connection; header X-Reason may say why"),
    ]),
    broker_or_pool("connections/{name}/channels", &[list(Anyone, connections::channels_of, "Channels of a connection")]),
    broker_or_pool("channels", &[list(Anyone, connections::channels, "Open channels")]),
    broker_or_pool("channels/{name}", &[get(Anyone, connections::channel, "A channel")]),
    route("vhosts/{vhost}/connections", &[list(Anyone, connections::all, "Open connections of a virtual host")]),
    route("vhosts/{vhost}/channels", &[list(Anyone, connections::channels, "Open channels of a virtual host")]),
    route("consumers", &[list(Anyone, consumers::all, "Consumers")]),
    route("consumers/{vhost}", &[list(AnyoneMonitors, consumers::all, "Consumers of a virtual host")]),
    route("exchanges", &[list(Anyone, exchanges::all, "Exchanges")]),
    route("exchanges/{vhost}", &[list(Anyone, exchanges::all, "Exchanges of a virtual host")]),
    route("exchanges/{vhost}/{name}", &[
        get(Anyone, exchanges::one, "An exchange"),
        put(Member, exchanges::declare, "Declare an exchange"),
        delete(Member, exchanges::delete, "Delete an exchange"),
    ]),
    route("exchanges/{vhost}/{name}/publish", &[large(Member, messages::publish, "Publish a message")]),
    route("exchanges/{vhost}/{name}/bindings/source", &[list(Anyone, bindings::from_exchange, "Bindings from an exchange")]),
    route("exchanges/{vhost}/{name}/bindings/destination", &[list(Anyone, bindings::to_exchange, "Bindings to an exchange")]),
    route("queues", &[list(Anyone, queues::all, "Queues")]),
    since_4(route("queues/detailed", &[list(Anyone, queues::all, "Queues")])),
    since_4(route("queues/quorum/{vhost}/{name}/status", &[get(Anyone, quorum::status, "The replica of a quorum queue")])),
    since_4(route("queues/quorum/{vhost}/{name}/replicas/add", &[
        post(Administrator, quorum::add, "Nothing, for the replica on this node is there"),
    ])),
    since_4(route("queues/quorum/{vhost}/{name}/replicas/delete", &[
        delete_with_body(Administrator, quorum::remove, "Refused, for the last replica stays"),
    ])),
    since_4(route("queues/quorum/replicas/on/{node}/grow", &[
        post(Administrator, quorum::grow, "Nothing, for all quorum queues are on this node"),
    ])),
    since_4(route("queues/quorum/replicas/on/{node}/shrink", &[
        delete(Administrator, quorum::shrink, "Nothing, for last replicas stay"),
    ])),
    route("queues/{vhost}", &[list(Anyone, queues::all, "Queues of a virtual host")]),
    route("queues/{vhost}/{name}", &[
        get(Anyone, queues::one, "A queue"),
        put(Member, queues::declare, "Declare a queue"),
        delete(Member, queues::delete, "Delete a queue"),
    ]),
    route("queues/{vhost}/{name}/bindings", &[list(Anyone, bindings::to_queue, "Bindings to a queue")]),
    route("queues/{vhost}/{name}/contents", &[delete(Member, queues::purge, "Purge a queue")]),
    route("queues/{vhost}/{name}/actions", &[post(Administrator, queues::act, "Nothing, for there are no mirrors")]),
    route("queues/{vhost}/{name}/get", &[post(Member, messages::get, "Get messages")]),
    route("bindings", &[list(Anyone, bindings::all, "Bindings")]),
    route("bindings/{vhost}", &[list(Anyone, bindings::all, "Bindings of a virtual host")]),
    route("bindings/{vhost}/e/{source}/q/{destination}", &[
        list(Anyone, bindings::between, "Bindings between an exchange and a queue"),
        post(Member, bindings::bind, "Bind a queue to an exchange"),
    ]),
    route("bindings/{vhost}/e/{source}/e/{exchange}", &[
        list(Anyone, bindings::between, "Bindings between two exchanges"),
        post(Member, bindings::bind, "Bind an exchange to another"),
    ]),
    route("bindings/{vhost}/e/{source}/q/{destination}/{props}", &[
        get(Anyone, bindings::one, "A binding, by its properties key"),
        delete(Member, bindings::unbind, "Unbind a queue"),
    ]),
    route("bindings/{vhost}/e/{source}/e/{exchange}/{props}", &[
        get(Anyone, bindings::one, "A binding of two exchanges, by its properties key"),
        delete(Member, bindings::unbind, "Unbind an exchange"),
    ]),
    route("vhosts", &[list(Anyone, vhosts::all, "Virtual hosts")]),
    route("vhosts/{vhost}", &[
        get(Administrator, vhosts::one, "A virtual host"),
        put(Administrator, vhosts::set, "Add or change a virtual host"),
        delete(Administrator, vhosts::remove, "Delete a virtual host and everything in it"),
    ]),
    route("vhosts/{vhost}/start/{node}", &[bare(Administrator, vhosts::start, "Nothing, for virtual hosts do not fail")]),
    since_4(route("vhosts/{vhost}/deletion/protection", &[
        bare(Administrator, vhosts::protect, "Protect a virtual host from deletion"),
        delete(Administrator, vhosts::unprotect, "Lift the protection"),
    ])),
    route("vhosts/{vhost}/permissions", &[list(Administrator, permissions::all, "Permissions in a virtual host")]),
    route("vhosts/{vhost}/topic-permissions", &[list(Administrator, permissions::all_topic, "Topic permissions in a virtual host")]),
    route("users", &[list(Administrator, users::all, "Users")]),
    route("users/without-permissions", &[list(Administrator, users::without_permissions, "Users without permissions anywhere")]),
    route("users/bulk-delete", &[post(Administrator, users::remove_many, "Delete users")]),
    route("users/{user}", &[
        get(Administrator, users::one, "A user"),
        put(Administrator, users::set, "Add or change a user"),
        delete(Administrator, users::remove, "Delete a user"),
    ]),
    route("users/{user}/permissions", &[list(Administrator, permissions::all, "Permissions of a user")]),
    route("users/{user}/topic-permissions", &[list(Administrator, permissions::all_topic, "Topic permissions of a user")]),
    route("permissions", &[list(Administrator, permissions::all, "Permissions")]),
    route("permissions/{vhost}/{user}", &[
        get(Administrator, permissions::one, "Permissions of a user in a virtual host"),
        put(Administrator, permissions::set, "Grant permissions"),
        delete(Administrator, permissions::clear, "Clear permissions"),
    ]),
    route("topic-permissions", &[list(Administrator, permissions::all_topic, "Topic permissions")]),
    route("topic-permissions/{vhost}/{user}", &[
        list(Administrator, permissions::all_topic, "Topic permissions of a user in a virtual host"),
        put(Administrator, permissions::set_topic, "Set topic permissions"),
        delete(Administrator, permissions::clear_topic, "Clear all topic permissions"),
    ]),
    route("topic-permissions/{vhost}/{user}/{exchange}", &[
        list(Administrator, permissions::all_topic, "Topic permissions of a user in a virtual host"),
        put(Administrator, permissions::set_topic, "Set topic permissions"),
        delete(Administrator, permissions::clear_topic, "Clear the topic permissions of an exchange"),
    ]),
    route("aliveness-test/{vhost}", &[get(Member, health::aliveness, "Declare, publish and get")]),
    broker_or_pool("health/checks/alarms", &[get(Anyone, health::alarms, "No alarm is in effect")]),
    broker_or_pool("health/checks/local-alarms", &[get(Anyone, health::alarms, "No alarm is in effect")]),
    broker_or_pool("health/checks/port-listener/{port}", &[get(Anyone, health::port, "A listener uses this port")]),
    until_3_10(broker_or_pool("health/checks/protocol-listener/{protocol}", &[
        get(Anyone, health::protocol, "A listener serves this protocol"),
    ])),
    since_4(broker_or_pool("health/checks/protocol-listener/{protocols}", &[
        get(Anyone, health::protocols, "A listener serves each of these protocols, separated by commas"),
    ])),
    broker_or_pool("health/checks/certificate-expiration/{within}/{unit}", &[
        get(Anyone, certificates::expiration, "No certificate of a listener expires within so many days, weeks, months or years"),
    ]),
    route("health/checks/virtual-hosts", &[get(Anyone, health::fine, "All virtual hosts are up")]),
    until_3_10(route("health/checks/node-is-mirror-sync-critical", &[
        get(Anyone, health::single, "Nothing depends on this node alone that could be elsewhere"),
    ])),
    route("health/checks/node-is-quorum-critical", &[get(Anyone, health::single, "The same for quorum queues")]),
    since_4(route("health/checks/is-in-service", &[get(Everybody, health::fine, "The node serves clients")])),
    since_4(route("health/checks/ready-to-serve-clients", &[get(Everybody, health::fine, "The node serves clients")])),
    since_4(route("health/checks/reached-target-cluster-size", &[get(Everybody, health::fine, "The node is there")])),
    since_4(route("health/checks/metadata-store/initialized", &[get(Anyone, health::fine, "The definitions are loaded")])),
    since_4(route("health/checks/metadata-store/initialized/with-data", &[
        get(Anyone, health::defined, "The definitions are loaded, and there are some"),
    ])),
    since_4(route("health/checks/below-node-connection-limit", &[
        get(Everybody, health::connection_limit, "Another client may connect"),
    ])),
    since_4(route("health/checks/quorum-queues-without-elected-leaders/all-vhosts", &[
        get(Anyone, health::fine, "All quorum queues have a leader: this node"),
    ])),
    since_4(route("health/checks/quorum-queues-without-elected-leaders/all-vhosts/pattern/{pattern}", &[
        get(Anyone, health::fine, "The same for queues by a pattern"),
    ])),
    since_4(route("health/checks/quorum-queues-without-elected-leaders/vhost/{vhost}", &[
        get(Anyone, health::fine, "The same for the queues of a virtual host"),
    ])),
    since_4(route("health/checks/quorum-queues-without-elected-leaders/vhost/{vhost}/pattern/{pattern}", &[
        get(Anyone, health::fine, "The same for queues of a virtual host by a pattern"),
    ])),
    route("healthchecks/node", &[get(Anyone, health::alarms_of_node, "No alarm is in effect")]),
    route("healthchecks/node/{node}", &[get(Anyone, health::alarms_of_node, "No alarm is in effect")]),
    route("leveret/auth-cache", &[
        delete(Administrator, leveret::clear_cache, "Clear the cache of auth_backends: the service is asked again about all users"),
    ]),
    broker_or_pool("leveret/clients", &[list(Monitoring, leveret::clients, "Clients, and the upstream connections that serve them")]),
    broker_or_pool("leveret/upstreams", &[list(Monitoring, leveret::upstreams, "Upstream addresses")]),
    broker_or_pool("leveret/connections", &[list(Monitoring, leveret::connections, "Upstream connections")]),
    broker_or_pool("leveret/multiplexed-queues", &[list(Monitoring, leveret::multiplexed_queues, "Queues of multiplexed subscriptions upstream")]),
    broker_or_pool("leveret/multiplexed-queues/{name}/bindings", &[
        list(Monitoring, sessions::multiplexed_bindings, "Binding keys of a queue of multiplexed subscriptions upstream"),
    ]),
    broker_or_pool("leveret/sessions", &[list(Monitoring, sessions::sessions, "MQTT and STOMP sessions in front of an upstream")]),
    broker_or_pool("leveret/shared-groups", &[list(Monitoring, sessions::shared_groups, "Groups of MQTT's shared subscriptions")]),
    broker_or_pool("leveret/retained", &[list(Monitoring, sessions::retained, "Retained MQTT messages of each virtual host upstream")]),
    broker_or_pool("leveret/spool", &[list(Monitoring, leveret::spool, "Queues of the spool, and what keeps them from being forwarded")]),
    broker_or_pool("leveret/spool/pause", &[bare(Administrator, leveret::pause_spool, "Forward nothing from the spool")]),
    broker_or_pool("leveret/spool/resume", &[bare(Administrator, leveret::resume_spool, "Accept publishes and forward them again")]),
    broker_or_pool("leveret/spool/drain", &[
        bare(Administrator, leveret::drain_spool, "Empty the spool, and let publishes go directly to the upstream then"),
    ]),
    broker_or_pool("leveret/spool/parked", &[
        list(Administrator, leveret::parked, "Messages that the upstream has refused permanently"),
        delete(Administrator, leveret::purge_parked, "Drop parked messages, all or those of a user or virtual host"),
    ]),
    broker_or_pool("leveret/spool/parked/requeue", &[
        bare(Administrator, leveret::requeue_parked, "Forward parked messages again, all or those of a user or virtual host"),
    ]),
    broker_or_pool("leveret/spool/waiting", &[
        delete(Administrator, leveret::purge_waiting, "Drop the messages of a user that are not forwarded"),
    ]),
    broker_or_pool("leveret/leases", &[get(Monitoring, leveret::leases, "Channels leased to clients, and what sharing has saved")]),
    broker_or_pool("leveret/limits", &[get(Monitoring, leveret::limits, "Limits, and how often they were exceeded")]),
    broker_or_pool("leveret/environment", &[get(Administrator, leveret::environment, "Settings in effect, and where they came from")]),
    broker_or_pool("leveret/drain", &[bare(Administrator, leveret::drain, "Shut down gracefully, as SIGTERM does")]),
    broker_or_pool("leveret/upgrade", &[
        get(Administrator, leveret::upgrade_status, "This process, and the result of the last upgrade"),
        bare(Administrator, leveret::upgrade, "Upgrade in place to the binary on the disk"),
    ]),
    broker_or_pool("leveret/migration", &[
        get(Administrator, leveret::migration, "Migration of all messages to another broker, or from there"),
        post(Administrator, leveret::start_migration, "Start or resume a migration"),
        delete(Administrator, leveret::stop_migration, "Stop a migration; messages that have moved stay there"),
    ]),
    broker_or_pool("leveret/migration/check-login", &[
        post(Administrator, leveret::check_migration_login, "Try the login of a migration at the other broker; change nothing"),
    ]),
    broker_or_pool("leveret/migration/cut-over", &[
        post(Administrator, leveret::cut_over, "Close all clients, to move the rest and become a pool"),
    ]),
    broker_or_pool("leveret/migration/finish", &[
        post(Administrator, leveret::finish_migration, "Continue after the cut-over: the last definitions are copied"),
    ]),
];

#[cfg(test)]
mod tests {
    use super::*;

    const EMBEDDED: Served = Served { has_broker: true, compatibility: Compatibility::V3_10 };

    fn names(path: &str) -> Option<Vec<String>> {
        find(path, EMBEDDED).map(|found| found.names.into_iter().map(|(_, value)| value).collect())
    }

    #[test]
    fn names_may_hold_slashes_once_they_are_encoded() {
        assert_eq!(names("/api/queues/%2F/a%2Fb%20c"), Some(vec!["/".into(), "a/b c".into()]));
        assert_eq!(names("/api/queues/%2F/"), names("/api/queues/%2F"), "as RabbitMQ has it");
        assert_eq!(names("/api/queues/%FF/q"), None, "no text");
    }

    #[test]
    fn words_go_before_names() {
        assert_eq!(names("/api/users/without-permissions"), Some(Vec::new()));
        assert_eq!(names("/api/connections/username/u"), Some(vec!["u".into()]));
        let channels = find("/api/connections/x/channels", EMBEDDED).unwrap();
        assert_eq!(channels.route.path, "connections/{name}/channels");
    }

    #[test]
    fn broker_routes_are_not_found_without_a_broker() {
        let without = Served { has_broker: false, ..EMBEDDED };
        assert!(find("/api/queues", without).is_none());
        assert!(find("/api/leveret/limits", without).is_some());
        assert!(find("/api/nope", EMBEDDED).is_none());
    }

    #[test]
    fn each_release_has_its_own_paths() {
        let rabbitmq_4 = Served { compatibility: Compatibility::V4, ..EMBEDDED };
        assert!(find("/api/version", rabbitmq_4).is_some() && find("/api/version", EMBEDDED).is_none());
        assert!(find("/api/auth", rabbitmq_4).is_none() && find("/api/auth", EMBEDDED).is_some());
    }

    #[test]
    fn changing_definitions_needs_a_policymaker_or_an_administrator() {
        let of_vhosts = ["exchanges/", "queues/", "bindings/", "connections/"];
        for route in ROUTES.iter().filter(|route| !of_vhosts.iter().any(|of| route.path.starts_with(of))) {
            for action in route.actions.iter().filter(|action| action.verb != Verb::Get) {
                assert!(matches!(action.who, Policymaker | Administrator), "{}", route.path);
            }
        }
    }

    #[test]
    fn the_allow_header_lists_methods_as_in_rabbitmq() {
        assert_eq!(find("/api/overview", EMBEDDED).unwrap().allow(), "HEAD, GET, OPTIONS");
        assert_eq!(find("/api/rebalance/queues", EMBEDDED).unwrap().allow(), "POST, OPTIONS");
    }
}
