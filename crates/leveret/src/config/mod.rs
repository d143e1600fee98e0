//! The configuration: one declaration of all settings, and the layers that give them their values.

mod address;
mod file;
mod layers;
mod reference;
mod settings;
mod value;

pub(crate) use address::{ListenAddr, mask_credentials};
pub(crate) use layers::{Effective, FILE_VARIABLE, Flags, load};
pub(crate) use reference::reference;
pub(crate) use settings::{Config, SETTINGS, Setting, UNAVAILABLE, flag};
