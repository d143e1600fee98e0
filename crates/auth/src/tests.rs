//! Tokens as a whole: signatures, claims, keys that change; services that are asked; and the order of auth backends.

mod chain;
mod keys;
mod services;
mod signer;
mod tokens;
