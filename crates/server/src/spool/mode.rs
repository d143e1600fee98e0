//! The operator's mode of a spool.

use std::sync::atomic::{AtomicU8, Ordering};

/// Whether a spool accepts and forwards messages. Lasts until an operator changes it or the process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ForwardingMode {
    /// Accepts publishes and forwards messages.
    Running,
    /// Accepts publishes and does not forward messages.
    Paused,
    /// Forwards messages and accepts no publishes: publishers are blocked until the spool is empty, and then publish
    /// directly to the upstream.
    Draining,
}

impl ForwardingMode {
    /// The name for operators, one word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Draining => "draining",
        }
    }
}

/// The mode, shared by all threads.
#[derive(Debug)]
pub(super) struct ModeCell(AtomicU8);

impl ModeCell {
    pub(super) fn new() -> Self {
        Self(AtomicU8::new(ForwardingMode::Running as u8))
    }

    pub(super) fn get(&self) -> ForwardingMode {
        let mode = self.0.load(Ordering::Acquire);
        let modes = [ForwardingMode::Running, ForwardingMode::Paused, ForwardingMode::Draining];
        modes.into_iter().find(|known| *known as u8 == mode).unwrap_or(ForwardingMode::Running)
    }

    pub(super) fn set(&self, mode: ForwardingMode) {
        self.0.store(mode as u8, Ordering::Release);
    }
}
