//! Properties of MQTT 5.0 (section 2.2.2): validated when they are decoded, and borrowed, not copied.

mod table;

use std::fmt;

pub use table::{Holder, Property};

use crate::fault::MqttFault;
use crate::reason::ReasonCode;
use crate::wire::{PacketReader, put_varint, varint_len};

/// The properties of a packet, possibly none. They are well-formed, allowed in their packet, and not repeated
/// where that is forbidden: code that has a `Properties` need not check again.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct PacketProperties<'a> {
    /// The list without the length in front.
    bytes: &'a [u8],
}

impl<'a> PacketProperties<'a> {
    /// The empty list of properties.
    pub const NONE: Self = Self { bytes: &[] };

    /// Validates `bytes`, a property list without its length.
    ///
    /// # Errors
    /// Malformed Packet; Protocol Error if a property is repeated, not allowed in the packet, or has a
    /// forbidden value; Topic Alias invalid for the alias 0.
    pub fn check(bytes: &'a [u8], holder: Holder) -> Result<Self, MqttFault> {
        let mut reader = PacketReader::new(bytes);
        let mut seen = 0u64;
        while !reader.is_empty() {
            let property = Property::read(&mut reader)?;
            if !property.is_allowed_in(holder) {
                return Err(MqttFault::protocol("property that this packet cannot have"));
            }
            let bit = 1 << property.id();
            if seen & bit != 0 && !property.may_repeat(holder) {
                return Err(MqttFault::protocol("property given twice"));
            }
            seen |= bit;
            property.check_value()?;
        }
        // Section 3.1.2.11.10; the same applies to CONNACK and AUTH.
        const AUTHENTICATION: u64 = 1 << 21 | 1 << 22;
        if seen & AUTHENTICATION == 1 << 22 {
            return Err(MqttFault::protocol("authentication data without a method"));
        }
        Ok(Self { bytes })
    }

    /// Reads a length and a property list.
    pub(crate) fn read(reader: &mut PacketReader<'a>, holder: Holder) -> Result<Self, MqttFault> {
        let len = reader.varint()?;
        Self::check(reader.take(len as usize)?, holder)
    }

    /// The properties in order.
    pub fn iter(&self) -> impl Iterator<Item = Property<'a>> + use<'a> {
        let mut reader = PacketReader::new(self.bytes);
        std::iter::from_fn(move || if reader.is_empty() { None } else { Property::read(&mut reader).ok() })
    }

    /// The list as on the wire, without its length.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Names and values of the User Properties, in order.
    pub fn user_properties(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        self.iter().filter_map(|property| match property {
            Property::UserProperty(name, value) => Some((name, value)),
            _ => None,
        })
    }

    /// Bytes on the wire, including the length in front.
    #[inline]
    pub(crate) fn wire_len(&self) -> usize {
        varint_len(self.bytes.len() as u32) + self.bytes.len()
    }

    /// Appends the length and the list.
    #[inline]
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        put_varint(out, self.bytes.len() as u32);
        out.extend_from_slice(self.bytes);
    }
}

impl fmt::Debug for PacketProperties<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// A property list to be sent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PropertyList {
    bytes: Vec<u8>,
}

impl PropertyList {
    /// Creates a list without properties.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a property in its wire format.
    pub fn push(&mut self, property: Property<'_>) {
        property.put(&mut self.bytes);
    }

    /// Appends a property, as [`Self::push`] does, and returns the list.
    #[must_use]
    pub fn with(mut self, property: Property<'_>) -> Self {
        self.push(property);
        self
    }

    /// Validates a list that came from [`PacketProperties::bytes`] of a PUBLISH.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, MqttFault> {
        PacketProperties::check(bytes, Holder::Publish)?;
        Ok(Self { bytes: bytes.to_vec() })
    }

    /// The list as a packet takes it. The code that pushed the properties ensures that they are allowed there.
    pub fn as_properties(&self) -> PacketProperties<'_> {
        PacketProperties { bytes: &self.bytes }
    }
}

impl Property<'_> {
    /// Checks for values that are well-formed but forbidden.
    fn check_value(&self) -> Result<(), MqttFault> {
        match self {
            Self::ReceiveMaximum(0) => Err(MqttFault::protocol("Receive Maximum 0")),
            Self::MaximumPacketSize(0) => Err(MqttFault::protocol("Maximum Packet Size 0")),
            Self::SubscriptionIdentifier(0) => Err(MqttFault::protocol("Subscription Identifier 0")),
            Self::TopicAlias(0) => Err(MqttFault::new(ReasonCode::TopicAliasInvalid, "Topic Alias 0")),
            _ => Ok(()),
        }
    }

    fn may_repeat(&self, holder: Holder) -> bool {
        match self {
            Self::UserProperty(..) => true,
            Self::SubscriptionIdentifier(_) => holder == Holder::Publish,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests;
