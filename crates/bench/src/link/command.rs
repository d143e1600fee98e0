//! `bench link`: the link on its own, for measurements by other programs.

use std::io::{self, BufRead, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::thread;
use std::time::Duration;

use clap::Args;

use super::check::{self, Accuracy};
use super::{IN_TRANSIT, Link, LinkShape};
use crate::Outcome;
use crate::error::Error;
use crate::metric::duration;
use crate::usage;

/// Stand between a client and a server, and delay the bytes that pass
///
/// Reads commands from its standard input, one per line: `latency MS` changes the round trip, `cut` breaks
/// all connections, `stall` lets nothing pass until `flow`. Each is answered with a line `done`.
#[derive(Debug, Clone, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct LinkArguments {
    /// Where to listen; port 0 is any free port, and the first line of output shows it
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    listen: String,
    /// The server to connect to
    #[arg(long, value_name = "HOST:PORT", required_unless_present = "check")]
    to: Option<String>,
    /// Only measure how exact the link is on this machine, at --latency or else 1 ms; fails if a round trip
    /// is more than 0.2 ms late in the median, or if any is early
    #[arg(long, conflicts_with_all = ["to", "listen", "there", "back", "jitter", "bandwidth", "in_transit"])]
    check: bool,
    /// Time of a round trip in milliseconds, half of it each way
    #[arg(long, value_name = "MS", default_value_t = 0.0, conflicts_with_all = ["there", "back"])]
    latency: f64,
    /// Milliseconds from the client to the server
    #[arg(long, value_name = "MS", requires = "back")]
    there: Option<f64>,
    /// Milliseconds from the server to the client
    #[arg(long, value_name = "MS", requires = "there")]
    back: Option<f64>,
    /// Add a random delay of up to this many milliseconds, each way
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    jitter: f64,
    /// Bytes per second to let pass, each way of each connection; 0 means no limit
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    bandwidth: u64,
    /// Bytes that may be in transit each way of each connection; beyond them the sender is not read
    #[arg(long, value_name = "BYTES", default_value_t = IN_TRANSIT)]
    in_transit: usize,
}

impl LinkArguments {
    /// Serves until the process is killed, or measures.
    pub(crate) fn run(&self) -> Result<Outcome, Error> {
        let Some(to) = &self.to else { return self.check() };
        let shape = |delay| -> Result<LinkShape, Error> {
            let (delay, jitter) = (milliseconds("delay", delay)?, milliseconds("--jitter", self.jitter)?);
            Ok(LinkShape { delay, jitter, bytes_per_second: self.bandwidth, in_transit: self.in_transit })
        };
        usage::check(self.in_transit > 0, "--in-transit must be above 0")?;
        let half = self.latency / 2.0;
        let shapes = [shape(self.there.unwrap_or(half))?, shape(self.back.unwrap_or(half))?];
        let (listen, to) = (resolve("--listen", &self.listen)?, resolve("--to", to)?);
        let failed = |cause| Error::Link { address: self.listen.clone(), cause };
        let link = Link::start(listen, to, shapes).map_err(failed)?;
        say(&format!("link  listening on tcp://{}", link.address())).map_err(failed)?;
        for line in io::stdin().lock().lines() {
            let line = line.map_err(failed)?;
            match execute(&link, shapes, &line) {
                Ok(()) => say("done").map_err(failed)?,
                Err(error) => say(&format!("not done: {error}")).map_err(failed)?,
            }
        }
        // Without an input of commands it runs until it is killed.
        loop {
            thread::park();
        }
    }

    fn check(&self) -> Result<Outcome, Error> {
        let wanted = if self.latency > 0.0 { self.latency } else { 1.0 };
        let time = milliseconds("--latency", wanted)?;
        let failed = |cause| Error::Link { address: self.listen.clone(), cause };
        let Accuracy { least, median, late } = check::measure(time).map_err(failed)?;
        let met = least >= time && late <= check::TOLERANCE;
        let word = if met { "within" } else { "NOT within" };
        let [least, median, late] = [least, median, late].map(|time| duration(time.as_secs_f64()));
        say(&format!(
            "a link of {wanted} ms is late by {late} in the median of its round trips, {word} 0.2 ms; no round trip was below \
             {least}; with the waking of everybody on the way it adds {median}"
        ))
        .map_err(failed)?;
        Ok(if met { Outcome::Met } else { Outcome::NotMet })
    }
}

fn execute(link: &Link, shapes: [LinkShape; 2], line: &str) -> Result<(), Error> {
    match line.split_whitespace().collect::<Vec<_>>()[..] {
        ["latency", time] => {
            let time: f64 = time.parse().map_err(|_| Error::Usage(format!("{time:?} is not a number")))?;
            let delay = milliseconds("latency", time)? / 2;
            link.reshape(shapes.map(|shape| LinkShape { delay, ..shape }));
        }
        ["cut"] => link.cut(),
        ["stall"] => link.stall(true),
        ["flow"] => link.stall(false),
        _ => {
            return Err(Error::Usage(format!(
                "unknown command {line:?}; expected one of: latency MS, cut, stall, flow"
            )));
        }
    }
    Ok(())
}

fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// Converts a duration given in milliseconds as `flag`; at most an hour.
pub(crate) fn milliseconds(flag: &str, value: f64) -> Result<Duration, Error> {
    match Duration::try_from_secs_f64(value / 1e3) {
        Ok(time) if time <= Duration::from_secs(3600) => Ok(time),
        _ => Err(Error::Usage(format!("{flag}: {value} is not a number of milliseconds up to an hour"))),
    }
}

/// The first address of `text`, which was given as `flag`.
pub(crate) fn resolve(flag: &str, text: &str) -> Result<SocketAddr, Error> {
    let wrong = || Error::Usage(format!("{flag}: {text:?} is not an address, which is written host:port"));
    text.to_socket_addrs().ok().and_then(|mut all| all.next()).ok_or_else(wrong)
}
