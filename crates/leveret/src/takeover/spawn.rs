//! The process that this one starts as its successor.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// A successor that has been started.
#[derive(Debug)]
pub(super) struct Successor {
    process: u32,
    /// `None` for a child of the first process, or of the service manager of a user.
    child: Option<Child>,
    /// `None` if it has ended already.
    pidfd: Option<OwnedFd>,
}

/// Starts the program given after it, reports its process id through the socket that is its standard input, and exits.
const START: &str = r#""$@" </dev/null & echo $! >&0"#;

impl Successor {
    /// Starts a command as a child.
    pub(super) fn start(mut command: Command) -> io::Result<Self> {
        let child = command.stdin(Stdio::null()).spawn()?;
        let pidfd = pidfd_of(Pid::from_child(&child)).unwrap_or_else(|error| {
            tracing::warn!(%error, "upgrade: a stop during the upgrade will not end the successor");
            None
        });
        Ok(Self { process: child.id(), child: Some(child), pidfd })
    }

    /// Starts a command as a child of the service manager. At a stop, systemd does not wait for a main process that was no
    /// child of its own when it became that, and kills it at once (`main_pid_alien` in its service.c). A process whose
    /// parent has ended is its child.
    pub(super) fn start_as_orphan(command: &Command) -> io::Result<Self> {
        let (ours, its) = UnixStream::pair()?;
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", START, "sh"]).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        let mut child = shell.stdin(OwnedFd::from(its)).spawn()?;
        // The command holds the other end as well.
        drop(shell);
        child.wait()?;
        let mut output = String::new();
        File::from(OwnedFd::from(ours)).take(MAX_DIGITS).read_to_string(&mut output)?;
        let process: i32 =
            output.trim().parse().map_err(|_| io::Error::other("/bin/sh has not started it"))?;
        let pid = Pid::from_raw(process).ok_or_else(|| io::Error::other("/bin/sh names no process"))?;
        let pidfd = pidfd_of(pid)?;
        Ok(Self { process: process.unsigned_abs(), child: None, pidfd })
    }

    /// Its process id.
    pub(super) fn process(&self) -> u32 {
        self.process
    }

    /// A handle for signals, which reach no other process that has got its id since; `None` if it has ended already.
    pub(super) fn pidfd(&self) -> io::Result<Option<OwnedFd>> {
        self.pidfd.as_ref().map(OwnedFd::try_clone).transpose()
    }

    /// Waits until it ends; returns how.
    pub(super) fn wait(self) -> String {
        if let Some(mut child) = self.child {
            return child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
        }
        let ended = self.pidfd.map_or(Ok(0), |pidfd| {
            // A pidfd is readable once its process has ended (pidfd_open(2)).
            retry_on_intr(|| poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], None))
        });
        ended.map_or_else(|error| error.to_string(), |_| "its log says why".to_owned())
    }
}

fn pidfd_of(process: Pid) -> io::Result<Option<OwnedFd>> {
    match pidfd_open(process, PidfdFlags::empty()) {
        Ok(pidfd) => Ok(Some(pidfd)),
        Err(Errno::SRCH) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A process id has ten digits at most, and an end of line.
const MAX_DIGITS: u64 = 11;

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_child_tells_its_exit_status() {
        let successor = Successor::start(shell("exit 3")).unwrap();
        assert_eq!(successor.wait(), "exit status: 3");
    }

    #[test]
    fn an_orphan_is_no_child_of_this_process_and_its_end_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let gate = directory.path().join("gate");
        assert!(Command::new("mkfifo").arg(&gate).status().unwrap().success());
        // It lives until somebody has written to the pipe.
        let mut command = shell(r#"read line <"$GATE""#);
        command.env("GATE", &gate);
        let successor = Successor::start_as_orphan(&command).unwrap();
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", successor.process())).unwrap();
        let parent = stat.rsplit(") ").next().and_then(|fields| fields.split(' ').nth(1)).unwrap();
        assert_ne!(parent, std::process::id().to_string());
        std::fs::write(&gate, "go on\n").unwrap();
        assert_eq!(successor.wait(), "its log says why");
    }

    #[test]
    fn a_program_that_does_not_exist_ends_at_once() {
        let successor = Successor::start_as_orphan(&Command::new("/nowhere/leveret")).unwrap();
        assert_eq!(successor.wait(), "its log says why");
    }
}
