//! The command line of `bench websockets`, and the checked plan that it becomes.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};

use super::target::{CarriedProtocol, WebSocketTarget};
use crate::error::Error;
use crate::study::arguments::OutputArguments;
use crate::study::expect::{Condition, conditions};
use crate::usage::{as_seconds, check, seconds};

/// Open many WebSocket connections, each with a subscription; measure their memory and CPU time
#[derive(Debug, Clone, Args)]
pub(crate) struct WebSocketsArguments {
    /// The system under test, as protocol+ws://host:port/path; the protocol is amqp, mqtt or stomp
    #[arg(
        long,
        value_name = "URI",
        conflicts_with = "systems",
        default_value = "amqp+ws://127.0.0.1:15670/ws/amqp"
    )]
    pub(crate) uri: String,
    /// A system under test with a name, and process ids to sample; repeat for several, which take turns
    #[arg(long = "system", value_name = "NAME=PROTOCOL+ws://HOST:PORT/PATH[,pid=N]")]
    pub(crate) systems: Vec<String>,
    /// Numbers of connections to measure at, ascending [default: 5000,15000,20000]
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    pub(crate) connections: Vec<u32>,
    /// Measure at each number for this long, in seconds [default: 60]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) hold: Option<f64>,
    /// Each connection publishes a message to itself this often, in seconds, a tenth more or less
    #[arg(long, value_name = "SECONDS", default_value_t = 55.0)]
    pub(crate) interval: f64,
    /// Topics that the connections share, each the next one in turn; a message then reaches all subscribers of its topic. For
    /// MQTT and STOMP [default: each connection has its own]
    #[arg(long, value_name = "N")]
    pub(crate) topics: Option<u32>,
    /// Heartbeat (AMQP, STOMP) or keep-alive (MQTT) to ask for, in seconds; 0 is none
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub(crate) heartbeat: u16,
    /// Connections to open at a time
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub(crate) opening: usize,
    /// Loopback addresses to connect from, from 127.0.0.2 on; each has some 28,000 ports
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(crate) sources: u8,
    /// Open no more once the system's processes use this much memory, in MiB
    #[arg(long, value_name = "MIB")]
    pub(crate) memory_limit: Option<u64>,
    /// Rounds of the whole measurement with each system; systems take turns
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) rounds: usize,
    /// Few connections for a short time, to see that everything works
    #[arg(long)]
    pub(crate) quick: bool,
    /// Fail unless this holds at every number of connections, such as 'rss_each<16KiB', or at one, as
    /// '@5000: ratio(a/b, rss_each)<0.1'; may be repeated
    #[arg(long, value_name = "CONDITION")]
    pub(crate) expect: Vec<String>,
    #[command(flatten)]
    pub(crate) outputs: OutputArguments,
}

/// The settings for all systems.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct WebSocketsSettings {
    /// Numbers of connections to measure at.
    pub(crate) connections: Vec<u32>,
    /// How long to measure at each; in seconds where serialised.
    #[serde(with = "as_seconds")]
    pub(crate) hold: Duration,
    /// How often a connection publishes; in seconds where serialised.
    #[serde(with = "as_seconds")]
    pub(crate) interval: Duration,
    /// Topics that the connections share; `None` if each has its own.
    #[serde(default)]
    pub(crate) topics: Option<u32>,
    /// Heartbeat or keep-alive to ask for; in seconds where serialised.
    #[serde(with = "as_seconds")]
    pub(crate) heartbeat: Duration,
    /// Connections being opened at a time.
    pub(crate) opening: usize,
    /// Loopback addresses to connect from.
    pub(crate) sources: u8,
    /// Memory of the system in bytes beyond which no more connections are opened.
    pub(crate) memory_limit: Option<u64>,
    /// Rounds of the whole measurement with each system.
    pub(crate) rounds: usize,
}

/// Describes the settings for reports.
impl fmt::Display for WebSocketsSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (interval, heartbeat) = (self.interval.as_secs_f64(), self.heartbeat.as_secs());
        match self.topics {
            None => write!(f, "a message of each connection to itself every {interval} s")?,
            Some(topics) => {
                write!(f, "a message of each connection to one of {topics} topics every {interval} s")?
            }
        }
        write!(f, ", heartbeats of {heartbeat} s, measured for {} s", self.hold.as_secs_f64())
    }
}

/// A checked command line.
#[derive(Debug, Clone)]
pub(crate) struct WebSocketsPlan {
    /// The systems, in the order given.
    pub(crate) systems: Vec<WebSocketTarget>,
    /// The settings for all systems.
    pub(crate) settings: WebSocketsSettings,
    /// Conditions on the result.
    pub(super) expectations: Vec<Condition>,
}

/// The scenario name of these cells, as used in expectations.
pub(crate) const HELD: &str = "held";

impl WebSocketsArguments {
    /// Checks the arguments.
    ///
    /// # Errors
    /// A description of the problem, for the command line.
    pub(crate) fn plan(&self) -> Result<WebSocketsPlan, Error> {
        let named = match self.systems.as_slice() {
            [] => vec![format!("default={}", self.uri)],
            systems => systems.to_vec(),
        };
        let systems: Vec<WebSocketTarget> =
            named.iter().map(|text| WebSocketTarget::parse(text)).collect::<Result<_, _>>()?;
        let (usual, hold): (&[u32], _) = if self.quick { (&[50, 100], 2.0) } else { (&USUAL, 60.0) };
        let connections = if self.connections.is_empty() { usual.to_vec() } else { self.connections.clone() };
        check(connections.is_sorted_by(|one, next| one < next), "--connections must ascend")?;
        check(connections[0] > 0, "--connections must be at least 1")?;
        check(self.rounds > 0, "--rounds must be at least 1")?;
        check(self.opening > 0, "--opening must be at least 1")?;
        check(self.sources > 0, "--sources must be at least 1")?;
        check(self.topics != Some(0), "--topics must be at least 1")?;
        let has_queues = systems.iter().any(|system| system.target.protocol == CarriedProtocol::Amqp);
        check(
            self.topics.is_none() || !has_queues,
            "--topics is for MQTT and STOMP: each AMQP client has a queue",
        )?;
        let interval = seconds("--interval", self.interval)?;
        check(!interval.is_zero(), "--interval must be above 0")?;
        let settings = WebSocketsSettings {
            connections,
            hold: seconds("--hold", self.hold.unwrap_or(hold))?,
            interval,
            topics: self.topics,
            heartbeat: Duration::from_secs(self.heartbeat.into()),
            opening: self.opening,
            sources: self.sources,
            memory_limit: self.memory_limit.map(|mebibytes| mebibytes << 20),
            rounds: self.rounds,
        };
        let names: Vec<&str> = systems.iter().map(|system| system.name.as_str()).collect();
        let measured = |condition: &Condition| {
            settings.connections.iter().any(|number| condition.selects(HELD, f64::from(*number)))
        };
        let expectations = conditions(&self.expect, measured, &names)?;
        Ok(WebSocketsPlan { systems, settings, expectations })
    }
}

/// The numbers of connections of published measurements.
const USUAL: [u32; 3] = [5_000, 15_000, 20_000];

impl WebSocketsSettings {
    /// The source address of the connection with this number; `None` lets the system choose, for servers that are not local.
    pub(super) fn source(&self, address: SocketAddr, number: u32) -> Option<SocketAddr> {
        let IpAddr::V4(ip) = address.ip() else { return None };
        let last = 2 + (number % u32::from(self.sources)) as u8;
        ip.is_loopback().then(|| SocketAddr::from((Ipv4Addr::new(127, 0, 0, last), 0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usage::parse;

    fn plan(arguments: &[&str]) -> Result<WebSocketsPlan, Error> {
        parse::<WebSocketsArguments>(arguments).unwrap().plan()
    }

    #[test]
    fn connections_come_from_many_addresses_where_they_stay_on_this_machine() {
        let settings = plan(&["--sources", "3"]).unwrap().settings;
        let here = "127.0.0.1:15670".parse().unwrap();
        let sources: Vec<_> =
            (0..4).map(|number| settings.source(here, number).unwrap().to_string()).collect();
        assert_eq!(sources, ["127.0.0.2:0", "127.0.0.3:0", "127.0.0.4:0", "127.0.0.2:0"]);
        assert_eq!(settings.source("192.0.2.1:1".parse().unwrap(), 0), None);
    }

    #[test]
    fn invalid_arguments_are_refused_before_connecting() {
        for arguments in [
            &["--connections", "0"][..],
            &["--connections", "200,100"],
            &["--opening", "0"],
            &["--sources", "0"],
            &["--interval", "0"],
            &["--system", "a=mqtt+ws://h:1/ws", "--topics", "0"],
            &["--system", "a=mqtt+ws://h:1/ws", "--system", "b=amqp+ws://h:1/ws", "--topics", "5"],
            &["--hold=-1"],
            &["--system", "a=http://h:1"],
            &["--rounds", "0"],
            &["--expect", "@7: rss<1MiB"],
            &["--expect", "ratio(default/none)>1"],
        ] {
            assert!(plan(arguments).unwrap_err().is_usage(), "{arguments:?}");
        }
    }
}
