//! Errors that end a run.

use std::fmt;
use std::io;

use crate::expect::ExpectError;
use crate::uri::UriError;
use crate::websockets::error::MemberError;

/// The reason why a run could not be started or finished.
#[derive(Debug)]
pub enum Error {
    /// Arguments that contradict each other or make no sense.
    Usage(String),
    /// A `--uri` or `--system` that is not an AMQP URI.
    Uri(UriError),
    /// An `--expect` that cannot be read, or that names an unknown system.
    Expect(ExpectError),
    /// The system under test, or the connection to it, failed.
    System {
        /// Its name on the command line.
        system: String,
        /// The cause of the failure.
        cause: ClientError,
    },
    /// The sink cannot listen.
    Sink {
        /// The address to listen on.
        address: String,
        /// The cause of the failure.
        cause: io::Error,
    },
    /// A latency link could not be set up.
    Link {
        /// The address to listen on.
        address: String,
        /// The cause of the failure.
        cause: io::Error,
    },
    /// Leveret's own broker or pool could not be started.
    Companion {
        /// The cause; the process prints more on its standard error.
        cause: io::Error,
    },
    /// The report could not be written.
    Report {
        /// The path of the file.
        path: String,
        /// The cause of the failure.
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

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(text) => f.write_str(text),
            Self::Uri(error) => error.fmt(f),
            Self::Expect(error) => error.fmt(f),
            Self::System { system, cause } => write!(f, "system {system}: {cause}"),
            Self::Link { address, cause } => write!(f, "the link at {address}: {cause}"),
            Self::Sink { address, cause } => write!(f, "the sink at {address}: {cause}"),
            Self::Companion { cause } => write!(f, "leveret serve does not start: {cause}"),
            Self::Report { path, cause } => write!(f, "cannot write the report to {path}: {cause}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Usage(_) => None,
            Self::Uri(error) => Some(error),
            Self::Expect(error) => Some(error),
            Self::System { cause, .. } => Some(cause),
            Self::Link { cause, .. }
            | Self::Sink { cause, .. }
            | Self::Companion { cause }
            | Self::Report { cause, .. } => Some(cause),
        }
    }
}

impl From<UriError> for Error {
    fn from(error: UriError) -> Self {
        Self::Uri(error)
    }
}

impl From<ExpectError> for Error {
    fn from(error: ExpectError) -> Self {
        Self::Expect(error)
    }
}

/// The reason why communication with an AMQP server failed.
#[derive(Debug)]
pub enum ClientError {
    /// The socket failed, or could not be opened.
    Io {
        /// The operation that failed.
        doing: &'static str,
        /// The cause of the failure.
        cause: io::Error,
    },
    /// The server closed the connection or the channel, with this text.
    Closed(String),
    /// The server violated the protocol, or did something that no step of the workload expects.
    Protocol(String),
    /// The server violated AMQP, by the codec or in the handshake.
    Amqp(Box<dyn std::error::Error + Send + Sync>),
    /// The server did not answer in time.
    TimedOut(&'static str),
    /// A thread of the load generator panicked; a defect of this crate.
    Panicked(&'static str),
    /// A connection of a WebSocket fleet could not be opened.
    Member(Box<MemberError>),
}

impl ClientError {
    /// For `map_err` on I/O: names the operation that failed.
    pub(crate) fn io(doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |cause| Self::Io { doing, cause }
    }
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { doing, cause } => write!(f, "{doing}: {cause}"),
            Self::Closed(text) => write!(f, "closed by the server: {text}"),
            Self::Protocol(text) => write!(f, "protocol error: {text}"),
            Self::Amqp(cause) => write!(f, "protocol error: {cause}"),
            Self::TimedOut(what) => write!(f, "no answer in time: {what}"),
            Self::Panicked(what) => write!(f, "the {what} thread panicked"),
            Self::Member(cause) => write!(f, "protocol error: {cause}"),
        }
    }
}

impl std::error::Error for ClientError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { cause, .. } => Some(cause),
            Self::Member(cause) => Some(cause.as_ref()),
            Self::Amqp(cause) => Some(cause.as_ref()),
            _ => None,
        }
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
