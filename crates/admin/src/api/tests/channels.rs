//! Channels, of a connection that the test makes up.

use super::*;

/// A connection of user guest with these channels.
#[derive(Default)]
pub(super) struct Connected {
    pub(super) channels: Vec<ChannelInfo>,
    /// The number of times that it was shown.
    pub(super) shown: Arc<AtomicUsize>,
    pub(super) is_blocked: bool,
    pub(super) protocol: &'static str,
}

impl ClientConnection for Connected {
    fn id(&self) -> u64 {
        1
    }

    fn name(&self) -> String {
        "client".to_owned()
    }

    fn user(&self) -> &str {
        "guest"
    }

    fn vhost(&self) -> &str {
        "/"
    }

    fn info(&self) -> ConnectionInfo {
        self.shown.fetch_add(1, Ordering::Relaxed);
        ConnectionInfo { protocol: self.protocol, ..ConnectionInfo::default() }
    }

    fn is_in_flow(&self, _: Timestamp) -> bool {
        self.channels.iter().any(|channel| channel.is_in_flow)
    }

    fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    fn session(&self) -> Option<SessionInfo> {
        None
    }

    fn channels(&self, _: Timestamp) -> Vec<ChannelInfo> {
        self.channels.clone()
    }

    fn byte_rates(&self, _: Timestamp) -> (f64, f64) {
        (0.0, 0.0)
    }

    fn close(&self, _: &str) {}
}

fn api(channels: &[ChannelInfo]) -> Arc<Api> {
    let connection = Connected { channels: channels.to_vec(), ..Connected::default() };
    let connections: Vec<Arc<dyn ClientConnection>> = vec![Arc::new(connection)];
    let quiet = Quiet { connections, ..Quiet::default() };
    Api::new(Some(Broker::new(BrokerConfig::default())), Arc::new(quiet))
}

#[test]
fn a_channel_shows_unacknowledged_deliveries_and_unconfirmed_publishes() {
    let api = api(&[
        ChannelInfo { number: 1, unacknowledged: 2, ..ChannelInfo::default() },
        ChannelInfo { number: 2, confirms: true, unconfirmed: 3, ..ChannelInfo::default() },
    ]);
    let query = [("columns", "name,messages_unacknowledged,messages_unconfirmed")];
    let shown = shown(connections::channels(&call(&api, &[], &query, &json!({}))));
    let of = |name: &str, unacknowledged: u64, unconfirmed: u64| {
        json!({
            "name": name, "messages_unacknowledged": unacknowledged, "messages_unconfirmed": unconfirmed,
        })
    };
    assert_eq!(shown, json!([of("client (1)", 2, 0), of("client (2)", 0, 3)]));
}

#[test]
fn a_channel_whose_publisher_is_held_and_its_connection_are_in_flow() {
    let held = ChannelInfo { number: 1, is_in_flow: true, ..ChannelInfo::default() };
    let free = ChannelInfo { number: 2, ..ChannelInfo::default() };
    let query = [("columns", "state")];
    let states = |channels: &[ChannelInfo]| {
        let (api, body) = (api(channels), json!({}));
        let call = call(&api, &[], &query, &body);
        (shown(connections::all(&call)), shown(connections::channels(&call)))
    };
    let (flow, running) = (json!({"state": "flow"}), json!({"state": "running"}));
    assert_eq!(states(&[held, free]), (json!([flow]), json!([flow, running])));
    assert_eq!(states(&[free]), (json!([running]), json!([running])));
}

#[test]
fn channels_are_sorted_by_unconfirmed_publishes() {
    let channels = [1, 3, 2].map(|count: u16| ChannelInfo {
        number: count,
        unconfirmed: count.into(),
        ..ChannelInfo::default()
    });
    let query = [("sort", "messages_unconfirmed"), ("sort_reverse", "true"), ("columns", "number")];
    let shown = shown(connections::channels(&call(&api(&channels), &[], &query, &json!({}))));
    assert_eq!(shown, json!([{"number": 3}, {"number": 2}, {"number": 1}]));
}

#[test]
fn with_an_alarm_a_connection_is_blocking_until_it_publishes_and_then_blocked() {
    const AMQP: &str = "AMQP 0-9-1";
    for (alarm, protocol, is_blocked, state) in [
        (false, AMQP, false, "running"),
        (true, AMQP, false, "blocking"),
        (true, AMQP, true, "blocked"),
        (true, "MQTT 5.0", false, "running"),
    ] {
        let connection = Connected { is_blocked, protocol, ..Connected::default() };
        let quiet = Quiet {
            connections: vec![Arc::new(connection)],
            alarm: AtomicBool::new(alarm),
            ..Quiet::default()
        };
        let api = Api::new(Some(Broker::new(BrokerConfig::default())), Arc::new(quiet));
        let shown = shown(connections::all(&call(&api, &[], &[("columns", "state")], &json!({}))));
        assert_eq!(shown, json!([{"state": state}]));
    }
}
