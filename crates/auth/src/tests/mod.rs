//! Tokens as a whole: signatures, claims, keys that change, and the order of authorities.

mod chain;
mod keys;
mod signer;
mod tokens;
