//! The table of all properties (section 2.2.2.2), from which all code that depends on it is generated.

use crate::fault::MqttFault;
use crate::wire::{PacketReader, put_binary, put_string, put_varint};

/// The packet, or part of a packet, that a property list belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    /// CONNECT.
    Connect,
    /// The will within a CONNECT.
    Will,
    /// CONNACK.
    ConnAck,
    /// PUBLISH.
    Publish,
    /// PUBACK, PUBREC, PUBREL, PUBCOMP.
    Ack,
    /// SUBSCRIBE.
    Subscribe,
    /// SUBACK.
    SubAck,
    /// UNSUBSCRIBE.
    Unsubscribe,
    /// UNSUBACK.
    UnsubAck,
    /// DISCONNECT.
    Disconnect,
    /// AUTH.
    Auth,
}

macro_rules! properties {
    ($($id:literal $name:ident $getter:ident $type:ident [$($holder:ident)*] $text:literal)*) => {
        /// A property. Integers are as on the wire: intervals in seconds, sizes in bytes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[expect(missing_docs, reason = "named as in the specification")]
        pub enum Property<'a> {
            $($name(properties!(@type $type 'a)),)*
            UserProperty(&'a str, &'a str),
        }

        impl<'a> Property<'a> {
            /// The identifier on the wire.
            pub const fn id(&self) -> u8 {
                match self { $(Self::$name(_) => $id,)* Self::UserProperty(..) => USER_PROPERTY }
            }

            /// Whether the specification allows the property there.
            pub fn is_allowed_in(&self, holder: Holder) -> bool {
                match self {
                    $(Self::$name(_) => [$(Holder::$holder),*].contains(&holder),)*
                    Self::UserProperty(..) => true,
                }
            }

            pub(super) fn read(reader: &mut PacketReader<'a>) -> Result<Self, MqttFault> {
                // It is a variable byte integer, but no identifier needs more than one byte.
                Ok(match reader.varint()? {
                    $($id => Self::$name(properties!(@read $type reader)),)*
                    id if id == u32::from(USER_PROPERTY) => Self::UserProperty(reader.string()?, reader.string()?),
                    _ => return Err(MqttFault::malformed("unknown property")),
                })
            }

            pub(super) fn put(&self, out: &mut Vec<u8>) {
                out.push(self.id());
                match *self {
                    $(Self::$name(value) => properties!(@put $type out value),)*
                    Self::UserProperty(name, value) => {
                        put_string(out, name);
                        put_string(out, value);
                    }
                }
            }
        }

        impl<'a> super::PacketProperties<'a> {
            $(
                #[doc = $text]
                pub fn $getter(&self) -> Option<properties!(@type $type 'a)> {
                    self.iter().find_map(|property| match property {
                        Property::$name(value) => Some(value),
                        _ => None,
                    })
                }
            )*
        }
    };
    (@type flag $a:lifetime) => { bool };
    (@type short $a:lifetime) => { u16 };
    (@type long $a:lifetime) => { u32 };
    (@type varint $a:lifetime) => { u32 };
    (@type text $a:lifetime) => { &$a str };
    (@type data $a:lifetime) => { &$a [u8] };
    (@read flag $reader:ident) => {
        match $reader.u8()? {
            0 => false,
            1 => true,
            _ => return Err(MqttFault::protocol("boolean property other than 0 and 1")),
        }
    };
    (@read short $reader:ident) => { $reader.u16()? };
    (@read long $reader:ident) => { $reader.u32()? };
    (@read varint $reader:ident) => { $reader.varint()? };
    (@read text $reader:ident) => { $reader.string()? };
    (@read data $reader:ident) => { $reader.binary()? };
    (@put flag $out:ident $value:ident) => { $out.push(u8::from($value)) };
    (@put short $out:ident $value:ident) => { $out.extend_from_slice(&$value.to_be_bytes()) };
    (@put long $out:ident $value:ident) => { $out.extend_from_slice(&$value.to_be_bytes()) };
    (@put varint $out:ident $value:ident) => { put_varint($out, $value) };
    (@put text $out:ident $value:ident) => { put_string($out, $value) };
    (@put data $out:ident $value:ident) => { put_binary($out, $value) };
}

/// Allowed in any packet, any number of times.
const USER_PROPERTY: u8 = 38;

properties! {
    1 PayloadFormatIndicator payload_format_indicator flag [Publish Will] "Whether the payload is UTF-8 text."
    2 MessageExpiryInterval message_expiry_interval long [Publish Will] "Seconds until the message expires."
    3 ContentType content_type text [Publish Will] "Description of the payload, such as a MIME type."
    8 ResponseTopic response_topic text [Publish Will] "Topic for the response."
    9 CorrelationData correlation_data data [Publish Will] "Data that the response repeats."
    11 SubscriptionIdentifier subscription_identifier varint [Publish Subscribe]
        "The first Subscription Identifier."
    17 SessionExpiryInterval session_expiry_interval long [Connect ConnAck Disconnect]
        "Seconds that the session outlives the connection."
    18 AssignedClientIdentifier assigned_client_identifier text [ConnAck] "The client identifier that the server assigned."
    19 ServerKeepAlive server_keep_alive short [ConnAck] "Seconds, in place of the client's Keep Alive."
    21 AuthenticationMethod authentication_method text [Connect ConnAck Auth] "Of enhanced authentication."
    22 AuthenticationData authentication_data data [Connect ConnAck Auth] "Of enhanced authentication."
    23 RequestProblemInformation request_problem_information flag [Connect]
        "Whether reason strings are wanted with every failure."
    24 WillDelayInterval will_delay_interval long [Will] "Seconds between the connection's end and the will."
    25 RequestResponseInformation request_response_information flag [Connect]
        "Whether Response Information is wanted."
    26 ResponseInformation response_information text [ConnAck] "Basis of response topics."
    28 ServerReference server_reference text [ConnAck Disconnect] "Another server."
    31 ReasonString reason_string text [ConnAck Ack SubAck UnsubAck Disconnect Auth] "For people."
    33 ReceiveMaximum receive_maximum short [Connect ConnAck] "Messages of QoS 1 and 2 that may be in flight."
    34 TopicAliasMaximum topic_alias_maximum short [Connect ConnAck] "The highest Topic Alias accepted."
    35 TopicAlias topic_alias short [Publish] "A number in place of the topic."
    36 MaximumQos maximum_qos flag [ConnAck] "The highest QoS below 2."
    37 RetainAvailable retain_available flag [ConnAck] "Whether messages may be retained."
    39 MaximumPacketSize maximum_packet_size long [Connect ConnAck] "Bytes of the largest packet accepted."
    40 WildcardSubscriptionAvailable wildcard_subscription_available flag [ConnAck] "Whether filters may have wildcards."
    41 SubscriptionIdentifiersAvailable subscription_identifiers_available flag [ConnAck]
        "Whether subscriptions may have identifiers."
    42 SharedSubscriptionAvailable shared_subscription_available flag [ConnAck] "Whether subscriptions may be shared."
}
