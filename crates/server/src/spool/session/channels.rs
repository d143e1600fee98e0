//! The channels of a client with spooled publishes.

use amqp::content::Assembler;
use amqp::frame::{self, Frame};
use amqp::method::basic;
use amqp::{Fault, Method, ReplyCode};
use spool::ClientConfirms;

/// The open channels; most clients use few.
#[derive(Default)]
pub(super) struct SpoolChannels {
    channels: Vec<SpoolChannel>,
    next_opening: u64,
    /// Bytes of incomplete messages on closed channels.
    released: usize,
}

/// An open channel.
pub(super) struct SpoolChannel {
    number: u16,
    /// Distinguishes it from other channels that have had the number.
    pub(super) opening: u64,
    mode: SpoolMode,
    pub(super) pending: PendingContent,
}

enum SpoolMode {
    Plain,
    Confirm(ClientConfirms),
    Transactional,
}

/// The exchange and routing key of a publish whose content has not arrived.
#[derive(Debug)]
pub(super) struct SpoolDestination {
    pub(super) exchange: Box<str>,
    pub(super) routing_key: Box<str>,
}

/// The publish whose content is being received.
#[derive(Default)]
pub(super) enum PendingContent {
    /// None, or it is passed to the upstream frame by frame.
    #[default]
    None,
    /// The content header decides.
    Undecided {
        /// The frame of basic.publish.
        publish: Vec<u8>,
        destination: SpoolDestination,
    },
    Spooled(Assembler<SpoolDestination>),
}

impl PendingContent {
    pub(super) fn undecided(frame: Frame<'_>, publish: &basic::Publish<'_>) -> Self {
        let destination =
            SpoolDestination { exchange: publish.exchange.into(), routing_key: publish.routing_key.into() };
        let mut bytes = Vec::new();
        frame::write_method(&mut bytes, frame.channel, *publish);
        Self::Undecided { publish: bytes, destination }
    }

    /// Bytes held in memory.
    fn buffered(&self) -> usize {
        match self {
            Self::Spooled(assembler) => assembler.buffered_len(),
            Self::None | Self::Undecided { .. } => 0,
        }
    }
}

impl SpoolChannels {
    pub(super) fn get_mut(&mut self, number: u16) -> Option<&mut SpoolChannel> {
        self.channels.iter_mut().find(|channel| channel.number == number)
    }

    /// Called when the upstream's session has taken a method of the client.
    pub(super) fn handle_method(&mut self, number: u16, method: &Method<'_>) {
        match method {
            Method::ChannelOpen(_) => {
                let opening = self.next_opening;
                self.next_opening += 1;
                self.remove(number);
                let (mode, pending) = (SpoolMode::Plain, PendingContent::None);
                self.channels.push(SpoolChannel { number, opening, mode, pending });
            }
            Method::ChannelClose(_) => self.remove(number),
            Method::ConfirmSelect(_) => {
                if let Some(channel) = self.get_mut(number)
                    && matches!(channel.mode, SpoolMode::Plain)
                {
                    channel.mode = SpoolMode::Confirm(ClientConfirms::default());
                }
            }
            Method::TxSelect(_) => {
                if let Some(channel) = self.get_mut(number)
                    && matches!(channel.mode, SpoolMode::Plain)
                {
                    channel.mode = SpoolMode::Transactional;
                }
            }
            _ => {}
        }
    }

    /// Called when the channel is closed or being closed: the upstream's session discards the client's remaining frames
    /// on it.
    pub(super) fn remove(&mut self, number: u16) {
        let Some(at) = self.channels.iter().position(|channel| channel.number == number) else { return };
        self.released += self.channels.swap_remove(at).pending.buffered();
    }

    /// Called when all channels are closed.
    pub(super) fn end(&mut self) {
        self.released += self.channels.drain(..).map(|channel| channel.pending.buffered()).sum::<usize>();
    }

    /// Bytes of incomplete messages on channels closed since the last call.
    pub(super) fn take_released(&mut self) -> usize {
        std::mem::take(&mut self.released)
    }
}

impl SpoolChannel {
    pub(super) fn is_transactional(&self) -> bool {
        matches!(self.mode, SpoolMode::Transactional)
    }

    pub(super) fn is_spooling(&self) -> bool {
        matches!(self.pending, PendingContent::Spooled(_))
    }

    /// The confirms, if the channel is in confirm mode.
    pub(super) fn confirms(&mut self) -> Option<&mut ClientConfirms> {
        match &mut self.mode {
            SpoolMode::Confirm(confirms) => Some(confirms),
            SpoolMode::Plain | SpoolMode::Transactional => None,
        }
    }

    /// Refuses a method while content is expected, as RabbitMQ does. The upstream's session has not seen the publish.
    pub(super) fn check_method(&self) -> Result<(), Fault> {
        match &self.pending {
            PendingContent::None => Ok(()),
            PendingContent::Undecided { .. } => {
                let text = "expected content header for class 60, got non content header frame instead";
                Err(Fault::new(ReplyCode::UnexpectedFrame, text).caused_by((60, 40)))
            }
            PendingContent::Spooled(assembler) => assembler.check_method(),
        }
    }
}
