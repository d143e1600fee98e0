//! Moving a client to another process. Its channels leave their upstream connections, and the remaining state becomes the
//! initial state of a session in the other process's pool. The channels are placed there as after the loss of an upstream
//! connection (P7).

use std::time::Instant;

use amqp::{Fault, Frame};

use super::side::Side;
use super::state::{ChannelState, SessionState};
use super::{Life, ProxySession};
use crate::frames::stored_frames;
use crate::upstream::Role;

/// The progress of moving a client to another process.
#[derive(Debug)]
pub enum Export {
    /// The client depends on its upstream connection, for this reason.
    Impossible(&'static str),
    /// The client cannot be moved now. It continues to be served; try again after the next frame or nudge.
    Later,
    /// The client's channels are leaving their upstream connections. No frame may be passed to the session any more; try
    /// again after the next nudge.
    Leaving,
    /// The session has ended here, with this state.
    Done(Box<SessionState>),
}

impl ProxySession {
    /// Takes the next step of moving the client to another process.
    pub fn export(&mut self, now: Instant) -> Export {
        self.output.now = now;
        if !self.is_exporting {
            if let Some(why) = self.export_blocker() {
                return Export::Impossible(why);
            }
            if self.must_delay_export() {
                return Export::Later;
            }
            self.is_exporting = true;
            self.leave_all();
            self.link.begin_leaving();
            self.handle_capacity();
        }
        self.flush(now);
        let has_left =
            self.channels.iter().flat_map(|(_, channel)| channel.sides()).all(|side| side.has_left());
        if !has_left || self.link.has_events() {
            return Export::Leaving;
        }
        Export::Done(Box::new(self.take_state(now)))
    }

    /// The reason why the client cannot be moved: it has state that ends with its upstream connection.
    fn export_blocker(&self) -> Option<&'static str> {
        let is_dependent = || {
            self.channels
                .iter()
                .flat_map(|(_, channel)| channel.sides())
                .any(|side| side.depends_on_its_channel())
        };
        let is_lost = || self.link.declarer().is_some_and(|declarer| declarer.is_forgotten());
        if self.life != Life::Open {
            Some("connection is closing")
        } else if self.exclusive {
            Some("has an exclusive queue")
        } else if self.auto_delete || is_dependent() {
            Some("has a transaction, direct reply-to, or an auto-delete queue")
        } else if !self.link.replay_buffer.keeps_messages() {
            Some("republishes by itself")
        } else if is_lost() {
            Some("too much transient topology")
        } else {
            None
        }
    }

    /// Whether something has to be completed before the client can be moved. If so, an event or a frame of the client
    /// completes it.
    fn must_delay_export(&mut self) -> bool {
        // The next process does not know the closed channels, so a method could overtake their messages there.
        if self.output.closed.ask() != 0 {
            return true;
        }
        // Whether a consumer depends on the connection is known when its consume-ok has arrived.
        let waits_for_answers = |side: &Side| !side.poll_late_answers();
        self.link.has_events()
            || self.unanswered_secrets > 0
            || self.budget.waits()
            || self.budget.has_stream()
            || self.is_streaming()
            || self.channels.iter().any(|(_, channel)| channel.is_closing())
            || self.channels.iter().flat_map(|(_, channel)| channel.sides()).any(waits_for_answers)
    }

    /// Whether declarations of the client may be lost at the broker and are not repeated yet.
    fn is_torn(&self) -> bool {
        self.pool.topologies().is_torn(&self.virtual_host, self.link.declarer_id())
    }

    /// Makes all channels leave their upstream connections. Channels that are moving already continue to do so.
    fn leave_all(&mut self) {
        let placed: Vec<_> = self
            .channels
            .iter()
            .flat_map(|(number, channel)| {
                let is_placed = |role: &Role| channel.side(*role).is_some_and(|side| side.is_placed());
                let roles = [Role::General, Role::Publishing].into_iter().filter(is_placed);
                roles.map(move |role| (number, role, channel.is_own()))
            })
            .collect();
        for (number, role, own) in placed {
            self.leave_side(number, role, own);
        }
    }

    /// Ends the session, all of whose channels have left.
    fn take_state(&mut self, now: Instant) -> SessionState {
        let mut channels = Vec::new();
        let closing = self.channels.closing().map(|number| ChannelState { number, open: None });
        channels.extend(closing);
        for (number, mut channel) in self.channels.drain() {
            let was_own = channel.is_own();
            channel.sides_mut().for_each(Side::skip_if_idle);
            // A side that was only about to move to the client's own connection needs a publishing side again.
            if was_own && !channel.is_own() && channel.publishing.is_none() {
                channel.split_sides();
            }
            channels.push(ChannelState::of(number, *channel));
        }
        let declarations =
            self.link.declarer().and_then(|declarer| declarer.declarations()).unwrap_or_default();
        let flags = (self.suspect, self.is_torn());
        let state = SessionState::new(&self.credentials, flags, channels, declarations);
        self.end(now);
        self.link.leave_blocked();
        state
    }

    /// Continues a session of another process. Called before any other method. Its declarations are repeated if `is_torn`, or
    /// if they were torn in the other process.
    ///
    /// # Errors
    /// As [`Self::handle_frame`].
    pub(crate) fn import(&mut self, state: SessionState, is_torn: bool, now: Instant) -> Result<(), Fault> {
        self.output.now = now;
        self.suspect = state.is_suspect;
        if let Some(declarer) = self.link.declarer() {
            for method in &state.declarations {
                declarer.remember_again(&self.link, &method.0);
            }
            if is_torn || state.is_torn {
                self.pool.topologies().lost(&self.virtual_host);
            }
        }
        let (mut open, mut incomplete) = (Vec::new(), Vec::new());
        for ChannelState { number, open: state } in state.channels {
            let Some(state) = state else {
                self.channels.open(number, Box::default());
                self.channels.start_closing(number);
                continue;
            };
            let (channel, frames) = state.into_channel();
            self.queued += channel.queued();
            self.channels.open(number, Box::new(channel));
            open.push(number);
            incomplete.push((number, frames));
        }
        for number in open {
            let goes_on = self.channels.get_mut(number).is_some_and(|channel| !channel.is_unplaced());
            if self.suspect && goes_on {
                self.move_to_dedicated(number)?;
            } else {
                self.place(number, Role::General)?;
                self.place(number, Role::Publishing)?;
            }
            self.line_up(number);
        }
        for (channel, frames) in incomplete {
            for (kind, payload) in stored_frames(&frames) {
                self.handle_frame(Frame { kind, channel, payload }, &[], now)?;
            }
        }
        let result = self.go_on();
        self.flush(now);
        result
    }
}
