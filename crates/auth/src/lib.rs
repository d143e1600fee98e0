//! The auth backends that authenticate the clients of the embedded broker, in the configured order.
//!
//! # Parts
//!
//! - [`AuthChain`]: tries one auth backend after the other, including the internal user list.
//! - [`OAuth2`]: users with a JSON Web Token, as in RabbitMQ's plugin rabbitmq_auth_backend_oauth2. [`TokenPolicy`] defines
//!   the meaning of tokens, and [`KeySource`] the origin of the keys that verify them.
//! - [`HttpAuthBackend`]: users whom a service authenticates and authorizes over HTTP, as with rabbitmq_auth_backend_http; its
//!   answers are cached if the operator configures that ([`CacheSettings`]).
//! - [`ServiceClient`]: requests to external services, with limits on time and bytes.
//!
//! # Invariants
//!
//! - No token is accepted before its signature is verified, with an algorithm of its key, and never with `none`.
//! - This crate does not authorize operations: the broker does, by the scopes of a token, or the HTTP service does.
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
