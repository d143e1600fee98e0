//! Notifies the service manager of state changes (sd_notify(3)) with datagrams to the socket named in the
//! environment. Without one, nothing is sent.

use std::ffi::{OsStr, OsString};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{SendFlags, SocketAddrUnix, sendmsg_addr};
use transport::SharedSockets;

use crate::fd_passing::{MAX_SOCKETS, with_sockets};
use crate::signals::DrainReason;

/// The service manager, if there is one. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Notifier(Option<Arc<ServiceManager>>);

#[derive(Debug)]
struct ServiceManager {
    socket: UnixDatagram,
    address: SocketAddrUnix,
    /// Time without a watchdog message after which it ends the service.
    patience: Option<Duration>,
}

/// The variable with the socket of the service manager, if there is one.
pub(crate) const SOCKET: &str = "NOTIFY_SOCKET";

/// Time allowed after a drain: more than is needed to respond to the last probes and to write and sync
/// the remaining changes.
const ENDING: Duration = Duration::from_secs(30);

impl Notifier {
    /// Connects to the service manager named in the environment.
    ///
    /// # Errors
    /// Its socket cannot be used.
    pub(crate) fn of_process() -> io::Result<Self> {
        Self::of(&|name| std::env::var_os(name))
    }

    fn of(environment: &dyn Fn(&str) -> Option<OsString>) -> io::Result<Self> {
        let Some(name) = environment(SOCKET).filter(|name| !name.is_empty()) else {
            return Ok(Self::default());
        };
        let address = address(&name)?;
        let socket = UnixDatagram::unbound()?;
        // Sending does not wait for a manager that does not read.
        socket.set_nonblocking(true)?;
        Ok(Self(Some(Arc::new(ServiceManager { socket, address, patience: patience(environment) }))))
    }

    /// Reports that the server is ready, at start and after a reload.
    pub(crate) fn ready(&self) {
        self.notify("READY=1\nSTATUS=Serving");
    }

    /// Reports that the configuration is being read again; [`Notifier::ready`] must follow.
    /// `Type=notify-reload` of systemd 253 requires the time.
    pub(crate) fn reloading(&self) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let microseconds = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
        self.notify(&format!(
            "RELOADING=1\nMONOTONIC_USEC={microseconds}\nSTATUS=Reading the configuration again"
        ));
    }

    /// Reports that the drain has begun and may take as long as `drain`; not behind a successor, which is the service already.
    pub(crate) fn stopping(&self, reason: DrainReason, drain: Duration) {
        if reason != DrainReason::Asked {
            return;
        }
        let most = drain.saturating_add(ENDING).as_micros();
        self.notify(&format!("STOPPING=1\nEXTEND_TIMEOUT_USEC={most}\nSTATUS=Draining"));
    }

    /// Reports that another process is the service's main process from now on.
    pub(crate) fn hand_over(&self, process: i32) {
        self.notify(&format!("MAINPID={process}\nSTATUS=Draining behind the process that has taken over"));
    }

    /// Leaves listening sockets with the manager, which gives them to the next start of the service if it is to keep any
    /// (`FileDescriptorStoreMax`): clients that connect meanwhile wait for it. They replace those that it has, which may be of
    /// addresses that are no longer served. Unix sockets are not kept: without their file nobody reaches them.
    pub(crate) fn keep(&self, listeners: &[SharedSockets]) {
        let of_tcp = listeners.iter().filter(|listener| !listener.has_file());
        let sockets: Vec<_> = of_tcp.flat_map(SharedSockets::sockets).map(AsFd::as_fd).collect();
        self.notify("FDSTOREREMOVE=1\nFDNAME=listener");
        for some in sockets.chunks(MAX_SOCKETS) {
            self.send("FDSTORE=1\nFDNAME=listener", some);
        }
    }

    /// Sends watchdog messages for as long as it is polled, if the manager expects them. Runs as a task among
    /// those that serve clients, so that the messages stop when no task makes progress.
    pub(crate) async fn stay_alive(self) {
        let Some(patience) = self.0.as_ref().and_then(|manager| manager.patience) else { return };
        // Half the timeout, as sd_watchdog_enabled(3) recommends.
        let mut ticks = tokio::time::interval(patience / 2);
        loop {
            ticks.tick().await;
            self.notify("WATCHDOG=1");
        }
    }

    fn notify(&self, state: &str) {
        self.send(state, &[]);
    }

    fn send(&self, state: &str, sockets: &[BorrowedFd<'_>]) {
        let Some(manager) = &self.0 else { return };
        let (socket, address, bytes) = (&manager.socket, &manager.address, [IoSlice::new(state.as_bytes())]);
        let sent = with_sockets(sockets, |ancillary| {
            sendmsg_addr(socket, address, &bytes, ancillary, SendFlags::NOSIGNAL)
        });
        if let Err(error) = sent {
            tracing::warn!(%error, state, "failed to notify the service manager");
        }
    }
}

/// A path, or a name in the abstract namespace, written with a leading `@`.
fn address(name: &OsStr) -> io::Result<SocketAddrUnix> {
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddrUnix::new_abstract_name(name),
        None => SocketAddrUnix::new(name.as_bytes()),
    };
    Ok(address?)
}

/// `WATCHDOG_USEC`, if it is meant for this process (`WATCHDOG_PID`).
fn patience(environment: &dyn Fn(&str) -> Option<OsString>) -> Option<Duration> {
    let number = |name| environment(name)?.to_str()?.parse::<u64>().ok();
    let somebody_else = number("WATCHDOG_PID").is_some_and(|pid| pid != u64::from(std::process::id()));
    number("WATCHDOG_USEC").filter(|most| *most > 1 && !somebody_else).map(Duration::from_micros)
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::SocketAddr;

    use super::*;

    fn notifier(variables: &[(&str, &str)]) -> io::Result<Notifier> {
        let found =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
        Notifier::of(&found)
    }

    fn heard(socket: &UnixDatagram) -> String {
        let mut bytes = [0; 256];
        let length = socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    }

    #[test]
    fn a_manager_behind_a_path_receives_each_state_change() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let notifier = notifier(&[("NOTIFY_SOCKET", path.to_str().unwrap())]).unwrap();
        notifier.ready();
        assert!(heard(&socket).starts_with("READY=1\n"));
        notifier.reloading();
        assert!(heard(&socket).starts_with("RELOADING=1\nMONOTONIC_USEC="));
        notifier.stopping(DrainReason::Asked, Duration::from_secs(10));
        assert!(heard(&socket).starts_with("STOPPING=1\nEXTEND_TIMEOUT_USEC=40000000\n"));
        notifier.hand_over(17);
        assert!(heard(&socket).starts_with("MAINPID=17\n"));
    }

    #[test]
    fn a_name_with_an_at_sign_is_abstract() {
        let name = format!("leveret-notify-{}", std::process::id());
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        notifier(&[("NOTIFY_SOCKET", &format!("@{name}"))]).unwrap().ready();
        assert!(heard(&socket).starts_with("READY=1\n"));
    }

    #[test]
    fn notifying_without_a_socket_or_a_manager_does_nothing() {
        notifier(&[]).unwrap().ready();
        notifier(&[("NOTIFY_SOCKET", "")]).unwrap().ready();
        notifier(&[("NOTIFY_SOCKET", "/nonexistent/notify")]).unwrap().ready();
    }

    #[test]
    fn the_watchdog_of_another_process_is_not_fed() {
        let reported = |pid: u32| {
            let pid = pid.to_string();
            let variables = [("WATCHDOG_USEC", "3000000"), ("WATCHDOG_PID", &pid)];
            patience(&|name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).into()))
        };
        assert_eq!(reported(std::process::id()), Some(Duration::from_secs(3)));
        assert_eq!(reported(std::process::id() + 1), None);
        assert_eq!(patience(&|_| None), None);
    }
}
