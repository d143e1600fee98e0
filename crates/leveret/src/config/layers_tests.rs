use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write as _;
use std::time::Duration;

use tempfile::NamedTempFile;

use super::super::value::Limit;
use super::*;

/// Input of a user: flags, variables, and the text of a file.
#[derive(Default)]
struct Given {
    flags: Vec<(&'static str, &'static str)>,
    variables: Vec<(&'static str, &'static str)>,
    file: Option<&'static str>,
}

impl Given {
    fn flags(flags: &[(&'static str, &'static str)]) -> Self {
        Self { flags: flags.to_vec(), ..Self::default() }
    }

    fn variables(variables: &[(&'static str, &'static str)]) -> Self {
        Self { variables: variables.to_vec(), ..Self::default() }
    }

    fn file(text: &'static str) -> Self {
        Self { file: Some(text), ..Self::default() }
    }

    /// Loads, with the file's path in messages shortened to `FILE`.
    fn load(&self) -> Result<(Config, BTreeMap<&'static str, String>), String> {
        let (effective, origins) = self.effective()?;
        Ok((effective.config, origins))
    }

    /// The same as `load`, with the whole `Effective`.
    fn effective(&self) -> Result<(Effective, BTreeMap<&'static str, String>), String> {
        let file = self.file.map(|text| {
            let mut file = NamedTempFile::new().unwrap();
            file.write_all(text.as_bytes()).unwrap();
            file
        });
        let path = file.as_ref().map(|file| file.path().to_owned());
        let shorten = |text: String| match &path {
            Some(path) => text.replace(&path.display().to_string(), "FILE"),
            None => text,
        };
        let mut flags = Flags { file: path.clone(), values: BTreeMap::new() };
        for (key, text) in &self.flags {
            flags.values.entry(*key).or_default().push((*text).to_owned());
        }
        let environment = self.variables.iter().copied().collect();
        let effective = load(&flags, &environment).map_err(|error| shorten(error.to_string()))?;
        let origins =
            effective.describe().map(|(setting, _, origin)| (setting.key, shorten(origin))).collect();
        Ok((effective, origins))
    }

    fn config(&self) -> Config {
        self.load().unwrap().0
    }

    fn error(&self) -> String {
        self.load().unwrap_err()
    }
}

#[test]
fn without_anything_the_broker_listens_on_loopback() {
    let (config, origins) = Given::default().load().unwrap();
    assert_eq!(config.amqp.to_string(), "127.0.0.1:5672");
    assert_eq!(config.http.to_string(), "127.0.0.1:15672");
    assert!(config.upstream.is_empty());
    assert!(origins.values().all(|origin| origin == "default"));
}

#[test]
fn with_an_upstream_the_defaults_move_aside() {
    for given in [
        Given::flags(&[("upstream", "amqp://rabbit")]),
        Given::variables(&[("LEVERET_UPSTREAM", "amqp://rabbit")]),
        Given::file("upstream = 'amqp://rabbit'"),
    ] {
        let config = given.config();
        assert_eq!(config.amqp.to_string(), "127.0.0.1:5673");
        assert_eq!(config.http.to_string(), "127.0.0.1:15673");
    }
    let set = Given::flags(&[("upstream", "amqp://rabbit"), ("amqp", "127.0.0.1:5672")]);
    assert_eq!(set.config().amqp.to_string(), "127.0.0.1:5672");
}

#[test]
fn a_flag_beats_a_variable_beats_the_file_beats_the_default() {
    let mut given = Given::file("channel_max = 1");
    let (config, origins) = given.load().unwrap();
    assert_eq!((config.channel_max, origins["channel_max"].as_str()), (1, "FILE:1"));
    given.variables = vec![("LEVERET_CHANNEL_MAX", "2")];
    let (config, origins) = given.load().unwrap();
    assert_eq!((config.channel_max, origins["channel_max"].as_str()), (2, "LEVERET_CHANNEL_MAX"));
    given.flags = vec![("channel_max", "3")];
    let (config, origins) = given.load().unwrap();
    assert_eq!((config.channel_max, origins["channel_max"].as_str()), (3, "--channel-max"));
    assert_eq!(origins["frame_max"], "default");
}

#[test]
fn a_higher_layer_replaces_a_list_and_does_not_extend_it() {
    let mut given = Given::file("upstream = ['amqp://a', 'amqp://b']");
    assert_eq!(given.config().upstream.len(), 2);
    given.variables = vec![("LEVERET_UPSTREAM", "amqp://c, amqp://d,amqp://e")];
    assert_eq!(given.config().upstream.len(), 3);
    given.flags = vec![("upstream", "amqp://f")];
    assert_eq!(given.config().upstream[0].host, "f");
    given.flags = vec![("upstream", "off")];
    assert!(given.config().upstream.is_empty());
}

#[test]
fn the_file_takes_strings_and_numbers() {
    let config = Given::file(
        "max_connections = 'unlimited'\nmax_connections_per_ip = 1_000\n\
         handshake_timeout = 5\nwrite_timeout = '1500ms'\nmax_message_size = '1MiB'\nlog = 'warn'\n",
    )
    .config();
    assert_eq!(config.max_connections, Limit(None));
    assert_eq!(config.max_connections_per_ip, Limit(Some(1000)));
    assert_eq!(config.handshake_timeout, Duration::from_secs(5));
    assert_eq!(config.write_timeout, Duration::from_millis(1500));
    assert_eq!(config.max_message_size.of_broker(), 1 << 20);
    assert_eq!(config.log.0, "warn");
}

#[test]
fn the_file_is_named_by_the_flag_or_else_by_the_variable() {
    let file = |text: &str| {
        let mut file = NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    };
    let (by_flag, by_variable) = (file("heartbeat = 1"), file("heartbeat = 2"));
    let environment = [(FILE_VARIABLE, by_variable.path())].into_iter().collect();
    let both = Flags { file: Some(by_flag.path().to_owned()), ..Flags::default() };
    assert_eq!(load(&both, &environment).unwrap().config.heartbeat, 1);
    assert_eq!(load(&Flags::default(), &environment).unwrap().config.heartbeat, 2);
}

#[test]
fn an_empty_variable_is_not_set() {
    assert_eq!(Given::variables(&[("LEVERET_AMQP", ""), ("LEVERET_CONFIG", "")]).config().heartbeat, 60);
}

#[test]
fn variables_of_a_container_platform_are_left_alone() {
    let given =
        Given::variables(&[("LEVERET_SERVICE_HOST", "10.0.0.1"), ("LEVERET_PORT", "tcp://10.0.0.1:5672")]);
    assert!(given.load().is_ok());
}

#[test]
fn an_unknown_variable_stops_a_start() {
    let given = Given::variables(&[("LEVERET_UPSTREM", "amqp://user:hunter2@rabbit")]);
    assert_eq!(given.error(), "LEVERET_UPSTREM: unknown variable; did you mean LEVERET_UPSTREAM?");
}

#[test]
fn variables_of_rabbitmq_name_the_first_user_unless_something_of_leverets_own_does() {
    let mut given =
        Given::variables(&[("RABBITMQ_DEFAULT_USER", "ann"), ("RABBITMQ_DEFAULT_PASS", "hunter2")]);
    let (config, origins) = given.load().unwrap();
    assert_eq!(
        (config.default_user.0.as_str(), config.default_password.0.as_deref()),
        ("ann", Some("hunter2"))
    );
    assert_eq!(origins["default_user"], "RABBITMQ_DEFAULT_USER");
    // All of them or none: bob does not get ann's password.
    given.file = Some("default_user = 'bob'");
    assert_eq!(given.error(), "FILE:1: default_user: needs default_password or default_password_file");
    given.file = Some("default_password_file = '/etc/leveret/password'");
    let (effective, origins) = given.effective().unwrap();
    assert_eq!(effective.config.default_user.0, "guest");
    assert!(effective.config.default_password.0.is_none() && origins["default_user"] == "default");
    let ignored = "RABBITMQ_DEFAULT_PASS, RABBITMQ_DEFAULT_USER: ignored, as default_password_file is set";
    assert_eq!(effective.ignored.as_deref(), Some(ignored));
    given.variables.push(("LEVERET_DEFAULT_USER", "eve"));
    assert_eq!(given.config().default_user.0, "eve");
    // A definitions file has its own users, and no administrator beside them.
    given.variables.pop();
    given.file = Some("definitions = '/etc/leveret/definitions.json'");
    let (effective, _) = given.effective().unwrap();
    assert!(effective.config.default_user.0 == "guest" && effective.config.default_password.0.is_none());
    // A name without a password is no mistake of Leveret's operator.
    let mut given = Given::variables(&[("RABBITMQ_DEFAULT_USER", "ann"), ("RABBITMQ_DEFAULT_VHOST", "v")]);
    let (effective, _) = given.effective().unwrap();
    assert_eq!((&*effective.config.default_user.0, &*effective.config.default_vhost.0), ("guest", "/"));
    assert!(effective.ignored.unwrap().ends_with("ignored, as there is no password (RABBITMQ_DEFAULT_PASS)"));
    // They are meant for a broker; of a pool that runs beside one they are no mistake.
    given.flags = vec![("upstream", "amqp://rabbit")];
    let (effective, _) = given.effective().unwrap();
    assert_eq!((&*effective.config.default_user.0, effective.ignored), ("guest", None));
    let given = Given { flags: given.flags, ..Given::variables(&[("LEVERET_DEFAULT_VHOST", "v")]) };
    assert!(given.error().starts_with("LEVERET_DEFAULT_VHOST: applies to the embedded broker only"));
}

#[test]
fn the_first_password_is_never_printed_and_is_no_password_when_it_was_masked() {
    let given = Given::variables(&[("LEVERET_DEFAULT_PASSWORD", "hunter2")]);
    let (effective, _) = given.effective().unwrap();
    let printed = format!("{}{}{:?}", effective.to_toml(), effective.to_json(), effective.config);
    assert!(!printed.contains("hunter2"), "{printed}");
    assert!(printed.contains("default_password = \"******\""), "{printed}");
    let again = Given::file("default_password = '******'").error();
    assert_eq!(again, "FILE:1: default_password: is masked; the password itself is needed here");
    let both = Given::file("default_password = 'a'\ndefault_password_file = '/b'").error();
    assert_eq!(both, "FILE:2: default_password_file: default_password is set, too; one of them is needed");
}

#[test]
fn unquoted_text_is_refused_with_a_hint_about_quotes() {
    for (text, key) in
        [("amqp = 0.0.0.0:5672", "amqp"), ("upstream = amqp://user:hunter2@rabbit", "upstream")]
    {
        let error = Given::file(text).error();
        assert!(error.ends_with(&format!("; text needs quotes: {key} = \"...\"")), "{error}");
    }
    let error = Given::file("heartbeat = 1\nheartbeat = 2").error();
    assert!(!error.contains("quotes"), "{error}");
}

#[test]
fn every_mistake_is_one_line_naming_the_key() {
    for (given, line) in [
        (Given::flags(&[("frame_max", "1")]), "--frame-max: must be between 4096 and 131072"),
        (Given::flags(&[("heartbeat", "soon")]), "--heartbeat: 'soon' is not a whole number"),
        (
            Given::flags(&[("max_message_size", "513MiB")]),
            "--max-message-size: must be between 1 and 512MiB, or 'unlimited'",
        ),
        (
            Given::variables(&[("LEVERET_CHANNEL_MAX", "0")]),
            "LEVERET_CHANNEL_MAX: must be between 1 and 65535",
        ),
        (
            Given::variables(&[("LEVERET_UPSTREAM", "x")]),
            "LEVERET_UPSTREAM: is not a URL (amqp://host[:port])",
        ),
        (Given::file("\nheartbeat = true"), "FILE:2: heartbeat: 'true' is not a whole number"),
        (Given::file("heartbeat = 1.5"), "FILE:1: heartbeat: '1.5' is not a whole number"),
        (Given::file("heartbeat = [1, 2]"), "FILE:1: heartbeat: takes one value, not a list"),
        (
            Given::file("heartbeat = { every = 1 }"),
            "FILE:1: heartbeat: takes a string or a number, not a value of type table",
        ),
        (Given::file("log = 'info'\namqq = 'off'"), "FILE:2: amqq: unknown key; did you mean amqp?"),
        (
            Given::file("[limits]\nheartbeat = 1"),
            "FILE:1: limits: unknown section; settings are given without a section",
        ),
        (Given::file("frame-max = 4096"), "FILE:1: frame-max: unknown key; did you mean frame_max?"),
        (Given::file("config = 'other.toml'"), "FILE:1: config: unknown key"),
    ] {
        assert_eq!(given.error(), line);
    }
}

#[test]
fn a_mistake_is_reported_even_where_a_higher_layer_replaces_it() {
    let mut given = Given::file("heartbeat = 'soon'");
    given.flags = vec![("heartbeat", "1")];
    assert_eq!(given.error(), "FILE:1: heartbeat: 'soon' is not a whole number");
}

#[test]
fn a_reload_applies_live_settings_and_reports_the_others() {
    let running = Given::file("log = 'info'\nmax_connections = 10\nheartbeat = 10");
    let (mut effective, _) = running.effective().unwrap();
    let (wanted, _) = Given::file("log = 'debug'\nheartbeat = 20").effective().unwrap();
    let changes = effective.take_live(&wanted);
    let reported: Vec<_> =
        changes.iter().map(|change| (change.key, change.value.as_str(), change.live)).collect();
    let expected =
        [("heartbeat", "20", false), ("max_connections", "65536", true), ("log", "\"debug\"", true)];
    assert_eq!(reported, expected);
    assert_eq!(effective.config.heartbeat, 10);
    let reported = effective.to_json();
    let of = |key: &str| reported.as_array().unwrap().iter().find(|setting| setting["key"] == key).unwrap();
    assert_eq!(
        (&of("max_connections")["value"], &of("max_connections")["origin"]),
        (&"65536".into(), &"default".into())
    );
    assert_eq!((&of("log")["value"], &of("log")["live"]), (&"debug".into(), &true.into()));
    assert_eq!((&of("heartbeat")["value"], &of("heartbeat")["live"]), (&"10".into(), &false.into()));
    assert_eq!(effective.take_live(&wanted).len(), 1, "what waits for a start is told each time");
}

#[test]
fn something_must_be_served() {
    let given = Given::flags(&[
        ("amqp", "off"),
        ("ws", "off"),
        ("mqtt", "off"),
        ("web_mqtt", "off"),
        ("stomp", "off"),
        ("web_stomp", "off"),
        ("http", "off"),
    ]);
    assert_eq!(given.error(), "--amqp: every listener is off, there is nothing to serve");
    assert!(Given::flags(&[("amqp", "off")]).load().is_ok());
    assert!(Given::flags(&[("http", "off")]).load().is_ok());
}

#[test]
fn two_listeners_need_two_addresses() {
    let given = Given::flags(&[("amqp", "[::1]:1"), ("http", "[::1]:1")]);
    assert_eq!(given.error(), "--http: the same address as amqp ([::1]:1)");
    let given = Given::flags(&[("amqp", "127.0.0.1:15672")]);
    assert_eq!(given.error(), "--amqp: the same address as http (127.0.0.1:15672)");
    assert!(Given::flags(&[("amqp", "[::1]:0"), ("http", "[::1]:0")]).load().is_ok());
}

#[test]
fn a_file_that_is_not_toml_is_reported_by_line_and_never_quoted() {
    let error = Given::file("log = 'info'\nupstream = amqp://user:hunter2@rabbit\n").error();
    assert!(error.starts_with("FILE:2: not valid TOML: "), "{error}");
    assert!(!error.contains("hunter2") && !error.contains('\n'), "{error}");
    let error = Given::file("heartbeat = 1\nheartbeat = 2\n").error();
    assert!(error.starts_with("FILE:2: not valid TOML: duplicate key"), "{error}");
}

#[test]
fn an_unreadable_file_is_reported_with_the_setting_that_named_it() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing.toml");
    let flags = Flags { file: Some(missing.clone()), ..Flags::default() };
    let error = load(&flags, &Environment::default()).unwrap_err().to_string();
    assert!(error.starts_with(&format!("--config: cannot read {}: ", missing.display())), "{error}");
    let environment = [(FILE_VARIABLE, &missing)].into_iter().collect();
    let error = load(&Flags::default(), &environment).unwrap_err().to_string();
    assert!(error.starts_with("LEVERET_CONFIG: cannot read "), "{error}");
    let endless = Flags { file: Some("/dev/zero".into()), ..Flags::default() };
    let error = load(&endless, &Environment::default()).unwrap_err().to_string();
    assert_eq!(error, "--config: cannot read /dev/zero: it is larger than 1048576 bytes");
}

#[test]
fn a_variable_that_is_not_text_is_refused() {
    use std::os::unix::ffi::OsStringExt as _;
    let environment = [("LEVERET_LOG", OsString::from_vec(vec![0xff]))].into_iter().collect();
    let error = load(&Flags::default(), &environment).unwrap_err().to_string();
    assert_eq!(error, "LEVERET_LOG: is not valid UTF-8");
}

#[test]
fn printed_settings_show_origins_and_can_be_read_again() {
    let flags = Flags {
        values: BTreeMap::from([
            ("upstream", vec!["amqp://user:hunter2@rabbit".to_owned(), "amqp://[::1]:1".to_owned()]),
            ("amqp", vec!["unix:/run/a 'quoted' \"one\"".to_owned()]),
            ("max_connections", vec!["unlimited".to_owned()]),
        ]),
        ..Flags::default()
    };
    let printed = load(&flags, &Environment::default()).unwrap().to_toml();
    assert!(!printed.contains("hunter2"), "{printed}");
    assert!(
        printed.contains("max_connections = \"unlimited\" ") && printed.contains("# --upstream\n"),
        "{printed}"
    );

    let mut file = NamedTempFile::new().unwrap();
    file.write_all(printed.as_bytes()).unwrap();
    let again = Flags { file: Some(file.path().to_owned()), ..Flags::default() };
    let printed_again = load(&again, &Environment::default()).unwrap().to_toml();
    let values = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.rsplit_once("  #").unwrap().0.trim_end().to_owned()).collect()
    };
    assert_eq!(values(&printed_again), values(&printed));
}

#[test]
fn no_error_line_shows_a_password() {
    for given in [
        Given::flags(&[("upstream", "amqp://user:hunter2@")]),
        Given::flags(&[("amqp", "amqp://user:hunter2@rabbit")]),
        Given::flags(&[("http", "amqp://user:hunter2@rabbit:1/a")]),
        Given::flags(&[("log", "amqp://user:hunter2@rabbit")]),
        Given::file("upstream = 'amqp://user:hunter2@rabbit:port'"),
        Given::file("amqp = 'amqp://user:hunter2@rabbit:port'"),
        Given::file("upstream = { url = 'amqp://user:hunter2@rabbit' }"),
    ] {
        let error = given.error();
        assert!(!error.contains("hunter2"), "{error}");
    }
}
