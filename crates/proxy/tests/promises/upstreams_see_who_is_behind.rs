//! P9, for connections that belong to one client.

use amqp::method::basic;
use amqp::{Capabilities, FieldTable, FieldValue};
use proxy::Pool;

use crate::common::{Broker, Client, Manners};

fn name(properties: &FieldTable) -> &str {
    text(properties, "connection_name").unwrap()
}

fn text<'p>(properties: &'p FieldTable, key: &str) -> Option<&'p str> {
    properties.get(key).and_then(FieldValue::as_text)
}

#[tokio::test(start_paused = true)]
async fn p9_connections_are_named_and_all_capabilities_announced() {
    let mut broker = Broker::start(Manners::default());
    let pool = Pool::new(broker.config());
    let mut client = Client::connect(&pool).await;
    let shared = broker.next_connection().await;
    assert_eq!(name(&shared.client_properties), "Leveret");
    assert_eq!(Capabilities::from_properties(&shared.client_properties), Capabilities::ALL);
    assert_eq!(text(&shared.client_properties, "client"), None);

    client.open_channel(1).await;
    client.send(1, basic::Get { queue: "q", ..Default::default() }).await;
    let own = broker.next_connection().await;
    assert_eq!(name(&own.client_properties), "Leveret: 127.0.0.1:1");
    assert_eq!(text(&own.client_properties, "product"), Some("Leveret"));
    assert_eq!(text(&own.client_properties, "client"), Some("a test"), "the program, in its own words");
}
