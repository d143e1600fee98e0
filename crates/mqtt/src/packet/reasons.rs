//! The reason codes of SUBACK and UNSUBACK (sections 3.9.3 and 3.11.3).

use super::MqttVersion;
use crate::fault::MqttFault;
use crate::reason::ReasonCode;

/// Reason codes, one for each entry of the request; validated and borrowed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Reasons<'a> {
    bytes: &'a [u8],
}

impl<'a> Reasons<'a> {
    /// Writes `reasons` into `buffer` and borrows them from there.
    pub fn write(buffer: &'a mut Vec<u8>, reasons: impl IntoIterator<Item = ReasonCode>) -> Self {
        buffer.extend(reasons.into_iter().map(ReasonCode::code));
        Self { bytes: buffer }
    }

    pub(super) fn subscribed(version: MqttVersion, bytes: &'a [u8]) -> Result<Self, MqttFault> {
        let allowed = |reason: ReasonCode| match version {
            MqttVersion::V5 => matches!(
                reason,
                ReasonCode::Success
                    | ReasonCode::GrantedQos1
                    | ReasonCode::GrantedQos2
                    | ReasonCode::UnspecifiedError
                    | ReasonCode::ImplementationSpecificError
                    | ReasonCode::NotAuthorized
                    | ReasonCode::TopicFilterInvalid
                    | ReasonCode::PacketIdentifierInUse
                    | ReasonCode::QuotaExceeded
                    | ReasonCode::SharedSubscriptionsNotSupported
                    | ReasonCode::SubscriptionIdentifiersNotSupported
                    | ReasonCode::WildcardSubscriptionsNotSupported
            ),
            _ => matches!(reason.code(), 0..=2 | 0x80),
        };
        Self::check(bytes, allowed)
    }

    pub(super) fn unsubscribed(version: MqttVersion, bytes: &'a [u8]) -> Result<Self, MqttFault> {
        if !version.is_5() {
            return match bytes {
                [] => Ok(Self { bytes }),
                _ => Err(MqttFault::malformed("bytes left over after the last field")),
            };
        }
        Self::check(bytes, |reason| {
            matches!(
                reason,
                ReasonCode::Success
                    | ReasonCode::NoSubscriptionExisted
                    | ReasonCode::UnspecifiedError
                    | ReasonCode::ImplementationSpecificError
                    | ReasonCode::NotAuthorized
                    | ReasonCode::TopicFilterInvalid
                    | ReasonCode::PacketIdentifierInUse
            )
        })
    }

    fn check(bytes: &'a [u8], allowed: impl Fn(ReasonCode) -> bool) -> Result<Self, MqttFault> {
        if bytes.is_empty() {
            return Err(MqttFault::malformed("no reason codes"));
        }
        match bytes.iter().all(|code| ReasonCode::from_code(*code).is_some_and(&allowed)) {
            true => Ok(Self { bytes }),
            false => Err(MqttFault::malformed("unknown reason code")),
        }
    }

    /// The reason codes in order; none in an UNSUBACK before 5.0.
    pub fn iter(&self) -> impl Iterator<Item = ReasonCode> + use<'a> {
        self.bytes.iter().filter_map(|code| ReasonCode::from_code(*code))
    }

    /// Appends the payload of a SUBACK: before 5.0 there is a single failure code.
    pub(super) fn put_subscribed(&self, version: MqttVersion, out: &mut Vec<u8>) {
        out.extend(self.bytes.iter().map(|code| match code {
            0x80.. if !version.is_5() => 0x80,
            code => *code,
        }));
    }

    /// Appends the payload of an UNSUBACK: empty before 5.0.
    pub(super) fn put_unsubscribed(&self, version: MqttVersion, out: &mut Vec<u8>) {
        if version.is_5() {
            out.extend_from_slice(self.bytes);
        }
    }
}

impl std::fmt::Debug for Reasons<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
