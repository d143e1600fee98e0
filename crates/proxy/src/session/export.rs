//! A client that continues in another process: its channels leave their upstream connections, and what is left is a state
//! that a session of another pool begins with. Its channels are placed there as after the loss of an upstream connection
//! (P7).

use std::time::Instant;

use amqp::{Fault, Frame};

use super::side::Side;
use super::state::{ChannelState, SessionState};
use super::{Life, ProxySession};
use crate::frames::stored_frames;
use crate::upstream::Role;

/// How far a client is on its way to another process.
#[derive(Debug)]
pub enum Export {
    /// It depends on its upstream connection, for this reason.
    Impossible(&'static str),
    /// It cannot leave now; it is to be served on, and asked again after the next frame or nudge.
    Later,
    /// Its channels leave their upstream connections: no frame may be passed to the session any more. It is to be asked again
    /// after the next nudge.
    Leaving,
    /// Nothing of it is left here: the session has ended.
    Done(Box<SessionState>),
}

impl ProxySession {
    /// Takes the next step on the client's way to another process.
    pub fn export(&mut self, now: Instant) -> Export {
        self.output.now = now;
        if !self.is_exporting {
            if let Some(why) = self.export_blocker() {
                return Export::Impossible(why);
            }
            if self.poll_export_ready() {
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

    /// The reason for which the client cannot continue elsewhere: something of it ends with its upstream connection.
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

    /// Whether something is under way that has to end first. If so, an event or a frame of the client ends it.
    fn poll_export_ready(&mut self) -> bool {
        // The next process knows nothing of these, so that a method would overtake their messages there.
        if self.output.closed.ask() != 0 {
            return true;
        }
        // The answer to a request for a consumer shows what it depends on.
        let waits_for_answers = |side: &Side| !side.poll_late_answers();
        self.link.has_events()
            || self.unanswered_secrets > 0
            || self.budget.waits()
            || self.budget.has_stream()
            || self.is_streaming()
            || self.channels.iter().any(|(_, channel)| channel.is_closing())
            || self.channels.iter().flat_map(|(_, channel)| channel.sides()).any(waits_for_answers)
    }

    /// Whether a restart of the broker may have undone declarations of the client, which are not repeated yet.
    fn is_torn(&self) -> bool {
        self.pool.topologies().is_torn(&self.virtual_host, self.link.declarer_id())
    }

    /// Has all channels leave their upstream connections. A channel that had begun to move does so anyway.
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
            // A side that only was to go to the client's own connection has a publishing side beside it.
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

    /// Begins where a session of another process has left, before anything else. Its declarations are repeated if `is_torn`, or
    /// if they were in question there.
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
