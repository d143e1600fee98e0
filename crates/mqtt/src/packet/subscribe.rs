//! SUBSCRIBE, SUBACK, UNSUBSCRIBE and UNSUBACK (sections 3.8 to 3.11).

use super::{MqttVersion, QoS, Reasons, framed};
use crate::fault::MqttFault;
use crate::properties::{Holder, PacketProperties};
use crate::reason::ReasonCode;
use crate::wire::{PacketReader, put_string};

/// When retained messages are sent for a new subscription (section 3.8.3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RetainHandling {
    /// At each SUBSCRIBE.
    #[default]
    Always,
    /// Only if the subscription is new.
    IfNew,
    /// Never.
    Never,
}

impl RetainHandling {
    /// The two bits of the subscription options.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The handling with this number.
    const fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Always),
            1 => Some(Self::IfNew),
            2 => Some(Self::Never),
            _ => None,
        }
    }
}

/// Options of a subscription. Before 5.0 there is only the quality.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SubscribeOptions {
    /// The highest quality at which messages are sent.
    pub qos: QoS,
    /// Whether messages that the client itself published are not sent to it.
    pub no_local: bool,
    /// Whether RETAIN is passed on as the publisher set it.
    pub retain_as_published: bool,
    /// When retained messages are sent.
    pub retain_handling: RetainHandling,
}

impl SubscribeOptions {
    /// Options with this quality and the defaults otherwise.
    pub fn of_qos(qos: QoS) -> Self {
        Self { qos, ..Self::default() }
    }

    /// The byte on the wire (section 3.8.3.1).
    pub fn byte(self) -> u8 {
        self.qos.level()
            | u8::from(self.no_local) << 2
            | u8::from(self.retain_as_published) << 3
            | self.retain_handling.number() << 4
    }

    /// Decodes the options from the byte on the wire.
    ///
    /// # Errors
    /// Reserved bits are set, or QoS or retain handling is 3.
    pub fn from_byte(version: MqttVersion, byte: u8) -> Result<Self, MqttFault> {
        let reserved = if version.is_5() { 0b1100_0000 } else { 0b1111_1100 };
        let (qos, handling) = (QoS::from_level(byte & 0b11), RetainHandling::from_number(byte >> 4 & 0b11));
        match (byte & reserved, qos, handling) {
            (0, Some(qos), Some(retain_handling)) => Ok(Self {
                qos,
                no_local: byte & 0b100 != 0,
                retain_as_published: byte & 0b1000 != 0,
                retain_handling,
            }),
            _ => Err(MqttFault::malformed("invalid subscription options")),
        }
    }
}

/// The most filters in a packet: servers copy them before they handle them, which takes many times the bytes of short ones.
const MAX_FILTERS: usize = 32_768;

/// Counts another filter.
fn check_count(count: &mut usize) -> Result<(), MqttFault> {
    *count += 1;
    if *count > MAX_FILTERS {
        return Err(MqttFault::new(ReasonCode::QuotaExceeded, "too many topic filters in one packet"));
    }
    Ok(())
}

/// One entry of a SUBSCRIBE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubscribeRequest<'a> {
    /// The topic filter as the client sent it; its validity is checked for each entry separately.
    pub filter: &'a str,
    /// The options of the subscription.
    pub options: SubscribeOptions,
}

/// The entries of a SUBSCRIBE: at least one, validated and borrowed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Requests<'a> {
    bytes: &'a [u8],
}

impl<'a> Requests<'a> {
    /// Writes `requests` into `buffer` and borrows them from there. There must be at least one.
    pub fn write<'b>(
        buffer: &'a mut Vec<u8>,
        requests: impl IntoIterator<Item = SubscribeRequest<'b>>,
    ) -> Self {
        for request in requests {
            put_string(buffer, request.filter);
            buffer.push(request.options.byte());
        }
        Self { bytes: buffer }
    }

    fn check(version: MqttVersion, bytes: &'a [u8]) -> Result<Self, MqttFault> {
        let mut reader = PacketReader::new(bytes);
        if reader.is_empty() {
            return Err(MqttFault::protocol("SUBSCRIBE without a topic filter"));
        }
        let mut count = 0;
        while !reader.is_empty() {
            check_count(&mut count)?;
            reader.string()?;
            SubscribeOptions::from_byte(version, reader.u8()?)?;
        }
        Ok(Self { bytes })
    }

    /// The entries in order.
    pub fn iter(&self) -> impl Iterator<Item = SubscribeRequest<'a>> + use<'a> {
        let mut reader = PacketReader::new(self.bytes);
        std::iter::from_fn(move || {
            let filter = reader.string().ok()?;
            // Options that are valid before 5.0 are also valid in 5.0.
            let options = SubscribeOptions::from_byte(MqttVersion::V5, reader.u8().ok()?).ok()?;
            Some(SubscribeRequest { filter, options })
        })
    }
}

impl std::fmt::Debug for Requests<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// The topic filters of an UNSUBSCRIBE: at least one, validated and borrowed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Filters<'a> {
    bytes: &'a [u8],
}

impl<'a> Filters<'a> {
    /// Writes `filters` into `buffer` and borrows them from there. There must be at least one.
    pub fn write<'b>(buffer: &'a mut Vec<u8>, filters: impl IntoIterator<Item = &'b str>) -> Self {
        filters.into_iter().for_each(|filter| put_string(buffer, filter));
        Self { bytes: buffer }
    }

    fn check(bytes: &'a [u8]) -> Result<Self, MqttFault> {
        let mut reader = PacketReader::new(bytes);
        if reader.is_empty() {
            return Err(MqttFault::protocol("UNSUBSCRIBE without a topic filter"));
        }
        let mut count = 0;
        while !reader.is_empty() {
            check_count(&mut count)?;
            reader.string()?;
        }
        Ok(Self { bytes })
    }

    /// The filters in order.
    pub fn iter(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let mut reader = PacketReader::new(self.bytes);
        std::iter::from_fn(move || reader.string().ok())
    }
}

impl std::fmt::Debug for Filters<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

macro_rules! lists {
    ($($(#[$doc:meta])* $name:ident $first:literal $field:ident : $list:ident, $check:expr, $put:expr;)*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq)]
            pub struct $name<'a> {
                /// The packet identifier; an answer has that of its request.
                pub packet_id: u16,
                /// Properties; empty before 5.0.
                pub properties: PacketProperties<'a>,
                /// The entries, in order.
                pub $field: $list<'a>,
            }

            impl<'a> $name<'a> {
                pub(super) fn decode(version: MqttVersion, body: &'a [u8]) -> Result<Self, MqttFault> {
                    let mut reader = PacketReader::new(body);
                    let packet_id = reader.packet_id()?;
                    let properties = match version {
                        MqttVersion::V5 => PacketProperties::read(&mut reader, Holder::$name)?,
                        _ => PacketProperties::NONE,
                    };
                    let check: fn(MqttVersion, &'a [u8]) -> Result<$list<'a>, MqttFault> = $check;
                    Ok(Self { packet_id, properties, $field: check(version, reader.rest())? })
                }

                pub(crate) fn encode(&self, version: MqttVersion, out: &mut Vec<u8>) {
                    framed(out, $first, |out| {
                        out.extend_from_slice(&self.packet_id.to_be_bytes());
                        if version.is_5() {
                            self.properties.put(out);
                        }
                        let put: fn(&$list<'a>, MqttVersion, &mut Vec<u8>) = $put;
                        put(&self.$field, version, out);
                    });
                }
            }
        )*
    };
}

lists! {
    /// A client's request to subscribe.
    Subscribe 0x82 requests: Requests, Requests::check, |list, _, out| out.extend_from_slice(list.bytes);
    /// The answer to a SUBSCRIBE: one reason code for each entry.
    SubAck 0x90 reasons: Reasons, Reasons::subscribed, Reasons::put_subscribed;
    /// A client's request to unsubscribe.
    Unsubscribe 0xa2 filters: Filters, |_, bytes| Filters::check(bytes), |list, _, out| out.extend_from_slice(list.bytes);
    /// The answer to an UNSUBSCRIBE: from 5.0 on, one reason code for each filter.
    UnsubAck 0xb0 reasons: Reasons, Reasons::unsubscribed, Reasons::put_unsubscribed;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_has_a_bounded_number_of_filters() {
        for (count, is_taken) in [(MAX_FILTERS, true), (MAX_FILTERS + 1, false)] {
            let (mut requests, mut filters) = (Vec::new(), Vec::new());
            let options = SubscribeOptions::default();
            Requests::write(&mut requests, (0..count).map(|_| SubscribeRequest { filter: "a", options }));
            Filters::write(&mut filters, (0..count).map(|_| "a"));
            let faults = [
                Requests::check(MqttVersion::V5, &requests).map(|requests| requests.iter().count()),
                Filters::check(&filters).map(|filters| filters.iter().count()),
            ];
            for checked in faults {
                let checked = checked.map_err(|fault| fault.code);
                assert_eq!(checked, if is_taken { Ok(count) } else { Err(ReasonCode::QuotaExceeded) });
            }
        }
    }
}
