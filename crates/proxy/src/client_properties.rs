//! The client properties of an upstream connection (P9), shown in the broker's list of connections.

use std::borrow::Cow;

use amqp::{Capabilities, FieldTable, FieldValue};

use crate::pool::ClientInfo;

/// Describes the client behind a connection when it is opened.
#[derive(Debug, Clone)]
pub(crate) struct ClientProperties {
    connection_name: Cow<'static, str>,
    /// Product, version and platform of the one client that the connection is opened for, as that client
    /// reports them.
    client: Option<Box<str>>,
}

impl ClientProperties {
    /// For a connection that clients share.
    pub(crate) const SHARED: Self = Self { connection_name: Cow::Borrowed("Leveret"), client: None };

    /// For a connection that is opened for a client with these properties.
    pub(crate) fn of(info: &ClientInfo, client_properties: &FieldTable) -> Self {
        let reported =
            |key| client_properties.get(key).and_then(FieldValue::as_text).filter(|text| !text.is_empty());
        let connection_name = match reported("connection_name") {
            Some(name) => format!("Leveret: {name} ({})", info.peer),
            None => format!("Leveret: {}", info.peer),
        };
        let program: Vec<&str> =
            ["product", "version", "platform"].into_iter().filter_map(reported).collect();
        let client = (!program.is_empty()).then(|| program.join(" ").chars().take(CLIENT_MAX).collect());
        Self { connection_name: connection_name.into(), client }
    }

    /// Encodes this as client properties.
    pub(crate) fn properties(&self) -> FieldTable {
        let own = [("product", "Leveret"), ("version", env!("CARGO_PKG_VERSION")), ("platform", "Rust")];
        let behind = [("connection_name", &*self.connection_name)];
        let client = self.client.as_deref().map(|client| ("client", client));
        let texts = own.into_iter().chain(behind).chain(client);
        let mut properties: FieldTable = texts.map(|(key, value)| (key, FieldValue::text(value))).collect();
        Capabilities::ALL.add_to(&mut properties);
        properties
    }
}

/// Characters kept of a client's self-description, so that an idle client takes little memory.
const CLIENT_MAX: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p9_connection_properties_name_the_client_and_are_bounded() {
        let info = ClientInfo { id: 1, peer: "[::1]:5".to_owned() };
        let reported = |key: &str, of: &FieldTable| {
            let properties = ClientProperties::of(&info, of).properties();
            properties.get(key).and_then(FieldValue::as_text).map(str::to_owned)
        };
        let text = FieldValue::text;
        let pika = FieldTable::from_iter([
            ("product", text("Pika")),
            ("platform", text("Python 3.11")),
            ("version", text("1.3.2")),
            ("connection_name", text("orders")),
        ]);
        assert_eq!(reported("connection_name", &pika).unwrap(), "Leveret: orders ([::1]:5)");
        assert_eq!(reported("client", &pika).unwrap(), "Pika 1.3.2 Python 3.11");
        let silent = FieldTable::new();
        assert_eq!(reported("connection_name", &silent).unwrap(), "Leveret: [::1]:5");
        assert_eq!(reported("client", &silent), None);
        let talkative = FieldTable::from_iter([("product", text(&"ü".repeat(1000)))]);
        assert_eq!(reported("client", &talkative).unwrap().chars().count(), CLIENT_MAX);
    }
}
