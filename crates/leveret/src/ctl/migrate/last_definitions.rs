//! Copies the definitions once more, while all clients wait.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;

use super::{Migrate, PATH};
use crate::Failure;
use crate::ctl::api::path;

impl Migrate<'_> {
    /// Copies what has been defined since the first time, and lets the server go on. A failure that may pass changes nothing:
    /// the server still waits, and this is to be called again for as long as it does.
    ///
    /// # Errors
    ///
    /// It would fail again.
    pub(super) fn define_last(&self) -> Result<(), Failure> {
        match self.with_signs_of_life(|| self.define(false)) {
            Ok(_) => {}
            Err(Failure::Passing(line)) => {
                self.output.remark(&format!("{line}; the last definitions are tried again"))?;
                thread::sleep(self.intervals.retry);
                return Ok(());
            }
            Err(failure) => return Err(failure),
        }
        match self.step("finish") {
            Ok(()) | Err(Failure::Passing(_)) => Ok(()),
            // Another command with the same target has been first, or the server has given up: its phase says which.
            Err(failure) => match self.api.get(&path(&PATH)) {
                Ok(status) if status["phase"] == "last_definitions" => Err(failure),
                _ => Ok(()),
            },
        }
    }

    /// Asks the server for its state now and then while work is done: it gives up if nobody does. Work may consist of one long
    /// request.
    fn with_signs_of_life<T>(&self, work: impl FnOnce() -> T) -> T {
        let (api, interval) = (self.api, self.intervals.sign_of_life);
        let (working, ended) = mpsc::sync_channel::<()>(0);
        thread::scope(|scope| {
            scope.spawn(move || {
                while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                    // The next question about the progress says what is wrong.
                    let _ = api.get(&path(&PATH));
                }
            });
            let done = work();
            drop(working);
            done
        })
    }
}
