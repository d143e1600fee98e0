//! All listeners of the process, bound.

use transport::{Inherited, Listener, SharedSockets};

use crate::announce;
use crate::config::Config;
use crate::data_dir;
use crate::http::HttpListeners;
use crate::listen::ClientListeners;
use crate::relays::{RelayListener, ServedRelays};
use crate::serve::ServeError;
use crate::setting_files::SettingFiles;
use crate::tls::Tls;

/// The bound listeners, and their sockets once more for another process.
pub(crate) struct BoundListeners {
    pub(crate) clients: ClientListeners,
    pub(crate) relays: Vec<RelayListener>,
    pub(crate) http: HttpListeners,
    pub(crate) sockets: Vec<SharedSockets>,
}

impl BoundListeners {
    /// Binds all of them before the data directory is created, so that a first start that fails here leaves nothing, and the
    /// next one is the first again. `None` if there is a directory: reading it may take minutes, in which clients are better
    /// refused than kept waiting.
    ///
    /// # Errors
    ///
    /// As for [`Self::bind`].
    pub(crate) async fn bind_before_first_start(
        config: &Config,
        files: &SettingFiles,
        inherited: &Inherited,
    ) -> Result<Option<Self>, ServeError> {
        if !data_dir::is_new(config) {
            return Ok(None);
        }
        Self::bind(config, &files.relays, &files.tls, inherited).await.map(Some)
    }

    /// Binds all of them before any client is served: a start either serves all of them or fails. Sockets that were
    /// `inherited` are used, and closed if no listener has their address.
    ///
    /// # Errors
    ///
    /// One cannot be bound; the first such failure is returned.
    pub(crate) async fn bind(
        config: &Config,
        relays: &ServedRelays,
        tls: &Tls,
        inherited: &Inherited,
    ) -> Result<Self, ServeError> {
        let clients = ClientListeners::bind(config, inherited).await?;
        let relays = relays.listen(config, inherited).await?;
        let http = HttpListeners::bind(config, tls, inherited).await?;
        let of_relays = relays.iter().map(|relay| &relay.listener);
        let all = clients.listeners().chain(of_relays).chain(http.listeners());
        let sockets = all.map(Listener::share).collect::<Result<_, _>>().map_err(ServeError::TakeOver)?;
        for address in inherited.close_rest() {
            tracing::warn!(address, "closing inherited socket: no listener configured for its address");
        }
        Ok(Self { clients, relays, http, sockets })
    }

    /// Announces them, once nothing else of the start can fail that scripts would take for a start.
    pub(crate) fn announce(&self) {
        announce::print();
    }
}
