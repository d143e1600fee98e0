//! Every setting, declared once.
//!
//! The declaration below makes the fields of [`Config`], the flags and their help, the keys of the file, the
//! variables of the environment, and docs/configuration.md. To add a setting, add it here; nothing else.

use std::time::Duration;

use super::address::{ListenAddr, UpstreamUrl};
use super::value::{ByteSize, FilePath, Limit, LogFilter, Value, WorkerThreads, within};

/// One setting, without its type: what the parser, the layers and the reference need to know of it.
pub(crate) struct Setting {
    /// The key in the file and the field of [`Config`]: `frame_max`.
    pub(crate) key: &'static str,
    /// The heading it stands under.
    pub(crate) group: &'static str,
    /// Its meaning, in lines that begin with a space.
    pub(crate) help: &'static str,
    /// What stands for its value: `ADDR`.
    pub(crate) kind: &'static str,
    /// Whether it may be given several times.
    pub(crate) repeated: bool,
    /// The default, as a user would write it.
    pub(crate) default: &'static str,
    /// The default when an upstream is configured, where it differs.
    pub(crate) default_with_upstream: Option<&'static str>,
    /// The least and the most, as a user would write them.
    pub(crate) range: Option<(&'static str, &'static str)>,
    /// Reads the texts of one layer into the configuration.
    pub(crate) apply: fn(&mut Config, &[String]) -> Result<(), String>,
    /// The value in the configuration as TOML, without secrets.
    pub(crate) to_toml: fn(&Config) -> String,
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

macro_rules! settings {
    ($(
        $group:literal {
            $(
                $(#[doc = $help:literal])+
                $key:ident: $type:ty = $default:literal
                    $(, with upstream $default_with_upstream:literal)?
                    $(, from $least:literal to $most:literal)?;
            )+
        }
    )+) => {
        /// Every setting with its effective value.
        #[derive(Debug, Clone)]
        pub(crate) struct Config {
            $($( $(#[doc = $help])+ pub(crate) $key: $type, )+)+
        }

        impl Config {
            /// The defaults without an upstream.
            ///
            /// # Panics
            ///
            /// If a default in the declaration is not a value of its type; a test reads them all.
            pub(crate) fn defaults() -> Self {
                Self {
                    $($( $key: <$type as Value>::parse($default).expect(stringify!($key)), )+)+
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
                default: $default,
                default_with_upstream: settings!(@optional $($default_with_upstream)?),
                range: settings!(@optional $(($least, $most))?),
                apply: |config, texts| {
                    let value = <$type as Value>::parse_all(texts)?;
                    $( within(&value, $least, $most)?; )?
                    config.$key = value;
                    Ok(())
                },
                to_toml: |config| config.$key.to_toml(),
            }, )+)+
        ];
    };
    (@optional) => { None };
    (@optional $value:expr) => { Some($value) };
}

settings! {
    "Listeners" {
        /// AMQP 0-9-1 for applications.
        amqp: ListenAddr = "127.0.0.1:5672", with upstream "127.0.0.1:5673";

        /// Health (`/healthz`, `/readyz`) and metrics (`/metrics`) over HTTP.
        http: ListenAddr = "127.0.0.1:15672", with upstream "127.0.0.1:15673";
    }

    "Upstream" {
        /// A broker to stand in front of, `amqp://host[:port]`; repeat it for several.
        /// Without one, Leveret is the broker itself.
        /// Clients log in upstream with their own credentials: a user, password or vhost in the URL is not used.
        upstream: Vec<UpstreamUrl> = "off";

        /// How long connecting and logging in to the upstream may take before it counts as unreachable.
        upstream_timeout: Duration = "5s", from "100ms" to "10m";

        /// How long a login the upstream accepted lets the same credentials in again without asking it.
        /// Also the longest time an old password keeps working after a change.
        auth_ttl: Duration = "30s", from "0s" to "1h";
    }

    "Broker" {
        /// A definitions file of RabbitMQ (JSON) that the embedded broker loads when it starts: vhosts, users,
        /// permissions, policies, limits, queues, exchanges and bindings.
        /// With it, only the users and vhosts that it names exist; without it, guest and `/`.
        definitions: FilePath = "off";
    }

    "Protocol" {
        /// The largest AMQP frame offered to clients, in octets, its 8 octets of framing included.
        frame_max: u32 = "131072", from "4096" to "131072";

        /// The most channels offered to a client on one connection.
        channel_max: u16 = "2047", from "1" to "65535";

        /// The heartbeat interval offered to clients, in seconds; 0 offers none.
        heartbeat: u16 = "60";

        /// The largest body of a message; a larger one is refused with 406 PRECONDITION_FAILED.
        max_message_size: ByteSize = "16MiB", from "1" to "512MiB";
    }

    "Limits and time-outs" {
        /// The most client connections in all. Each needs a file descriptor.
        max_connections: Limit = "65536";

        /// The most client connections from one IP address.
        max_connections_per_ip: Limit = "unlimited";

        /// The most client connections of one user.
        max_connections_per_user: Limit = "unlimited";

        /// Octets waiting to be written to one client above which Leveret produces no more for it until it has read.
        /// What has been begun, such as the rest of a message, is still added.
        outbox_limit: ByteSize = "1MiB", from "64KiB" to "1GiB";

        /// How long a client may take from connecting to the end of its login.
        handshake_timeout: Duration = "10s", from "100ms" to "10m";

        /// How long a client may accept nothing of what is being written to it before it is disconnected.
        write_timeout: Duration = "30s", from "100ms" to "1h";

        /// How long a delivery from the embedded broker may go unacknowledged before its channel is closed with 406
        /// PRECONDITION_FAILED.
        consumer_timeout: Duration = "30m", from "1s" to "10000h";

        /// How long shutting down waits for clients to take their last bytes and close.
        drain_timeout: Duration = "10s", from "0s" to "1h";
    }

    "Process" {
        /// What to log to standard error: a level (error, warn, info, debug, trace, off) or directives (info,proxy=debug).
        log: LogFilter = "info";

        /// Threads that run the sessions; `auto` is one for each core.
        worker_threads: WorkerThreads = "auto";
    }
}

/// Keys of the command-line contract whose feature this version does not have.
///
/// Their flags, variables and keys take `off` alone, so that a script which turns a feature off runs everywhere, and
/// anything else is an error rather than a wish ignored.
pub(crate) const UNAVAILABLE: &[&str] = &[
    "data_dir",
    "amqps",
    "mqtt",
    "mqtts",
    "stomp",
    "stomps",
    "ws",
    "wss",
    "web_mqtt",
    "web_stomp",
    "prometheus",
    "relay",
    "tls_cert",
    "tls_key",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_a_value_within_its_range() {
        let mut config = Config::defaults();
        for setting in SETTINGS {
            for default in [Some(setting.default), setting.default_with_upstream].into_iter().flatten() {
                assert_eq!((setting.apply)(&mut config, &[default.to_owned()]), Ok(()), "{}", setting.key);
            }
        }
    }

    #[test]
    fn both_ends_of_every_range_are_allowed() {
        let mut config = Config::defaults();
        for setting in SETTINGS {
            for bound in setting.range.iter().flat_map(|(least, most)| [least, most]) {
                assert_eq!((setting.apply)(&mut config, &[(*bound).to_owned()]), Ok(()), "{}", setting.key);
            }
        }
    }

    #[test]
    fn no_key_is_declared_twice() {
        let mut keys: Vec<_> =
            SETTINGS.iter().map(|setting| setting.key).chain(UNAVAILABLE.iter().copied()).collect();
        let declared = keys.len();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), declared);
    }

    #[test]
    fn flag_and_variable_follow_from_the_key() {
        let setting = SETTINGS.iter().find(|setting| setting.key == "frame_max").unwrap();
        assert_eq!(setting.flag(), "frame-max");
        assert_eq!(setting.variable(), "LEVERET_FRAME_MAX");
    }
}
