//! DISCONNECT (section 3.14) and AUTH (section 3.15).

use super::{MqttVersion, framed};
use crate::fault::MqttFault;
use crate::properties::{Holder, PacketProperties};
use crate::reason::ReasonCode;
use crate::wire::PacketReader;

/// The end of a connection. Before 5.0 it is sent by clients only and carries no reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disconnect<'a> {
    /// The reason of the disconnection.
    pub reason: ReasonCode,
    /// Properties; empty before 5.0.
    pub properties: PacketProperties<'a>,
}

impl<'a> Disconnect<'a> {
    /// Creates a DISCONNECT without properties.
    pub const fn new(reason: ReasonCode) -> Self {
        Self { reason, properties: PacketProperties::NONE }
    }

    pub(super) fn decode(version: MqttVersion, body: &'a [u8]) -> Result<Self, MqttFault> {
        let mut reader = PacketReader::new(body);
        let mut packet = Self::new(ReasonCode::Success);
        if version.is_5() && !reader.is_empty() {
            packet.reason = ReasonCode::from_code(reader.u8()?)
                .filter(|reason| is_for_disconnect(*reason))
                .ok_or(MqttFault::malformed("unknown reason code"))?;
            if !reader.is_empty() {
                packet.properties = PacketProperties::read(&mut reader, Holder::Disconnect)?;
            }
        }
        reader.finish()?;
        Ok(packet)
    }

    pub(crate) fn encode(&self, version: MqttVersion, out: &mut Vec<u8>) {
        if !version.is_5() || (self.reason == ReasonCode::Success && self.properties.is_empty()) {
            return out.extend_from_slice(&[0xe0, 0]);
        }
        framed(out, 0xe0, |out| {
            out.push(self.reason.code());
            if !self.properties.is_empty() {
                self.properties.put(out);
            }
        });
    }
}

/// Table 3.10.
fn is_for_disconnect(reason: ReasonCode) -> bool {
    use ReasonCode as R;
    match reason {
        R::Success | R::DisconnectWithWill => true,
        R::UnsupportedProtocolVersion
        | R::ClientIdentifierNotValid
        | R::BadUserNameOrPassword
        | R::ServerUnavailable
        | R::Banned
        | R::BadAuthenticationMethod
        | R::PacketIdentifierInUse
        | R::PacketIdentifierNotFound => false,
        _ => reason.is_error(),
    }
}

/// A step of enhanced authentication, from 5.0 on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Auth<'a> {
    /// Success, Continue authentication or Re-authenticate.
    pub reason: ReasonCode,
    /// Properties, including method and data; the data is not printed.
    pub properties: PacketProperties<'a>,
}

impl<'a> Auth<'a> {
    pub(super) fn decode(version: MqttVersion, body: &'a [u8]) -> Result<Self, MqttFault> {
        if !version.is_5() {
            return Err(MqttFault::malformed("reserved packet type"));
        }
        let mut reader = PacketReader::new(body);
        let mut packet = Self { reason: ReasonCode::Success, properties: PacketProperties::NONE };
        if !reader.is_empty() {
            packet.reason = ReasonCode::from_code(reader.u8()?)
                .filter(|reason| {
                    use ReasonCode as R;
                    matches!(reason, R::Success | R::ContinueAuthentication | R::ReAuthenticate)
                })
                .ok_or(MqttFault::malformed("unknown reason code"))?;
            if !reader.is_empty() {
                packet.properties = PacketProperties::read(&mut reader, Holder::Auth)?;
            }
            // Section 3.15.2.2.2.
            if packet.properties.authentication_method().is_none() {
                return Err(MqttFault::protocol("AUTH without a method"));
            }
        }
        reader.finish()?;
        Ok(packet)
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        if self.reason == ReasonCode::Success && self.properties.is_empty() {
            return out.extend_from_slice(&[0xf0, 0]);
        }
        framed(out, 0xf0, |out| {
            out.push(self.reason.code());
            self.properties.put(out);
        });
    }
}

impl std::fmt::Debug for Auth<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Auth")
            .field("reason", &self.reason)
            .field("method", &self.properties.authentication_method())
            .finish_non_exhaustive()
    }
}
