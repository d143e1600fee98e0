//! Every setting, declared once.
//!
//! The declaration below generates the fields of [`Config`], the flags and their help, the keys of the file,
//! the environment variables, and docs/configuration.md. ARCHITECTURE.md, "How to add something", lists the rest.

use std::any::Any;
use std::time::Duration;

use broker::{Compatibility, QueueKind};
use server::AccessFormat;
use transport::tls::LoginFrom;

use super::address::{ListenAddr, UpstreamUrl};
use super::choice::{
    AccessLogTarget, BrokerName, DefinitionsIf, ExchangeName, FilePaths, HostName, HttpMethodName,
    InboundHeader, LimitsMode, Networks, OptionalName, OutboundHeader, Secret, Switch, VerifyClient,
};
use super::data_dir::DataDir;
use super::login::{AuthBackendList, JwksSource, NameList, OptionalUrl, ScopeAliases, ScopePrefix};
use super::origins::Origins;
use super::relay::RelayList;
use super::relayed_upstream::UpstreamPort;
use super::requirement::{
    CACHED_BACKEND, CERTIFICATE, CLIENT_CA, CLIENT_VERIFICATION, DATA_DIR, EMBEDDED_BROKER, HTTP_BACKEND,
    HTTPS, LOGIN_BY_CERTIFICATE, OAUTH2, PROXY_PROTOCOL, Requirement, SPOOL, TRUSTED_PROXIES, UPSTREAM,
    UPSTREAM_FOR_QUORUM, UPSTREAM_OVER_TLS, WEBSOCKET,
};
use super::spool::{SpoolRules, Unsuitable};
use super::value::{
    ByteSize, FilePath, Limit, LogFilter, MessageSize, RateLimit, Value, WorkerThreads, within,
};
use super::value_error::ValueError;
use super::vhost_mapping::{CertificateVhosts, PortVhosts};
use super::watermark::Watermark;

/// One setting without its type, as the parser, the layers and the reference use it.
pub(crate) struct Setting {
    /// The key in the file and the field of [`Config`]: `frame_max`.
    pub(crate) key: &'static str,
    /// The heading that it is listed under.
    pub(crate) group: &'static str,
    /// Its description; each line begins with a space.
    pub(crate) help: &'static str,
    /// The placeholder for its value: `ADDR`.
    pub(crate) kind: &'static str,
    /// Whether it may be given several times.
    pub(crate) repeated: bool,
    /// Whether the file may contain it as tables.
    pub(crate) tables: bool,
    /// Whether it is a secret, which has no flag: every user of a machine can read its processes' command lines.
    pub(crate) is_secret: bool,
    /// RabbitMQ's variable with the same meaning; the embedded broker uses it if no layer of Leveret's sets the value.
    pub(crate) alias: Option<&'static str>,
    /// The default, in the syntax of the setting.
    pub(crate) default: &'static str,
    /// The default with an upstream, if it differs.
    pub(crate) default_with_upstream: Option<&'static str>,
    /// The minimum and the maximum, in the syntax of the setting.
    pub(crate) range: Option<(&'static str, &'static str)>,
    /// The conditions under which it may differ from its default.
    pub(super) requires: &'static [Requirement],
    /// Whether SIGHUP changes it while clients are served (`crate::reload`); other settings change at the next start.
    pub(crate) is_live: bool,
    /// Parses the texts of one layer into the configuration.
    pub(crate) apply: fn(&mut Config, &[String]) -> Result<(), ValueError>,
    /// The value in the configuration as TOML, without secrets.
    pub(crate) to_toml: fn(&Config) -> String,
    /// Copies the value from the second configuration to the first.
    pub(crate) copy: fn(&mut Config, &Config),
    /// The value itself.
    value: fn(&Config) -> &dyn Any,
}

impl Setting {
    /// The flag without its dashes: `frame-max`.
    pub(crate) fn flag(&self) -> String {
        flag(self.key)
    }

    /// The variable of the environment: `LEVERET_FRAME_MAX`.
    pub(crate) fn variable(&self) -> String {
        variable(self.key)
    }
}

/// The flag that belongs to a key.
pub(crate) fn flag(key: &str) -> String {
    key.replace('_', "-")
}

/// The variable that belongs to a key.
pub(crate) fn variable(key: &str) -> String {
    format!("LEVERET_{}", key.to_uppercase())
}

impl Config {
    /// The settings of one type with their keys, in the order of the declaration.
    pub(crate) fn of_type<T: 'static>(&self) -> impl Iterator<Item = (&'static str, &T)> {
        SETTINGS.iter().filter_map(|setting| Some((setting.key, (setting.value)(self).downcast_ref()?)))
    }
}

macro_rules! settings {
    ($(
        $group:literal {
            $(
                $(#[doc = $help:literal])+
                $key:ident: $type:ty = $default:literal
                    $(, with upstream $default_with_upstream:literal)?
                    $(, from $least:literal to $most:literal)?
                    $(, requires $requirement:ident $(and $further:ident)*)?
                    $(, also $alias:literal)?
                    $(, applied $live:ident)?;
            )+
        }
    )+) => {
        /// Every setting with its effective value.
        #[derive(Debug, Clone)]
        pub(crate) struct Config {
            $($( $(#[doc = $help])+ pub(crate) $key: $type, )+)+
        }

        impl Config {
            /// The defaults, with an upstream or without.
            ///
            /// # Panics
            ///
            /// If a default in the declaration is not a value of its type; a test reads them all.
            pub(crate) fn defaults(with_upstream: bool) -> Self {
                Self {
                    $($( $key: {
                        let with = settings!(@optional $($default_with_upstream)?).filter(|_| with_upstream);
                        <$type as Value>::parse(with.unwrap_or($default)).expect(stringify!($key))
                    }, )+)+
                }
            }
        }

        /// All settings, in the order of the reference.
        pub(crate) const SETTINGS: &[Setting] = &[
            $($( Setting {
                key: stringify!($key),
                group: $group,
                help: concat!($($help, "\n"),+),
                kind: <$type as Value>::KIND,
                repeated: <$type as Value>::REPEATED,
                tables: <$type as Value>::TABLES,
                is_secret: <$type as Value>::SECRET,
                alias: settings!(@optional $($alias)?),
                default: $default,
                default_with_upstream: settings!(@optional $($default_with_upstream)?),
                range: settings!(@range $($least, $most)?),
                requires: &[$($requirement $(, $further)*)?],
                is_live: settings!(@live $($live)?),
                apply: |config, texts| {
                    let value = <$type as Value>::parse_all(texts)?;
                    $( within(&value, $least, $most)?; )?
                    config.$key = value;
                    Ok(())
                },
                to_toml: |config| config.$key.to_toml(),
                copy: |config, other| config.$key.clone_from(&other.$key),
                value: |config| &config.$key,
            }, )+)+
        ];
    };
    (@optional) => { None::<&'static str> };
    (@optional $value:literal) => { Some($value) };
    (@range) => { None };
    (@range $least:literal, $most:literal) => { Some(($least, $most)) };
    (@live) => { false };
    (@live live) => { true };
}

settings! {
    "Listeners" {
        /// AMQP 0-9-1 for applications.
        amqp: ListenAddr = "127.0.0.1:5672", with upstream "127.0.0.1:5673";

        /// AMQP 0-9-1 over TLS; needs `tls_cert` and `tls_key`.
        amqps: ListenAddr = "off", requires CERTIFICATE;

        /// AMQP 0-9-1 over WebSocket, for browsers, at `/` and `/ws/amqp`.
        ws: ListenAddr = "127.0.0.1:15670";

        /// AMQP 0-9-1 over WebSocket and TLS; needs `tls_cert` and `tls_key`.
        wss: ListenAddr = "off", requires CERTIFICATE;

        /// MQTT 3.1, 3.1.1 and 5.0 for applications, on the embedded broker or in front of the upstream, which needs no MQTT of
        /// its own. With `upstream_mqtt` clients are relayed there instead.
        mqtt: ListenAddr = "127.0.0.1:1883", with upstream "off";

        /// MQTT over TLS; needs `tls_cert` and `tls_key`.
        mqtts: ListenAddr = "off", requires CERTIFICATE;

        /// MQTT over WebSocket, for browsers, at `/ws` (as RabbitMQ's Web-MQTT), `/mqtt` and `/`. `ws` and `wss` serve it at
        /// `/ws/mqtt`.
        web_mqtt: ListenAddr = "127.0.0.1:15675", with upstream "off";

        /// MQTT over WebSocket and TLS; needs `tls_cert` and `tls_key`.
        web_mqtts: ListenAddr = "off", requires CERTIFICATE;

        /// STOMP 1.0 to 1.2 for applications, on the embedded broker or in front of the upstream, which needs no STOMP of its
        /// own. With `upstream_stomp` clients are relayed there instead.
        stomp: ListenAddr = "127.0.0.1:61613", with upstream "off";

        /// STOMP over TLS; needs `tls_cert` and `tls_key`.
        stomps: ListenAddr = "off", requires CERTIFICATE;

        /// STOMP over WebSocket, for browsers, at `/ws` (as RabbitMQ's Web-STOMP). `ws` and `wss` serve it at `/ws/stomp`.
        web_stomp: ListenAddr = "127.0.0.1:15674", with upstream "off";

        /// STOMP over WebSocket and TLS; needs `tls_cert` and `tls_key`.
        web_stomps: ListenAddr = "off", requires CERTIFICATE;

        /// The dashboard (`/`), the management API (`/api`), health (`/healthz`, `/readyz`), metrics (`/metrics`) and a page
        /// to try AMQP over WebSocket (`/messages`).
        http: ListenAddr = "127.0.0.1:15672", with upstream "127.0.0.1:15673";

        /// The listener `http` over TLS; needs `tls_cert` and `tls_key`. RabbitMQ's management uses port 15671.
        https: ListenAddr = "off", requires CERTIFICATE;

        /// How long browsers use only TLS for this host (Strict-Transport-Security, sent with every response of `https`); with
        /// 0 the header is not sent. It applies to all ports of the host's name, `http` and other servers' among them, and
        /// browsers remember it for that time.
        https_strict: Duration = "0s", from "0s" to "20000h", requires HTTPS;

        /// The metrics (`/metrics`, `/metrics/per-object`, `/metrics/detailed`) alone, without a login, for scrapers that must
        /// not have access to `http`; RabbitMQ uses port 15692.
        prometheus: ListenAddr = "off";
    }

    "Load balancers" {
        /// Whether load balancers in front of `amqp` and `amqps` report the client's address with the PROXY protocol: `off`,
        /// `v1`, `v2`, or `any` version. Every connection from `trusted_proxies` must then begin with a header, whose address
        /// counts for limits, logs and users that may log in from this machine only. Connections from other addresses must not
        /// have a header, and are closed if they send one.
        proxy_protocol: InboundHeader = "off", requires TRUSTED_PROXIES;

        /// The addresses of the load balancers, such as `10.0.0.0/8`, or `unix` for Unix sockets; repeat it for several.
        trusted_proxies: Networks = "off", requires PROXY_PROTOCOL;
    }

    "WebSocket" {
        /// Which pages may connect: `local` for those from this machine (localhost, 127.0.0.1 and `[::1]`), hosts such as
        /// `app.example.com` or `*.example.com`, origins such as `https://app.example.com:8443`, `null` for pages without an
        /// origin, or `*` for all; repeat it for several. Others get 403. Clients that are not browsers send no origin and
        /// may always connect.
        ws_origins: Origins = "local";

        /// How long a WebSocket client may be silent before it is pinged; after the same time without an answer it is
        /// disconnected. 0 sends no pings.
        ws_ping_interval: Duration = "30s", from "0s" to "1h";

        /// With `on`, messages are compressed (permessage-deflate, RFC 7692) for clients that offer it, each by itself. Costs
        /// CPU time, and the length of encrypted messages then reveals something about their contents.
        ws_compression: Switch = "off";

        /// The addresses of reverse proxies in front of `ws` and `wss`, such as `10.0.0.0/8`, or `unix` for Unix sockets;
        /// repeat it for several. The client's address that they report in `Forwarded`, `X-Forwarded-For` or `X-Real-IP`
        /// counts for limits, logs and users that may log in from this machine only; from other addresses these headers are
        /// ignored.
        ws_trusted_proxies: Networks = "off";
    }

    "Relays and files" {
        /// A TCP server as a WebSocket endpoint: `LISTEN=URL`, where LISTEN is an address to listen on or a path of `ws` and
        /// `wss`, and URL is `tcp://host:port`, `tls://host:port` or `unix:/path`; repeat it for several. In the file a
        /// table `[[relay]]` with the keys below.
        relay: RelayList = "off";

        /// A directory whose files are served to requests that are not WebSocket handshakes, on `ws`, `wss` and the listeners
        /// of relays: with ranges and conditions, `index.html` for directories, no listings, no hidden files, and no links
        /// out of it.
        webroot: FilePath = "off", requires WEBSOCKET;
    }

    "TLS" {
        /// The certificate and its chain for TLS listeners, as PEM. Repeat it, with `tls_key`, for several: the certificate for
        /// the name that the client requests (SNI) is used, or else the first. Read again on SIGHUP.
        tls_cert: FilePaths = "off";

        /// The private key of `tls_cert`, as PEM, not encrypted. Read again on SIGHUP.
        tls_key: FilePaths = "off";

        /// Whether clients of TLS listeners present a certificate: `off`, `optional` or `required`. It must be issued by
        /// `tls_client_ca`, and can be used to log in (SASL EXTERNAL) at the embedded broker, and upstream if
        /// `upstream_external` maps it.
        tls_verify_client: VerifyClient = "off", requires CLIENT_CA;

        /// The CA certificates that verify client certificates, as PEM. Read again on SIGHUP.
        tls_client_ca: FilePath = "off", requires CLIENT_VERIFICATION;

        /// Which part of a client's certificate is its user name for EXTERNAL: `distinguished_name` (such as
        /// `CN=worker,O=example`), `common_name`, `subject_alternative_name` (the first DNS name), `san_email` or
        /// `san_uri`.
        tls_login_from: LoginFrom = "distinguished_name";
    }

    "Upstream" {
        /// The broker to forward clients to, `amqp://host[:port]` or `amqps://host[:port]`; repeat it for several. Without
        /// one, Leveret is the broker itself. Clients log in upstream with their own credentials: a user, password or vhost in
        /// the URL is not used.
        upstream: Vec<UpstreamUrl> = "off";

        /// The upstream's MQTT port, `tcp://host:port`, `tls://host:port` or `unix:/path`, to which `mqtt`, `mqtts`, `web_mqtt`
        /// and `web_mqtts` relay their clients, byte by byte. Without it Leveret terminates MQTT sessions, and they share the
        /// upstream connections with AMQP clients.
        upstream_mqtt: UpstreamPort = "off", requires UPSTREAM;

        /// The upstream's STOMP port, `tcp://host:port`, `tls://host:port` or `unix:/path`, to which `stomp`, `stomps`,
        /// `web_stomp` and `web_stomps` relay their clients, byte by byte. Without it Leveret terminates STOMP sessions, and
        /// they share the upstream connections with AMQP clients.
        upstream_stomp: UpstreamPort = "off", requires UPSTREAM;

        /// How long connecting and logging in to the upstream may take before it counts as unreachable.
        upstream_timeout: Duration = "5s", from "100ms" to "10m";

        /// The CA certificates that verify the certificate of an `amqps://` upstream, as PEM; `off` for the system's. Read
        /// again on SIGHUP.
        upstream_ca: FilePath = "off", requires UPSTREAM_OVER_TLS;

        /// A certificate to present to `amqps://` upstreams that ask for one, as PEM. Read again on SIGHUP.
        upstream_cert: FilePath = "off", requires UPSTREAM_OVER_TLS;

        /// The private key of `upstream_cert`, as PEM, not encrypted. Read again on SIGHUP.
        upstream_key: FilePath = "off";

        /// The name that an `amqps://` upstream's certificate must match; `off` for the host of its URL.
        upstream_server_name: HostName = "off", requires UPSTREAM_OVER_TLS;

        /// Whether the certificate of an `amqps://` upstream is verified. With `off` anyone on the network path can read
        /// everything, passwords included; a warning is logged at startup.
        upstream_verify: Switch = "on", requires UPSTREAM_OVER_TLS;

        /// A PROXY protocol header at the start of each connection to the upstream: `off`, `v1` or `v2`. It contains Leveret's
        /// own address, since a connection may later carry other clients; to `upstream_mqtt` and `upstream_stomp`, whose
        /// connections carry one client each, it contains that client's address.
        upstream_proxy_protocol: OutboundHeader = "off";

        /// A TOML file with the upstream credentials of clients that log in by certificate (SASL EXTERNAL) on TLS listeners:
        /// for each identity, as selected by `tls_login_from`, a table such as `["CN=worker,O=example"]` with the keys `user`
        /// and `password`. Other identities are refused, and without the file EXTERNAL is not offered. Read again on SIGHUP.
        upstream_external: FilePath = "off", requires UPSTREAM and LOGIN_BY_CERTIFICATE;

        /// How long a login that the upstream accepted admits the same credentials again without asking it. Also the longest
        /// time an old password keeps working after a change.
        auth_ttl: Duration = "30s", from "0s" to "1h";

        /// Maximum number of upstream connections that clients with the same user, password and vhost share for publishing, and
        /// the same number for everything else. Another one is opened when the existing ones are busy or full.
        upstream_connections_max: u16 = "8", from "1" to "1024";

        /// How many of these connections stay open while idle, unless another user or virtual host needs a connection.
        upstream_connections_min: u16 = "0", from "0" to "1024";

        /// Maximum number of channels on an upstream connection that clients share, if the upstream allows as many.
        upstream_channels_max: u16 = "1000", from "1" to "65535";

        /// Maximum number of upstream connections in all, dedicated ones included. Each needs a file descriptor. A client that
        /// needs one more waits for `upstream_arrival_max`; idle ones are evicted.
        upstream_connections_total: u32 = "4096", from "1" to "1000000";

        /// An upstream connection, or a channel on one, that has been idle for this long is closed.
        upstream_idle_timeout: Duration = "60s", from "100ms" to "24h";

        /// How long clients whose upstream connection is lost wait for an upstream to be reachable again, before they get 320
        /// CONNECTION_FORCED. With `0s` only an upstream that is reachable immediately is used, and no client waits.
        upstream_outage_max: Duration = "60s", from "0s" to "24h";

        /// How long a client that is logging in when the upstreams become unreachable waits for one to be reachable again,
        /// before its connection is closed without an answer. It is admitted only when an upstream has accepted its
        /// credentials. While no upstream is known to be reachable, connections are closed immediately, as by a broker that is
        /// down. Also how long a client waits that needs an upstream connection while there are `upstream_connections_total`,
        /// or a channel while all shared ones are in use; then 506 RESOURCE_ERROR ends it.
        upstream_arrival_max: Duration = "3s", from "0s" to "10m";

        /// The heartbeat interval requested from upstreams, in seconds; the upstream may ask for a shorter one. One that is
        /// silent for two intervals counts as lost. 0 sends none.
        upstream_heartbeat: u16 = "30";

        /// How many bytes may wait for a client that consumes on a shared upstream connection. Above that its consumers move to
        /// a dedicated connection, and their unacknowledged messages are redelivered. Consumers without acknowledgements or
        /// prefetch, and those whose prefetch stands for more (at 1 KiB for each message), use a dedicated connection from the
        /// start; with 0 all do.
        upstream_consumer_budget: ByteSize = "4MiB", from "0" to "1GiB";

        /// How many bytes of a client's frames may wait for an upstream's answer, such as a confirm, before the client is no
        /// longer read. They are buffered to be sent again when the upstream connection is lost.
        upstream_replay_client: ByteSize = "8MiB", from "64KiB" to "1GiB";

        /// How many bytes of all clients' frames together may wait for an upstream's answer before the clients are no longer
        /// read.
        upstream_replay_total: ByteSize = "256MiB", from "1MiB" to "64GiB";

        /// How many bytes of messages may wait for all slow MQTT and STOMP clients whose subscriptions share a queue upstream.
        /// A client may take no more of it than the others have left, however high `mqtt_queue_max` is.
        upstream_inbox_total: ByteSize = "256MiB", from "1MiB" to "64GiB";
    }

    "Spool" {
        /// Which publishes of AMQP clients are confirmed as soon as they are on this host's disk, and forwarded to the upstream
        /// later: a rule with regular expressions for `vhost`, `user` and `exchange`, each of them optional; repeat it for
        /// several. In the file a table `[[spool]]`. `^$` is the default exchange. They are stored in the directory `spool` of
        /// `data_dir`. docs/spool.md says when a spool is useful, and when not.
        spool: SpoolRules = "off", requires UPSTREAM and DATA_DIR;

        /// How many bytes may wait in the spool. At the limit, clients that publish to it are blocked (connection.blocked)
        /// until there is 5% less. Parked messages count, and may take half of it. A user in a virtual host may take three
        /// quarters of what parked messages and the other users leave, so that none of them blocks the others. The free space
        /// of the disk limits it as well (`disk_free_limit`).
        spool_max_bytes: ByteSize = "1GiB", from "1MiB" to "64TiB", requires SPOOL;

        /// How old the oldest message in the spool may become before its publishers are blocked in the same way.
        spool_max_age: Duration = "24h", from "1s" to "10000h", requires SPOOL;

        /// For how long the upstream may answer a message with basic.nack at each attempt, as for a full queue with
        /// `reject-publish`, and everything else for its exchange and routing key, before the message is parked and those
        /// after it continue; `0s` for no limit. It should be well below `spool_max_age`.
        spool_nacked_max: Duration = "12h", from "0s" to "10000h", requires SPOOL;

        /// How long a user name and password that the upstream has accepted for a virtual host may log in and publish to the
        /// spool while no upstream is reachable, also across restarts of Leveret; `0s` disables it. Passwords are stored as
        /// salted hashes, which leave the disk after that time. Once the upstream is reachable again, clients that it refuses
        /// are closed.
        spool_auth_max: Duration = "24h", from "0s" to "10000h", requires SPOOL;

        /// The treatment of publishes that a rule matches but that cannot be spooled: mandatory or immediate ones, those on a
        /// channel with tx, or above `spool_message_max`. `direct` sends them to the upstream as without a rule, `refuse`
        /// closes their channel with 406 PRECONDITION_FAILED. Requests and replies by direct reply-to are always direct.
        spool_unsuitable: Unsuitable = "direct", requires SPOOL;

        /// Maximum body size of a message that is spooled. See `spool_unsuitable` for larger ones.
        spool_message_max: ByteSize = "16MiB", from "0" to "512MiB", requires SPOOL;
    }

    "Broker" {
        /// The user that the embedded broker creates at the first start: with an empty data directory or with none, or when
        /// nothing but guest has been defined since. It has the tag administrator, and all permissions in `default_vhost`. It
        /// is guest with the password guest unless this or a password says otherwise; any other user needs a password here. A
        /// user named guest, whatever its password, may log in from this machine only; all others from anywhere. Later starts
        /// change no user.
        default_user: BrokerName = "guest", requires EMBEDDED_BROKER, also "RABBITMQ_DEFAULT_USER";

        /// The password of `default_user`; `off` for that of guest. There is no flag for it, since command lines are visible
        /// to all users of a machine.
        default_password: Secret = "off", requires EMBEDDED_BROKER, also "RABBITMQ_DEFAULT_PASS";

        /// A file whose first line is the password of `default_user`, such as a secret of Docker or Kubernetes.
        default_password_file: FilePath = "off", requires EMBEDDED_BROKER, also "RABBITMQ_DEFAULT_PASS_FILE";

        /// The virtual host that the embedded broker creates together with `default_user`.
        default_vhost: BrokerName = "/", requires EMBEDDED_BROKER, also "RABBITMQ_DEFAULT_VHOST";

        /// A definitions file of RabbitMQ (JSON) that the embedded broker loads when `definitions_if` says so: vhosts, users,
        /// permissions, policies, limits, queues, exchanges and bindings. With such a file `default_user` and `default_vhost`
        /// are created only if a password for that user is given.
        definitions: FilePath = "off", requires EMBEDDED_BROKER;

        /// When `definitions` are loaded: `empty` for once, by a broker that has no users, virtual hosts, permissions,
        /// policies or parameters of its operator's yet (as for `default_user`); `always` for every start. Then the contents
        /// of the file are added to those of the data directory, and users, passwords, permissions, policies and limits that
        /// differ are overwritten, those included that were changed since the last start.
        definitions_if: DefinitionsIf = "empty", requires EMBEDDED_BROKER;

        /// The directory where the embedded broker, or a spool, stores what must survive a restart; one process at a time can
        /// use it. `auto` is `$STATE_DIRECTORY` (systemd sets it), else `$XDG_STATE_HOME/leveret`, else
        /// `~/.local/state/leveret`. With `off` everything is in memory only.
        data_dir: DataDir = "auto";

        /// How much memory this process may use before clients that publish to the embedded broker, or to a spool, are
        /// blocked: they are not read, and notified by connection.blocked, until it uses 5% less. A share of this machine's
        /// memory, or of what the control group (container) of this process may use; or a size. Clients that only consume are
        /// never blocked.
        memory_high_watermark: Watermark = "0.6", applied live;

        /// How much memory the ready messages of all queues may take before messages of long queues are paged out: persistent
        /// ones of durable queues are on disk anyway, the others are written under `data_dir`. They are paged in as they are
        /// consumed. Each queue keeps its first and its last messages in memory, together about 200 KiB, or 1.5 MiB while it is
        /// consumed; less, if paging out long queues does not suffice. A share or a size, as above; 0 pages out immediately,
        /// `off` never. Has no effect without a data directory.
        memory_paging_watermark: Watermark = "0.2";

        /// The free space on the file system of `data_dir` below which clients that publish are blocked in the same way,
        /// until there is 5% more. Has no effect without a data directory.
        disk_free_limit: ByteSize = "50MB", applied live;
    }

    "Authentication and authorisation" {
        /// The auth backends that decide whether a client may log in to the embedded broker, asked in this order until one
        /// accepts it; repeat it for several, as RabbitMQ's `auth_backends`. `internal` is the broker's own list of users,
        /// `oauth2` accepts JSON Web Tokens instead of passwords, `http` asks a service about each login and operation, and
        /// `cache:http` reuses its answers for a while. Of two with a plus, such as `internal+http`, the first checks the
        /// password and the second the permissions. In front of an upstream the upstream decides.
        auth_backends: AuthBackendList = "internal", requires EMBEDDED_BROKER;

        /// The URL (`https://` or `http://`) where `http` asks whether a user may log in, as RabbitMQ's `auth_http.user_path`.
        auth_http_user_path: OptionalUrl = "off", requires HTTP_BACKEND;

        /// The URL where `http` asks whether a user may open a virtual host, as `auth_http.vhost_path`.
        auth_http_vhost_path: OptionalUrl = "off", requires HTTP_BACKEND;

        /// The URL where `http` asks whether a user may use a queue or an exchange, as `auth_http.resource_path`.
        auth_http_resource_path: OptionalUrl = "off", requires HTTP_BACKEND;

        /// The URL where `http` asks whether a user may use a routing key of a topic exchange, as `auth_http.topic_path`.
        auth_http_topic_path: OptionalUrl = "off", requires HTTP_BACKEND;

        /// The HTTP method of `http`, as RabbitMQ's `auth_http.http_method`: `get` has passwords in the URL, which logs may
        /// show; `post` has them in a form.
        auth_http_method: HttpMethodName = "get", requires HTTP_BACKEND;

        /// The CA certificates that verify the certificate of an `https://` service, as PEM; `off` for the system's. Read again
        /// on SIGHUP.
        auth_http_ca: FilePath = "off", requires HTTP_BACKEND;

        /// How long the service may take to accept a connection, as RabbitMQ's `auth_http.connection_timeout`.
        auth_http_connection_timeout: Duration = "3s", from "10ms" to "1m", requires HTTP_BACKEND;

        /// How long the service may take in all before a login or an operation is refused, as RabbitMQ's
        /// `auth_http.request_timeout`.
        auth_http_request_timeout: Duration = "5s", from "10ms" to "1m", requires HTTP_BACKEND;

        /// How long `cache:http` reuses an answer, as RabbitMQ's `auth_cache.cache_ttl`.
        auth_cache_ttl: Duration = "15s", from "1ms" to "24h", requires CACHED_BACKEND;

        /// Whether `cache:http` reuses refusals as well, as RabbitMQ's `auth_cache.cache_refusals`.
        auth_cache_refusals: Switch = "off", requires CACHED_BACKEND;

        /// The name of this server in tokens, as RabbitMQ's `auth_oauth2.resource_server_id`: it has to be in a token's `aud`.
        oauth2_resource_server_id: OptionalName = "off", requires OAUTH2;

        /// The keys that tokens are verified with, a JSON Web Key Set: a file, or a URL (`https://` or `http://`). A file is
        /// read again on SIGHUP, and when a token names a key that is not in it; a URL is read again in the same case, every
        /// 10 seconds at most, and once the keys are 5 minutes old. Only a file may have symmetric keys (HS256 to HS512).
        oauth2_jwks: JwksSource = "off", requires OAUTH2;

        /// The CA certificates that verify the server of an `https://` URL in `oauth2_jwks`, as PEM; `off` for the system's.
        /// Read again on SIGHUP.
        oauth2_jwks_ca: FilePath = "off", requires OAUTH2;

        /// Whether a token's `aud` has to name `oauth2_resource_server_id`, as RabbitMQ's `auth_oauth2.verify_aud`.
        oauth2_verify_aud: Switch = "on", requires OAUTH2;

        /// Only scopes with this prefix count, and it is removed from them, as RabbitMQ's `auth_oauth2.scope_prefix`: `auto`
        /// for `oauth2_resource_server_id` and a dot, `none` for no prefix.
        oauth2_scope_prefix: ScopePrefix = "auto", requires OAUTH2;

        /// The claims that may name the user; the first one present counts. Repeat it for several. `sub` and `client_id` follow
        /// them, as in RabbitMQ's `auth_oauth2.preferred_username_claims`.
        oauth2_username_claims: NameList = "off", requires OAUTH2;

        /// Further claims with scopes, as RabbitMQ's `auth_oauth2.additional_scopes_key`: paths such as `realm_access.roles`;
        /// repeat it for several.
        oauth2_additional_scopes: NameList = "off", requires OAUTH2;

        /// Scopes or roles that stand for others, `ALIAS=SCOPES` with blanks between the scopes; repeat it for several, as
        /// RabbitMQ's `auth_oauth2.scope_aliases`.
        oauth2_scope_aliases: ScopeAliases = "off", requires OAUTH2;
    }

    "Protocol" {
        /// Maximum size of an AMQP frame offered to clients, in bytes, its 8 bytes of framing included.
        frame_max: u32 = "131072", from "4096" to "131072";

        /// Maximum number of channels offered to a client on one connection.
        channel_max: u16 = "2047", from "1" to "65535";

        /// The heartbeat interval offered to clients, in seconds; 0 offers none.
        heartbeat: u16 = "60";

        /// The RabbitMQ release that the embedded broker is compatible with, and whose version it reports: `3.10`, or `4`
        /// (4.3). With `4` quorum queues have a delivery limit of 20 by default, dead letters carry x-last-death headers and a
        /// client's own x-death is ignored, basic.qos applies to each consumer, and refusals name the missing permission; MQTT
        /// clients get the same queues as in RabbitMQ 4, and AMQP clients see MQTT messages as they do there.
        compatibility: Compatibility = "3.10", requires EMBEDDED_BROKER;

        /// The `product` in the server-properties that AMQP clients of the embedded broker receive. The `version` there is
        /// that of the RabbitMQ it behaves as. Clients that check for RabbitMQ before they use its extensions need `RabbitMQ`
        /// here. Through the pool they receive that of the upstream.
        server_product: BrokerName = "Leveret";

        /// The virtual host of MQTT clients whose user name does not begin with one (`vhost:user`).
        mqtt_vhost: BrokerName = "/";

        /// The virtual hosts of MQTT clients by the server port that they connect to, `PORT=VHOST`, as RabbitMQ's global
        /// parameter mqtt_port_to_vhost_mapping. `mqtt_certificate_vhosts` takes precedence, and so does a virtual host in the
        /// user name unless the client has a certificate with a name for `tls_login_from`; all other clients are in
        /// `mqtt_vhost`.
        mqtt_port_vhosts: PortVhosts = "off";

        /// The virtual hosts of MQTT clients by their certificates, `NAME=VHOST` with the name selected by `tls_login_from`, as
        /// RabbitMQ's global parameter mqtt_default_vhosts. Takes precedence over everything else.
        mqtt_certificate_vhosts: CertificateVhosts = "off", requires LOGIN_BY_CERTIFICATE;

        /// The user whose permissions apply to MQTT clients without a user name; with `off` they are refused. A user that may
        /// log in from this machine only, such as guest, admits only local clients. In front of an upstream it needs an entry
        /// in `upstream_external`.
        mqtt_anonymous_user: OptionalName = "off";

        /// The user whose permissions apply to STOMP clients without a login, as RabbitMQ's `stomp.default_user`, but without a
        /// password; with `off` they are refused. A user that may log in from this machine only, such as guest, admits only
        /// local clients.
        stomp_default_user: OptionalName = "off";

        /// The exchange of MQTT clients, as RabbitMQ's `mqtt.exchange`: their messages are published to it, and their
        /// subscriptions' queues are bound to it. It must exist in each virtual host that clients use, as a topic exchange;
        /// while it is missing, clients that publish or subscribe are refused. All servers with the same clients need the same
        /// one. STOMP's `/topic/` destinations always use `amq.topic`.
        mqtt_exchange: ExchangeName = "amq.topic";

        /// The type of the durable queues that MQTT clients have in front of an upstream, `classic` or `quorum`, as RabbitMQ's
        /// `mqtt.durable_queue_type`, with which it must agree if RabbitMQ's own listener has the same clients: of sessions
        /// that outlive their connections, and of shared subscriptions. Queues that are there are used whatever their type.
        /// RabbitMQ drops a message of a quorum queue that was returned to it too often (20 times in RabbitMQ 4), here by a
        /// client that disconnects before it has acknowledged it.
        mqtt_durable_queue_type: QueueKind = "classic", requires UPSTREAM_FOR_QUORUM;

        /// The longest time that an MQTT session is kept after its connection has ended, with its subscriptions and messages.
        /// Persistent sessions of MQTT 3.1 and 3.1.1 (clean session off) expire after exactly this time. In front of an
        /// upstream whose own MQTT listener has the same clients, it must be the same as there.
        mqtt_session_expiry_max: Duration = "24h", from "0s" to "10000h";

        /// How many bytes of messages may wait for a slow MQTT client. Above that its oldest messages of QoS 0 are dropped, as
        /// RabbitMQ does above `mqtt.mailbox_soft_limit` messages. In front of an upstream a client whose other messages exceed
        /// it is closed (0x97 Quota exceeded in MQTT 5.0). Queues of persistent sessions, and on the embedded broker all
        /// messages of QoS 1 and 2, are ordinary queues, which this does not limit.
        mqtt_queue_max: ByteSize = "4MiB", from "1MiB" to "1GiB";

        /// Maximum number of messages of QoS 1 and 2 that an MQTT client has received and not acknowledged, as RabbitMQ's
        /// `mqtt.prefetch` (10 there); a client of MQTT 5.0 may ask for fewer (Receive Maximum). A client gets no more than
        /// this many in a round trip: 20 are 1,000 a second over 20 ms, where 100 would be 5,000. On one machine more than 20
        /// made no client faster, and all that a client has not acknowledged is sent again when it reconnects. In front of an
        /// upstream a persistent session takes a KiB of `upstream_consumer_budget` for each; above that it has a dedicated
        /// upstream connection.
        mqtt_prefetch: u16 = "20", from "1" to "65535";

        /// Maximum Keep Alive of MQTT clients, in whole seconds: a client of MQTT 5.0 that asks for a longer one, or for none,
        /// gets this one (Server Keep Alive), and is disconnected after one and a half times as long without a packet. Older
        /// clients keep theirs. With `0s` clients choose.
        mqtt_keep_alive_max: Duration = "0s", from "0s" to "65535s";

        /// Maximum body size of a message, up to 512MiB; a larger one is refused with 406 PRECONDITION_FAILED. With `unlimited`
        /// the upstream decides; the embedded broker then accepts up to 512MiB. MQTT and STOMP accept at most 16 MiB.
        max_message_size: MessageSize = "128MiB", with upstream "unlimited";
    }

    "Limits and timeouts" {
        /// Maximum number of client connections in all. Each needs a file descriptor: a low limit of open files lowers it.
        max_connections: Limit = "65536", applied live;

        /// Maximum number of client connections from one IP address. Here and below an IPv6 address counts as its /64 network,
        /// all of which one client may have.
        max_connections_per_ip: Limit = "unlimited", applied live;

        /// Maximum number of client connections of one user.
        max_connections_per_user: Limit = "unlimited", applied live;

        /// Maximum number of new client connections a second in all, and in a burst.
        max_connection_rate: Limit = "unlimited", applied live;

        /// Maximum number of new client connections a second from one IP address.
        max_connection_rate_per_ip: Limit = "unlimited", applied live;

        /// Maximum number of logins a second of one user.
        max_connection_rate_per_user: Limit = "unlimited", applied live;

        /// Maximum number of channels in all. A client that opens another is closed with 530 NOT_ALLOWED.
        max_channels: Limit = "unlimited", applied live;

        /// Maximum number of channels of all connections from one IP address.
        max_channels_per_ip: Limit = "unlimited", applied live;

        /// Maximum number of channels of all connections of one user.
        max_channels_per_user: Limit = "unlimited", applied live;

        /// Maximum number of bytes a second that are read from all clients together, and in a burst. Data above the rate is
        /// read later, which is not an error. Logins do not count.
        max_receive_rate: RateLimit = "unlimited", applied live;

        /// Maximum number of bytes a second that are read from one IP address.
        max_receive_rate_per_ip: RateLimit = "unlimited", applied live;

        /// Maximum number of bytes a second that are read from one user.
        max_receive_rate_per_user: RateLimit = "unlimited", applied live;

        /// The effect of the limits above: `enforce` refuses or delays what exceeds them; `alarm` refuses nothing, but counts
        /// (`leveret_limit_exceeded_total`) and logs what would have been refused.
        limits_mode: LimitsMode = "enforce", applied live;

        /// Bytes waiting to be written to a client above which Leveret produces nothing more for it until it has read. A
        /// message that has been begun is still completed.
        outbox_limit: ByteSize = "1MiB", from "64KiB" to "1GiB";

        /// How long a client may take from connecting to the end of its login.
        handshake_timeout: Duration = "10s", from "100ms" to "10m";

        /// How long a client may accept none of the data being written to it before it is disconnected.
        write_timeout: Duration = "30s", from "100ms" to "1h";

        /// How long a delivery from the embedded broker may go unacknowledged before its channel is closed with 406
        /// PRECONDITION_FAILED.
        consumer_timeout: Duration = "30m", from "1s" to "10000h";

        /// Whether to take over the listening sockets of the running process with these listeners, if there is one; no
        /// connection is refused, and that process shuts down. It is found by its user and its first address.
        take_over: Switch = "off";

        /// How long a server that shuts down continues to serve while `/readyz` already answers 503: time for load balancers
        /// to send new clients elsewhere.
        drain_delay: Duration = "0s", from "0s" to "1h", applied live;

        /// The time over which clients are then asked to leave, one after the other, so that they do not all reconnect
        /// elsewhere at the same time. No new connections are accepted.
        drain_spread: Duration = "0s", from "0s" to "1h", applied live;

        /// How long shutting down waits for clients to take their last bytes and close, counted from the end of
        /// `drain_spread`.
        drain_timeout: Duration = "10s", from "0s" to "1h", applied live;

        /// The part of `drain_timeout` that idle clients get, which have only their connection to close.
        drain_idle_timeout: Duration = "2s", from "0s" to "1h";
    }

    "Process" {
        /// The events to log to standard error: a level (error, warn, info, debug, trace, off) or directives
        /// (info,proxy=debug).
        log: LogFilter = "info", applied live;

        /// The target of the access log: one line for each login and for each connection that ends (except relayed ones), with
        /// addresses, user, virtual host, bytes, messages and the reason: `stderr`, a file (reopened on SIGHUP), or `off`.
        /// Lines that cannot be written in time are dropped and counted. They replace the corresponding lines of the log.
        access_log: AccessLogTarget = "off";

        /// The format of the access log: `text` or `json`.
        access_log_format: AccessFormat = "text";

        /// The number of threads for busy sessions, `auto` for one per core; one more thread serves all others.
        worker_threads: WorkerThreads = "auto";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_a_value_within_its_range() {
        let mut config = Config::defaults(false);
        for setting in SETTINGS {
            for default in [Some(setting.default), setting.default_with_upstream].into_iter().flatten() {
                assert_eq!((setting.apply)(&mut config, &[default.to_owned()]), Ok(()), "{}", setting.key);
            }
        }
    }

    #[test]
    fn both_ends_of_every_range_are_allowed() {
        let mut config = Config::defaults(false);
        for setting in SETTINGS {
            for bound in setting.range.iter().flat_map(|(least, most)| [least, most]) {
                assert_eq!((setting.apply)(&mut config, &[(*bound).to_owned()]), Ok(()), "{}", setting.key);
            }
        }
    }

    #[test]
    fn no_key_is_declared_twice() {
        let mut keys: Vec<_> = SETTINGS.iter().map(|setting| setting.key).collect();
        let declared = keys.len();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), declared);
    }

    #[test]
    fn every_protocol_has_its_listeners_and_its_upstream_port_among_the_settings() {
        let config = Config::defaults(false);
        for protocol in &server::PROTOCOLS {
            for listener in &protocol.listeners {
                config.listen_address(listener.setting);
            }
            let ports: Vec<_> = config.of_type::<UpstreamPort>().map(|(key, _)| key).collect();
            assert!(protocol.upstream_port.is_none_or(|port| ports.contains(&port)), "{}", protocol.name);
        }
    }

    #[test]
    fn flag_and_variable_follow_from_the_key() {
        let setting = SETTINGS.iter().find(|setting| setting.key == "frame_max").unwrap();
        assert_eq!(setting.flag(), "frame-max");
        assert_eq!(setting.variable(), "LEVERET_FRAME_MAX");
    }
}
