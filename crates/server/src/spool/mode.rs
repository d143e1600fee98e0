//! The mode that an operator chooses for a spool.

use std::sync::atomic::{AtomicU8, Ordering};

/// Whether a spool accepts and forwards messages, until its process ends or an operator changes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ForwardingMode {
    /// It accepts publishes and forwards them.
    Running,
    /// It accepts publishes and forwards none.
    Paused,
    /// It forwards what it has and accepts nothing: publishers are blocked until it is empty, and publish directly to the
    /// upstream then.
    Draining,
}

impl ForwardingMode {
    /// One word, for operators.
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Draining => "draining",
        }
    }
}

/// The mode, as all threads see it.
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
