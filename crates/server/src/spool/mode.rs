//! What an operator lets a spool do.

use std::sync::atomic::{AtomicU8, Ordering};

/// What a spool does, until its process ends or an operator changes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum SpoolMode {
    /// It accepts publishes and forwards them.
    Running,
    /// It accepts publishes and forwards none.
    Paused,
    /// It forwards what it has and accepts nothing: publishers are blocked until it is empty, and publish directly to the
    /// upstream then.
    Draining,
}

impl SpoolMode {
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
        Self(AtomicU8::new(SpoolMode::Running as u8))
    }

    pub(super) fn get(&self) -> SpoolMode {
        let mode = self.0.load(Ordering::Acquire);
        let modes = [SpoolMode::Running, SpoolMode::Paused, SpoolMode::Draining];
        modes.into_iter().find(|known| *known as u8 == mode).unwrap_or(SpoolMode::Running)
    }

    pub(super) fn set(&self, mode: SpoolMode) {
        self.0.store(mode as u8, Ordering::Release);
    }
}
