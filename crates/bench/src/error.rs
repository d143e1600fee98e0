//! Errors that end a run.

use std::io;

use crate::expect::ExpectError;
use crate::uri::UriError;
use crate::websockets::error::MemberError;

/// The reason why a run could not be started or finished.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Arguments that contradict each other or make no sense.
    #[error("{0}")]
    Usage(String),
    /// A `--uri` or `--system` that is not an AMQP URI.
    #[error(transparent)]
    Uri(#[from] UriError),
    /// An `--expect` that cannot be read, or that names an unknown system.
    #[error(transparent)]
    Expect(#[from] ExpectError),
    /// The system under test, or the connection to it, failed.
    #[error("system {system}: {cause}")]
    System {
        /// Its name on the command line.
        system: String,
        /// The cause of the failure.
        #[source]
        cause: ClientError,
    },
    /// The sink cannot listen.
    #[error("the sink at {address}: {cause}")]
    Sink {
        /// The address to listen on.
        address: String,
        /// The cause of the failure.
        #[source]
        cause: io::Error,
    },
    /// A latency link could not be set up.
    #[error("the link at {address}: {cause}")]
    Link {
        /// The address to listen on.
        address: String,
        /// The cause of the failure.
        #[source]
        cause: io::Error,
    },
    /// Leveret's own broker or pool could not be started.
    #[error("leveret serve does not start: {cause}")]
    ManagedProcess {
        /// The cause; the process prints more on its standard error.
        #[source]
        cause: io::Error,
    },
    /// The report could not be written.
    #[error("cannot write the report to {path}: {cause}")]
    Report {
        /// The path of the file.
        path: String,
        /// The cause of the failure.
        #[source]
        cause: io::Error,
    },
}

impl Error {
    /// For `map_err`: turns an error into that of the system with this name.
    pub(crate) fn of(system: &str) -> impl FnOnce(ClientError) -> Self + Copy {
        move |cause| Self::System { system: system.to_owned(), cause }
    }

    /// Whether the command line is at fault (exit code 2), rather than the run (exit code 1).
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Usage(_) | Self::Uri(_) | Self::Expect(_))
    }
}

/// The reason why communication with an AMQP server failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The socket failed, or could not be opened.
    #[error("{doing}: {cause}")]
    Io {
        /// The operation that failed.
        doing: &'static str,
        /// The cause of the failure.
        #[source]
        cause: io::Error,
    },
    /// The server closed the connection or the channel, with this text.
    #[error("closed by the server: {0}")]
    Closed(String),
    /// An object of this name exists, which a round would have changed and deleted.
    #[error("{0} already exists; choose another name, or pass --predeclared to use it as it is")]
    Exists(String),
    /// The server violated the protocol, or did something that no step of the workload expects.
    #[error("protocol error: {0}")]
    Protocol(String),
    /// The server violated AMQP, by the codec or in the handshake.
    #[error("protocol error: {0}")]
    Amqp(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The server did not answer in time.
    #[error("no answer in time: {0}")]
    TimedOut(&'static str),
    /// The server does nothing any more, in the middle of a round that is counted in messages.
    #[error("the system has stopped: {0}")]
    Stopped(String),
    /// A thread of the load generator panicked; a defect of this crate.
    #[error("the {0} thread panicked")]
    Panicked(&'static str),
    /// A connection of a WebSocket fleet could not be opened.
    #[error("protocol error: {0}")]
    Member(#[source] Box<MemberError>),
}

impl ClientError {
    /// For `map_err` on I/O: names the operation that failed.
    pub(crate) fn io(doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |cause| Self::Io { doing, cause }
    }
}

impl From<amqp::DecodeError> for ClientError {
    fn from(error: amqp::DecodeError) -> Self {
        Self::Amqp(Box::new(error))
    }
}

impl From<amqp::Fault> for ClientError {
    fn from(fault: amqp::Fault) -> Self {
        Self::Amqp(Box::new(fault))
    }
}
