//! Reason codes of MQTT 5.0 (section 2.4), and their equivalents in older versions.

use std::fmt;

macro_rules! reason_codes {
    ($($code:literal $name:ident $text:literal),* $(,)?) => {
        /// A reason code of MQTT 5.0 (section 2.4). Codes below 0x80 mean success, all others failure.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[expect(missing_docs, reason = "named as in the specification")]
        pub enum ReasonCode { $($name = $code),* }

        impl ReasonCode {
            /// All reason codes, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The byte on the wire.
            pub const fn code(self) -> u8 {
                self as u8
            }

            /// The code with this number. 0 is [`ReasonCode::Success`], which the specification also calls Normal
            /// disconnection and Granted QoS 0.
            pub(crate) const fn from_code(code: u8) -> Option<Self> {
                match code { $($code => Some(Self::$name),)* _ => None }
            }

            /// The code's name in the specification.
            pub const fn text(self) -> &'static str {
                match self { $(Self::$name => $text),* }
            }
        }
    };
}

reason_codes! {
    0x00 Success "Success",
    0x01 GrantedQos1 "Granted QoS 1",
    0x02 GrantedQos2 "Granted QoS 2",
    0x04 DisconnectWithWill "Disconnect with Will Message",
    0x10 NoMatchingSubscribers "No matching subscribers",
    0x11 NoSubscriptionExisted "No subscription existed",
    0x18 ContinueAuthentication "Continue authentication",
    0x19 ReAuthenticate "Re-authenticate",
    0x80 UnspecifiedError "Unspecified error",
    0x81 MalformedPacket "Malformed Packet",
    0x82 ProtocolError "Protocol Error",
    0x83 ImplementationSpecificError "Implementation specific error",
    0x84 UnsupportedProtocolVersion "Unsupported Protocol Version",
    0x85 ClientIdentifierNotValid "Client Identifier not valid",
    0x86 BadUserNameOrPassword "Bad User Name or Password",
    0x87 NotAuthorized "Not authorized",
    0x88 ServerUnavailable "Server unavailable",
    0x89 ServerBusy "Server busy",
    0x8A Banned "Banned",
    0x8B ServerShuttingDown "Server shutting down",
    0x8C BadAuthenticationMethod "Bad authentication method",
    0x8D KeepAliveTimeout "Keep Alive timeout",
    0x8E SessionTakenOver "Session taken over",
    0x8F TopicFilterInvalid "Topic Filter invalid",
    0x90 TopicNameInvalid "Topic Name invalid",
    0x91 PacketIdentifierInUse "Packet Identifier in use",
    0x92 PacketIdentifierNotFound "Packet Identifier not found",
    0x93 ReceiveMaximumExceeded "Receive Maximum exceeded",
    0x94 TopicAliasInvalid "Topic Alias invalid",
    0x95 PacketTooLarge "Packet too large",
    0x96 MessageRateTooHigh "Message rate too high",
    0x97 QuotaExceeded "Quota exceeded",
    0x98 AdministrativeAction "Administrative action",
    0x99 PayloadFormatInvalid "Payload format invalid",
    0x9A RetainNotSupported "Retain not supported",
    0x9B QosNotSupported "QoS not supported",
    0x9C UseAnotherServer "Use another server",
    0x9D ServerMoved "Server moved",
    0x9E SharedSubscriptionsNotSupported "Shared Subscriptions not supported",
    0x9F ConnectionRateExceeded "Connection rate exceeded",
    0xA0 MaximumConnectTime "Maximum connect time",
    0xA1 SubscriptionIdentifiersNotSupported "Subscription Identifiers not supported",
    0xA2 WildcardSubscriptionsNotSupported "Wildcard Subscriptions not supported",
}

impl ReasonCode {
    /// Whether it means failure (section 2.4: 0x80 or greater).
    pub const fn is_error(self) -> bool {
        self as u8 >= 0x80
    }

    /// The closest return code of a CONNACK of MQTT 3.1 and 3.1.1 (3.1.1, section 3.2.2.3).
    pub(crate) const fn connect_return_code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::UnsupportedProtocolVersion => 1,
            Self::ClientIdentifierNotValid => 2,
            Self::BadUserNameOrPassword | Self::BadAuthenticationMethod => 4,
            Self::NotAuthorized | Self::Banned => 5,
            _ => 3,
        }
    }
}

impl fmt::Display for ReasonCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:02X} {}", self.code(), self.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_found_by_their_number() {
        for code in ReasonCode::ALL {
            assert_eq!(ReasonCode::from_code(code.code()), Some(*code));
        }
        assert_eq!(ReasonCode::from_code(0x03), None);
        assert_eq!(ReasonCode::ALL.len(), 43);
    }

    #[test]
    fn older_clients_get_one_of_the_five_refusals() {
        for code in ReasonCode::ALL.iter().filter(|code| code.is_error()) {
            assert!((1..=5).contains(&code.connect_return_code()), "{code}");
        }
        assert_eq!(ReasonCode::ServerBusy.connect_return_code(), 3);
    }
}
