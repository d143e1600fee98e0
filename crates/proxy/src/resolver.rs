//! What a broker's name stands for.

use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

/// Looks names up.
pub trait Resolver: Debug + Send + Sync {
    /// All addresses that a name stands for. The future is given up after some seconds.
    ///
    /// # Errors
    /// When the name is not found, or nobody can be asked.
    fn resolve<'r>(&'r self, host: &'r str, port: u16) -> Resolving<'r>;

    /// How long an answer holds before the name is looked up again.
    fn holds(&self) -> Duration {
        NAME_HOLDS
    }
}

/// A lookup under way.
pub type Resolving<'r> = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'r>>;

/// Asks the system, which may ask DNS.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemResolver;

impl Resolver for SystemResolver {
    fn resolve<'r>(&'r self, host: &'r str, port: u16) -> Resolving<'r> {
        Box::pin(async move { Ok(tokio::net::lookup_host((host, port)).await?.collect()) })
    }
}

/// The system does not tell how long its answers hold. The names of services whose instances come and go hold for seconds.
const NAME_HOLDS: Duration = Duration::from_secs(10);
