//! The configuration: one declaration of all settings, and the layers that supply their values.

mod address;
mod check;
mod choice;
mod data_dir;
mod environment;
mod file;
mod layers;
mod login;
mod origins;
mod reference;
mod relay;
mod relayed_upstream;
mod requirement;
mod setting_error;
mod settings;
mod spool;
mod suggestion;
mod value;
mod value_error;
mod vhost_mapping;
mod watermark;

pub(crate) use address::{ListenAddr, UpstreamUrl, mask_credentials, unix_path};
pub(crate) use choice::{
    DefinitionsIf, HttpMethodName, InboundHeader, LimitsMode, OutboundHeader, VerifyClient,
};
pub(crate) use environment::Environment;
pub(crate) use layers::{Effective, FILE_VARIABLE, Flags, load};
pub(crate) use login::{AuthBackendChoice, AuthBackendName, JwksSource, OptionalUrl, ScopePrefix};
pub(crate) use reference::reference;
pub(crate) use relay::{RelayEntry, RelayUrl};
pub(crate) use requirement::without_effect;
pub(crate) use setting_error::SettingError;
pub(crate) use settings::{Config, SETTINGS, Setting, flag};
pub(crate) use spool::Unsuitable;
pub(crate) use suggestion::{did_you_mean, nearest, setting_meant};
pub(crate) use value::{ByteSize, FilePath, Limit};
pub(crate) use value_error::ValueError;
pub(crate) use watermark::Watermark;
