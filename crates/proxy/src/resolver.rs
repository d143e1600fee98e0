//! Resolution of brokers' names.

use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

/// Resolves the host names of brokers, when a connection is opened and the last answer has expired.
pub trait Resolver: Debug + Send + Sync {
    /// Returns all addresses of a name. The future is dropped after some seconds.
    ///
    /// # Errors
    /// If the name is not found, or no resolver can be reached.
    fn resolve<'r>(&'r self, host: &'r str, port: u16) -> Resolving<'r>;

    /// How long an answer is cached before the name is resolved again.
    fn holds(&self) -> Duration {
        LOOKUP_TTL
    }
}

/// A lookup under way.
pub type Resolving<'r> = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'r>>;

/// Uses the system's resolver, which may query DNS.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemResolver;

impl Resolver for SystemResolver {
    fn resolve<'r>(&'r self, host: &'r str, port: u16) -> Resolving<'r> {
        Box::pin(async move { Ok(tokio::net::lookup_host((host, port)).await?.collect()) })
    }
}

/// The system does not report how long its answers are valid. Names of services whose instances come and go
/// are valid for seconds.
const LOOKUP_TTL: Duration = Duration::from_secs(10);
