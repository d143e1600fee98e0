//! The auth backends that authenticate the clients of the embedded broker, in the configured order.
//!
//! # Parts
//!
//! - [`AuthChain`]: asks one auth backend after the other, the broker's own list of users among them.
//! - [`OAuth2`]: users with a JSON Web Token, as RabbitMQ's plugin rabbitmq_auth_backend_oauth2 has them. [`TokenPolicy`]
//!   says what a token means, and [`KeySource`] where the keys are that verify it.
//! - [`HttpAuthBackend`]: users whom a service authenticates and authorizes over HTTP, as with rabbitmq_auth_backend_http; its
//!   answers are cached if the operator configures that ([`CacheSettings`]).
//! - [`ServiceClient`]: requests to the services of others, with bounds on time and bytes.
//!
//! # Invariants
//!
//! - No token counts before its signature is verified, with an algorithm that its key is for, and never with `none`.
//! - Nothing here decides what a user may do: that is the broker's, by the scopes that a token brings, or the service's.
//! - A service that is unreachable, or answers anything but `allow`, denies the login.
//! - No token, password or key is logged.
//!
//! This crate must never contain a messaging protocol.

mod cache;
mod chain;
mod claims;
mod error;
mod form;
mod http;
mod keys;
mod oauth;
mod service;
mod source;
#[cfg(test)]
mod tests;
mod token;
mod url;

pub use cache::CacheSettings;
pub use chain::{AuthBackend, AuthChain, SplitAuthBackend};
pub use error::{KeySetError, ServiceError, TokenError};
pub use http::{HttpAuthBackend, HttpAuthBackendMethod, HttpAuthBackendSettings};
pub use oauth::{BrokerClock, OAuth2};
pub use service::{ServiceClient, ServiceTimes};
pub use source::KeySource;
pub use token::TokenPolicy;
pub use url::{ServiceUrl, ServiceUrlError};
