//! The life cycle of channels, and of the connection around them, at the server's end.
//!
//! For every frame call [`ConnectionLife::frame`] first; pass frames for which it returns [`ConnectionStep::Channel`]
//! to [`ChannelTable::method`] or [`ChannelTable::content`]. Neither sends anything: the caller does, and reports back
//! by [`ChannelTable::open`], [`ChannelTable::start_closing`] and [`ChannelTable::remove`].
//!
//! A channel is closed, open, or closing. It is closing from the server's `channel.close` to the client's `close-ok`;
//! frames in between were sent by a client that did not know yet, and are discarded.

mod connection;
#[cfg(test)]
mod tests;

pub use connection::{ConnectionLife, ConnectionStep};

use crate::error::{Fault, ReplyCode};
use crate::method::Method;

/// The channels of a connection; `T` is the caller's state of an open one. Box it if it is large, since the table is
/// one contiguous allocation.
#[derive(Debug)]
pub struct ChannelTable<T> {
    /// Sorted by number.
    slots: Vec<Slot<T>>,
    /// 0 means no limit.
    channel_max: u16,
}

#[derive(Debug)]
struct Slot<T> {
    number: u16,
    /// `None` while the channel is closing.
    open: Option<T>,
}

/// The action to take for a method on a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelStep {
    /// `channel.open`: call [`ChannelTable::open`] and send `channel.open-ok`.
    Open,
    /// A method for an open channel.
    Deliver,
    /// The client sent `channel.close` for an open channel: clean up, call [`ChannelTable::remove`], send
    /// `channel.close-ok`.
    Close,
    /// Send `channel.close-ok`: both ends closed at the same time. The client's `close-ok` has yet to arrive.
    AnswerClose,
    /// The client sent `channel.close-ok`; the channel is closed now.
    Closed,
    /// Ignore it: it was sent before the client knew that the channel is closing.
    Discard,
}

impl<T> ChannelTable<T> {
    /// A table without open channels; at most `channel_max` (0: no limit) can be opened.
    pub const fn new(channel_max: u16) -> Self {
        Self { slots: Vec::new(), channel_max }
    }

    /// Validates a method frame and returns the action to take.
    ///
    /// # Errors
    /// 504 CHANNEL_ERROR for a method on a closed channel or a second `channel.open`; 530 NOT_ALLOWED if all channels
    /// are in use. Both end the connection, with RabbitMQ's texts.
    #[inline]
    pub fn method(&mut self, channel: u16, method: &Method<'_>) -> Result<ChannelStep, Fault> {
        let Ok(at) = self.find(channel) else { return self.on_closed(method) };
        let is_open = self.slots[at].open.is_some();
        Ok(match (is_open, method) {
            (true, Method::ChannelClose(_)) => ChannelStep::Close,
            (true, Method::ChannelOpen(_)) => {
                let fault = Fault::new(ReplyCode::ChannelError, "second 'channel.open' seen");
                return Err(fault.caused_by(method.ids()));
            }
            (true, _) => ChannelStep::Deliver,
            (false, Method::ChannelClose(_)) => ChannelStep::AnswerClose,
            (false, Method::ChannelCloseOk(_)) => {
                self.slots.remove(at);
                ChannelStep::Closed
            }
            (false, _) => ChannelStep::Discard,
        })
    }

    /// Validates a header or body frame; returns `None` if the caller must discard it.
    ///
    /// # Errors
    /// 505 UNEXPECTED_FRAME on a closed channel.
    #[inline]
    pub fn content(&mut self, channel: u16) -> Result<Option<&mut T>, Fault> {
        match self.find(channel) {
            Ok(at) => Ok(self.slots[at].open.as_mut()),
            Err(_) => {
                self.check_channel_count()?;
                let text = "expected method frame, got non method frame instead";
                Err(Fault::new(ReplyCode::UnexpectedFrame, text))
            }
        }
    }

    /// Opens a channel after [`ChannelStep::Open`].
    pub fn open(&mut self, channel: u16, state: T) -> &mut T {
        let at = match self.find(channel) {
            Ok(at) => at,
            Err(at) => {
                self.slots.insert(at, Slot { number: channel, open: None });
                at
            }
        };
        self.slots[at].open.insert(state)
    }

    /// Marks a channel as closing after the server has sent `channel.close`, and returns its state.
    pub fn start_closing(&mut self, channel: u16) -> Option<T> {
        let at = self.find(channel).ok()?;
        self.slots[at].open.take()
    }

    /// Removes a channel that the client has closed, and returns its state.
    pub fn remove(&mut self, channel: u16) -> Option<T> {
        let at = self.find(channel).ok()?;
        self.slots.remove(at).open
    }

    /// The state of an open channel.
    #[inline]
    pub fn get_mut(&mut self, channel: u16) -> Option<&mut T> {
        let at = self.find(channel).ok()?;
        self.slots[at].open.as_mut()
    }

    /// The state of an open channel.
    #[inline]
    pub fn get(&self, channel: u16) -> Option<&T> {
        let at = self.find(channel).ok()?;
        self.slots[at].open.as_ref()
    }

    /// The open channels, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &T)> {
        self.slots.iter().filter_map(|slot| Some((slot.number, slot.open.as_ref()?)))
    }

    /// The open channels, in the order of their numbers.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u16, &mut T)> {
        self.slots.iter_mut().filter_map(|slot| Some((slot.number, slot.open.as_mut()?)))
    }

    /// The numbers of the closing channels, in ascending order.
    pub fn closing(&self) -> impl Iterator<Item = u16> {
        self.slots.iter().filter(|slot| slot.open.is_none()).map(|slot| slot.number)
    }

    /// Removes all channels when the connection ends, and returns the state of the open ones.
    pub fn drain(&mut self) -> impl Iterator<Item = (u16, T)> {
        self.slots.drain(..).filter_map(|slot| Some((slot.number, slot.open?)))
    }

    /// How many channels are open or closing.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether every channel is closed.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Clients number their channels from 1 on, so a channel is usually at the index of its number.
    #[inline]
    fn find(&self, channel: u16) -> Result<usize, usize> {
        let guess = usize::from(channel).wrapping_sub(1);
        match self.slots.get(guess) {
            Some(slot) if slot.number == channel => Ok(guess),
            _ => self.slots.binary_search_by_key(&channel, |slot| slot.number),
        }
    }

    #[cold]
    fn on_closed(&self, method: &Method<'_>) -> Result<ChannelStep, Fault> {
        self.check_channel_count().map_err(|fault| fault.caused_by(method.ids()))?;
        if matches!(method, Method::ChannelOpen(_)) {
            return Ok(ChannelStep::Open);
        }
        Err(Fault::new(ReplyCode::ChannelError, "expected 'channel.open'").caused_by(method.ids()))
    }

    /// Like RabbitMQ, counts channels and ignores their numbers.
    fn check_channel_count(&self) -> Result<(), Fault> {
        let (count, max) = (self.slots.len(), self.channel_max);
        if max == 0 || count < usize::from(max) {
            return Ok(());
        }
        let text =
            format!("number of channels opened ({count}) has reached the negotiated channel_max ({max})");
        Err(Fault::new(ReplyCode::NotAllowed, text))
    }
}
