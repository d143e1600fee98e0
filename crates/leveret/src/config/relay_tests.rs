//! Tests of relays in both of their forms.

use super::*;

fn parse(text: &str) -> Result<RelayEntry, String> {
    RelayList::parse(text).map(|mut relays| relays.0.remove(0)).map_err(|error| error.to_string())
}

#[test]
fn the_short_form_names_a_listener_or_a_path() {
    let relay = parse("127.0.0.1:15670=tcp://rabbit:5672").unwrap();
    assert_eq!(relay.listen.to_string(), "127.0.0.1:15670");
    assert_eq!((relay.path.as_deref(), relay.upstream.to_string().as_str()), (None, "tcp://rabbit:5672"));
    let relay = parse("/redis=unix:/run/redis.sock").unwrap();
    assert_eq!(
        (relay.path.as_deref(), relay.upstream.to_string().as_str()),
        (Some("/redis"), "unix:/run/redis.sock")
    );
    let relay = parse("unix:/run/a=b.sock=tls://[::1]:5671").unwrap();
    assert_eq!(
        (relay.name().as_str(), relay.upstream.to_string().as_str()),
        ("unix:/run/a=b.sock", "tls://[::1]:5671")
    );
}

#[test]
fn a_table_is_written_as_it_is_read() {
    for table in [
        r#"{ path = "/mqtt", upstream = "tcp://localhost:1883" }"#,
        r#"{ path = "/a", listen = "[::1]:1", tls = "on", upstream = "tls://b:2", upstream_ca = "ca.pem", upstream_server_name = "c", upstream_verify = "off", connect_timeout = "1500ms", proxy_protocol = "v2", subprotocols = ["mqtt", "mqttv3.1"], origins = ["*.example.com"], max_connections = 10, max_connections_per_ip = 2, text = "refuse" }"#,
    ] {
        assert_eq!(parse(table).unwrap().to_toml(), table);
    }
    let bare = parse(r#"{listen = "a:1", tls = true, upstream = "tcp://b:2/"}"#).unwrap();
    assert!(bare.tls.0);
}

#[test]
fn every_documented_relay_key_exists_and_has_the_documented_default() {
    let mut relay = RelayEntry::new(RelayUrl::parse("tcp://a:1").unwrap());
    for RelayKey { key, default, meaning, .. } in RELAY_KEYS {
        let error = relay.set(key, &["no such value, whatever it is for".to_owned()]);
        assert!(!matches!(error, Err(ValueError::UnknownKey { .. })), "{key}");
        if matches!(*default, "off" | "on" | "5s" | "unlimited" | "accept") {
            let mut set = RelayEntry::new(RelayUrl::parse("tcp://a:1").unwrap());
            assert_eq!(set.set(key, &[(*default).to_owned()]), Ok(()), "{key}");
            assert_eq!(set, RelayEntry::new(RelayUrl::parse("tcp://a:1").unwrap()), "{key}");
        }
        assert!(!meaning.contains('|'), "{key}");
    }
}

#[test]
fn an_invalid_relay_is_refused_with_the_reason() {
    for (text, reason) in [
        ("tcp://a:1", "'tcp://a:1' is not LISTEN=URL"),
        ("127.0.0.1:1=http://a", "'127.0.0.1:1=http://a' is not LISTEN=URL"),
        ("nowhere=tcp://a:1", "'nowhere' has no port"),
        ("127.0.0.1:1=tcp://a", "upstream has no valid host and port"),
        ("/a=tcp://a:0", "upstream has no valid host and port"),
        ("/a?b=tcp://a:1", "'/a?b' is not a path"),
        ("/a=unix:run", "'unix:run' needs an absolute path"),
        (r#"{ upstream = "tcp://a:1" }"#, "a relay needs 'listen' or 'path'"),
        (r#"{ path = "/a" }"#, "a relay needs an 'upstream'"),
        (r#"{ path = "/a", upstream = "tcp://a:1", color = 1 }"#, "color: unknown key of a relay"),
        (
            r#"{ path = "/a", upstream = "tcp://a:1", origin = "a" }"#,
            "origin: unknown key of a relay; did you mean origins?",
        ),
        (r#"{ path = "/a", upstream = "tcp://a:1", tls = true }"#, "tls: has no effect without 'listen'"),
        (r#"{ path = "/a", upstream = "tcp://a:1", upstream_ca = "x" }"#, "upstream_ca: has no effect"),
        (
            r#"{ path = "/a", upstream = "tcp://a:1", text = "maybe" }"#,
            "text: 'maybe' is none of: accept, refuse",
        ),
        (r#"{ path = "/a", upstream = "tcp://a:1", subprotocols = ["a b"] }"#, "subprotocols: 'a b' is not"),
        (
            r#"{ path = "/a", upstream = "tcp://a:1", connect_timeout = "1h" }"#,
            "connect_timeout: must be between",
        ),
        ("{ path = ", "not a table of TOML"),
    ] {
        let error = RelayList::parse(text).unwrap_err().to_string();
        assert!(error.starts_with(reason), "{text}: {error}");
    }
    let both = ["off".to_owned(), "/a=tcp://a:1".to_owned()];
    assert_eq!(RelayList::parse_all(&both).unwrap_err().to_string(), "'off' cannot be combined with a relay");
}
