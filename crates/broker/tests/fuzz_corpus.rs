//! The fuzz target on a small corpus and a few thousand mutations of it, without nightly and deterministically.

/// The body of the fuzz target.
#[path = "../fuzz/src/lib.rs"]
#[expect(unreachable_pub, reason = "public in the crate of the fuzz targets")]
mod bodies;

use broker::{Broker, BrokerConfig, Definitions, Timestamp};

#[test]
fn the_definitions_target_holds() {
    let corpus = [
        r#"{"users":[{"name":"u","password":"p","tags":["management"]}],"vhosts":[{"name":"v"},{"name":"/"}],
            "permissions":[{"user":"u","vhost":"v","configure":"^a","write":".*","read":""}],
            "topic_permissions":[{"user":"u","vhost":"v","exchange":"amq.topic","write":"a","read":"b"}]}"#,
        r#"{"vhosts":[{"name":"/"}],"queues":[{"name":"q","vhost":"/","durable":true,"auto_delete":false,
            "arguments":{"x-expires":90000,"x-max-priority":5,"x-overflow":"reject-publish","x-queue-type":"classic"}}],
            "exchanges":[{"name":"e","vhost":"/","type":"topic","durable":true,"auto_delete":false,"internal":false,
            "arguments":{"alternate-exchange":"amq.fanout"}}],
            "bindings":[{"source":"e","vhost":"/","destination":"q","destination_type":"queue","routing_key":"a.#",
            "arguments":{"x":[1,1.5,true,{"y":"z"}]}}]}"#,
        r#"{"vhosts":[{"name":"/"}],"policies":[{"vhost":"/","name":"p","pattern":"^q","apply-to":"queues","priority":1,
            "definition":{"max-length":5,"message-ttl":7,"dead-letter-exchange":"d"}}],
            "parameters":[{"vhost":"/","component":"operator_policy","name":"o","value":{"pattern":"","definition":
            {"expires":9},"priority":0,"apply-to":"all"}}],"vhost_limits":[{"vhost":"/","max-queues":3}],
            "global_parameters":[{"name":"cluster_name","value":"c"}]}"#,
    ];
    let corpus = corpus.map(|text| text.as_bytes().to_vec());
    for file in &corpus {
        let broker = Broker::new(BrokerConfig::default());
        broker.load(&Definitions::from_json(file).unwrap(), Timestamp(1)).unwrap();
    }
    mutations::check_mutations(&corpus, 10_000, b"\"{}[],:0-\\/.", bodies::definitions);
}
