//! The methods of AMQP 0-9-1 with RabbitMQ's extensions, generated from one table of the specification.
//!
//! Received methods borrow from their frame; a method to be sent borrows from wherever its parts live.

use crate::table::RawTable;
use crate::wire::{DecodeError, Field, Reader, Writer};

macro_rules! methods {
    ($($class_id:literal $class:ident $class_doc:literal {
        $($id:literal $wire:literal $name:ident $variant:ident $(<$lt:lifetime>)? {
            $($field:ident : $kind:ty),* $(,)?
        })*
    })*) => {
        $(
            #[doc = $class_doc]
            #[allow(missing_docs, reason = "fields have the names and meanings of the specification")]
            pub mod $class {
                #[allow(unused_imports, reason = "not every class has tables")]
                use super::*;
                $(
                    #[doc = concat!("`", $wire, "` (class ", $class_id, ", method ", $id, ").")]
                    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
                    pub struct $name $(<$lt>)? { $(pub $field: $kind),* }
                )*
            }
        )*

        /// Any method, as the payload of a method frame.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[expect(missing_docs, reason = "each variant wraps the struct of the same name")]
        pub enum Method<'a> {
            $($($variant($class::$name $(::<$lt>)?)),*),*
        }

        $($(
            impl<'a> From<$class::$name $(<$lt>)?> for Method<'a> {
                fn from(method: $class::$name $(<$lt>)?) -> Self { Self::$variant(method) }
            }
        )*)*

        impl<'a> Method<'a> {
            /// Decodes the payload of a method frame.
            ///
            /// # Errors
            /// The method is unknown, its arguments are malformed, or bytes are left over.
            #[inline]
            pub fn decode(payload: &'a [u8]) -> Result<Self, DecodeError> {
                let mut reader = Reader::new(payload);
                let (class_id, method_id): (u16, u16) = (reader.read()?, reader.read()?);
                let method = match (class_id, method_id) {
                    $($(
                        ($class_id, $id) => Self::$variant($class::$name { $($field: reader.read()?),* }),
                    )*)*
                    _ => return Err(DecodeError::UnknownMethod { class_id, method_id }),
                };
                reader.finish()?;
                Ok(method)
            }

            /// Appends class id, method id and arguments: the payload of a method frame.
            #[inline]
            pub fn encode(&self, out: &mut Vec<u8>) {
                let mut writer = Writer::new(out);
                match self {
                    $($(
                        Self::$variant($class::$name { $($field),* }) => {
                            writer.put(&[0, $class_id, 0, $id]);
                            $(Field::write($field, &mut writer);)*
                        }
                    )*)*
                }
            }

            /// Class id and method id.
            pub fn ids(&self) -> (u16, u16) {
                match self {
                    $($(Self::$variant(..) => ($class_id, $id),)*)*
                }
            }

            /// The specification's name, such as `basic.publish`.
            pub fn name(&self) -> &'static str {
                match self {
                    $($(Self::$variant(..) => $wire,)*)*
                }
            }
        }

        /// Every method: class id, method id and name.
        pub const METHODS: &[(u16, u16, &str)] = &[$($(($class_id, $id, $wire),)*)*];
    };
}

methods! {
    10 connection "Work with socket connections." {
        10 "connection.start" Start ConnectionStart<'a> { version_major: u8, version_minor: u8, server_properties: RawTable<'a>, mechanisms: &'a [u8], locales: &'a [u8] }
        11 "connection.start-ok" StartOk ConnectionStartOk<'a> { client_properties: RawTable<'a>, mechanism: &'a str, response: &'a [u8], locale: &'a str }
        20 "connection.secure" Secure ConnectionSecure<'a> { challenge: &'a [u8] }
        21 "connection.secure-ok" SecureOk ConnectionSecureOk<'a> { response: &'a [u8] }
        30 "connection.tune" Tune ConnectionTune { channel_max: u16, frame_max: u32, heartbeat: u16 }
        31 "connection.tune-ok" TuneOk ConnectionTuneOk { channel_max: u16, frame_max: u32, heartbeat: u16 }
        40 "connection.open" Open ConnectionOpen<'a> { virtual_host: &'a str, reserved_1: &'a str, reserved_2: bool }
        41 "connection.open-ok" OpenOk ConnectionOpenOk<'a> { reserved_1: &'a str }
        50 "connection.close" Close ConnectionClose<'a> { reply_code: u16, reply_text: &'a str, class_id: u16, method_id: u16 }
        51 "connection.close-ok" CloseOk ConnectionCloseOk { }
        60 "connection.blocked" Blocked ConnectionBlocked<'a> { reason: &'a str }
        61 "connection.unblocked" Unblocked ConnectionUnblocked { }
        70 "connection.update-secret" UpdateSecret ConnectionUpdateSecret<'a> { new_secret: &'a [u8], reason: &'a str }
        71 "connection.update-secret-ok" UpdateSecretOk ConnectionUpdateSecretOk { }
    }
    20 channel "Work with channels." {
        10 "channel.open" Open ChannelOpen<'a> { reserved_1: &'a str }
        11 "channel.open-ok" OpenOk ChannelOpenOk<'a> { reserved_1: &'a [u8] }
        20 "channel.flow" Flow ChannelFlow { active: bool }
        21 "channel.flow-ok" FlowOk ChannelFlowOk { active: bool }
        40 "channel.close" Close ChannelClose<'a> { reply_code: u16, reply_text: &'a str, class_id: u16, method_id: u16 }
        41 "channel.close-ok" CloseOk ChannelCloseOk { }
    }
    30 access "Access tickets, of which only the request is answered, for old clients." {
        10 "access.request" Request AccessRequest<'a> { realm: &'a str, exclusive: bool, passive: bool, active: bool, write: bool, read: bool }
        11 "access.request-ok" RequestOk AccessRequestOk { reserved_1: u16 }
    }
    40 exchange "Work with exchanges." {
        10 "exchange.declare" Declare ExchangeDeclare<'a> { reserved_1: u16, exchange: &'a str, kind: &'a str, passive: bool, durable: bool, auto_delete: bool, internal: bool, no_wait: bool, arguments: RawTable<'a> }
        11 "exchange.declare-ok" DeclareOk ExchangeDeclareOk { }
        20 "exchange.delete" Delete ExchangeDelete<'a> { reserved_1: u16, exchange: &'a str, if_unused: bool, no_wait: bool }
        21 "exchange.delete-ok" DeleteOk ExchangeDeleteOk { }
        30 "exchange.bind" Bind ExchangeBind<'a> { reserved_1: u16, destination: &'a str, source: &'a str, routing_key: &'a str, no_wait: bool, arguments: RawTable<'a> }
        31 "exchange.bind-ok" BindOk ExchangeBindOk { }
        40 "exchange.unbind" Unbind ExchangeUnbind<'a> { reserved_1: u16, destination: &'a str, source: &'a str, routing_key: &'a str, no_wait: bool, arguments: RawTable<'a> }
        51 "exchange.unbind-ok" UnbindOk ExchangeUnbindOk { }
    }
    50 queue "Work with queues." {
        10 "queue.declare" Declare QueueDeclare<'a> { reserved_1: u16, queue: &'a str, passive: bool, durable: bool, exclusive: bool, auto_delete: bool, no_wait: bool, arguments: RawTable<'a> }
        11 "queue.declare-ok" DeclareOk QueueDeclareOk<'a> { queue: &'a str, message_count: u32, consumer_count: u32 }
        20 "queue.bind" Bind QueueBind<'a> { reserved_1: u16, queue: &'a str, exchange: &'a str, routing_key: &'a str, no_wait: bool, arguments: RawTable<'a> }
        21 "queue.bind-ok" BindOk QueueBindOk { }
        30 "queue.purge" Purge QueuePurge<'a> { reserved_1: u16, queue: &'a str, no_wait: bool }
        31 "queue.purge-ok" PurgeOk QueuePurgeOk { message_count: u32 }
        40 "queue.delete" Delete QueueDelete<'a> { reserved_1: u16, queue: &'a str, if_unused: bool, if_empty: bool, no_wait: bool }
        41 "queue.delete-ok" DeleteOk QueueDeleteOk { message_count: u32 }
        50 "queue.unbind" Unbind QueueUnbind<'a> { reserved_1: u16, queue: &'a str, exchange: &'a str, routing_key: &'a str, arguments: RawTable<'a> }
        51 "queue.unbind-ok" UnbindOk QueueUnbindOk { }
    }
    60 basic "Work with basic content." {
        10 "basic.qos" Qos BasicQos { prefetch_size: u32, prefetch_count: u16, global: bool }
        11 "basic.qos-ok" QosOk BasicQosOk { }
        20 "basic.consume" Consume BasicConsume<'a> { reserved_1: u16, queue: &'a str, consumer_tag: &'a str, no_local: bool, no_ack: bool, exclusive: bool, no_wait: bool, arguments: RawTable<'a> }
        21 "basic.consume-ok" ConsumeOk BasicConsumeOk<'a> { consumer_tag: &'a str }
        30 "basic.cancel" Cancel BasicCancel<'a> { consumer_tag: &'a str, no_wait: bool }
        31 "basic.cancel-ok" CancelOk BasicCancelOk<'a> { consumer_tag: &'a str }
        40 "basic.publish" Publish BasicPublish<'a> { reserved_1: u16, exchange: &'a str, routing_key: &'a str, mandatory: bool, immediate: bool }
        50 "basic.return" Return BasicReturn<'a> { reply_code: u16, reply_text: &'a str, exchange: &'a str, routing_key: &'a str }
        60 "basic.deliver" Deliver BasicDeliver<'a> { consumer_tag: &'a str, delivery_tag: u64, redelivered: bool, exchange: &'a str, routing_key: &'a str }
        70 "basic.get" Get BasicGet<'a> { reserved_1: u16, queue: &'a str, no_ack: bool }
        71 "basic.get-ok" GetOk BasicGetOk<'a> { delivery_tag: u64, redelivered: bool, exchange: &'a str, routing_key: &'a str, message_count: u32 }
        72 "basic.get-empty" GetEmpty BasicGetEmpty<'a> { reserved_1: &'a str }
        80 "basic.ack" Ack BasicAck { delivery_tag: u64, multiple: bool }
        90 "basic.reject" Reject BasicReject { delivery_tag: u64, requeue: bool }
        100 "basic.recover-async" RecoverAsync BasicRecoverAsync { requeue: bool }
        110 "basic.recover" Recover BasicRecover { requeue: bool }
        111 "basic.recover-ok" RecoverOk BasicRecoverOk { }
        120 "basic.nack" Nack BasicNack { delivery_tag: u64, multiple: bool, requeue: bool }
    }
    85 confirm "Publisher confirms (RabbitMQ)." {
        10 "confirm.select" Select ConfirmSelect { no_wait: bool }
        11 "confirm.select-ok" SelectOk ConfirmSelectOk { }
    }
    90 tx "Transactions." {
        10 "tx.select" Select TxSelect { }
        11 "tx.select-ok" SelectOk TxSelectOk { }
        20 "tx.commit" Commit TxCommit { }
        21 "tx.commit-ok" CommitOk TxCommitOk { }
        30 "tx.rollback" Rollback TxRollback { }
        31 "tx.rollback-ok" RollbackOk TxRollbackOk { }
    }
}

/// The class id of methods that carry content.
pub const BASIC_CLASS: u16 = 60;

impl Method<'_> {
    /// Whether a content header and body follow this method on its channel.
    pub fn has_content(&self) -> bool {
        matches!(
            self,
            Self::BasicPublish(_) | Self::BasicReturn(_) | Self::BasicDeliver(_) | Self::BasicGetOk(_)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publish_has_the_layout_of_the_specification() {
        let publish = basic::Publish {
            exchange: "e",
            routing_key: "key",
            mandatory: true,
            immediate: false,
            ..Default::default()
        };
        let mut out = Vec::new();
        Method::from(publish).encode(&mut out);
        assert_eq!(out, b"\0\x3c\0\x28\0\0\x01e\x03key\x01");
        assert_eq!(Method::decode(&out), Ok(Method::BasicPublish(publish)));
    }

    #[test]
    fn unknown_ids_and_left_over_bytes_are_refused() {
        assert_eq!(
            Method::decode(&[0, 60, 0, 41]),
            Err(DecodeError::UnknownMethod { class_id: 60, method_id: 41 })
        );
        assert_eq!(Method::decode(&[0, 90, 0, 10, 0]), Err(DecodeError::TrailingData));
    }

    #[test]
    fn names_are_those_of_the_specification() {
        assert_eq!(Method::ConfirmSelectOk(confirm::SelectOk {}).name(), "confirm.select-ok");
        assert_eq!(
            Method::BasicRecoverAsync(basic::RecoverAsync { requeue: true }).name(),
            "basic.recover-async"
        );
    }
}
