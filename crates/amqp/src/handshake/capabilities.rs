//! The `capabilities` table inside client and server properties (RabbitMQ's extension).

use crate::table::{FieldTable, FieldValue};

macro_rules! capabilities {
    ($($name:ident $wire:literal $doc:literal),* $(,)?) => {
        /// The extensions that a peer supports.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct Capabilities { $(#[doc = $doc] pub $name: bool),* }

        impl Capabilities {
            /// All nine, as RabbitMQ announces them.
            pub const ALL: Self = Self { $($name: true),* };

            /// Reads the table `capabilities` inside client and server properties. A missing or non-boolean entry counts as
            /// unsupported.
            pub fn from_properties(properties: &FieldTable) -> Self {
                let Some(FieldValue::Table(table)) = properties.get(KEY) else { return Self::default() };
                Self { $($name: table.get($wire) == Some(&FieldValue::Boolean(true))),* }
            }

            /// The table with the supported capabilities set to true.
            fn to_table(self) -> FieldTable {
                let mut table = FieldTable::new();
                $(if self.$name { table.insert($wire, FieldValue::Boolean(true)); })*
                table
            }
        }
    };
}

capabilities! {
    publisher_confirms "publisher_confirms" "Confirms of published messages.",
    exchange_exchange_bindings "exchange_exchange_bindings" "`exchange.bind` and `exchange.unbind`.",
    basic_nack "basic.nack" "`basic.nack`.",
    consumer_cancel_notify "consumer_cancel_notify" "`basic.cancel` from the server.",
    connection_blocked "connection.blocked" "`connection.blocked` and `connection.unblocked`.",
    consumer_priorities "consumer_priorities" "The consumer argument `x-priority`.",
    authentication_failure_close "authentication_failure_close"
        "A refused login is answered with `connection.close`, not by closing the socket.",
    per_consumer_qos "per_consumer_qos" "`basic.qos` limits each consumer.",
    direct_reply_to "direct_reply_to" "`amq.rabbitmq.reply-to`.",
}

impl Capabilities {
    /// Adds the table where [`Self::from_properties`] looks for it.
    pub fn add_to(self, properties: &mut FieldTable) {
        properties.insert(KEY, FieldValue::Table(self.to_table()));
    }
}

const KEY: &str = "capabilities";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_survive_a_round_trip() {
        let some = Capabilities { basic_nack: true, connection_blocked: true, ..Default::default() };
        for capabilities in [Capabilities::ALL, Capabilities::default(), some] {
            let mut properties = FieldTable::new();
            capabilities.add_to(&mut properties);
            assert_eq!(Capabilities::from_properties(&properties), capabilities);
        }
        assert_eq!(Capabilities::ALL.to_table().len(), 9);
    }

    #[test]
    fn odd_tables_mean_no_capability() {
        let properties: FieldTable = [(KEY, FieldValue::I32(1))].into_iter().collect();
        assert_eq!(Capabilities::from_properties(&properties), Capabilities::default());
    }
}
