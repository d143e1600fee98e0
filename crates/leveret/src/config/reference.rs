//! Generates docs/configuration.md from the declaration of the settings.

use std::fmt::Write as _;

use super::layers::FILE_VARIABLE;
use super::relay::{RELAY_KEYS, RelayKey};
use super::settings::{SETTINGS, Setting};

/// The complete text of docs/configuration.md; a test compares the two.
pub(crate) fn reference() -> String {
    let mut text = INTRODUCTION.replace("{FILE_VARIABLE}", FILE_VARIABLE);
    let mut group = "";
    for setting in SETTINGS {
        if setting.group != group {
            group = setting.group;
            let _ = write!(text, "\n### {group}\n\n{TABLE_HEAD}");
        }
        row(&mut text, setting);
    }
    relays(&mut text);
    text.push_str(CONCLUSION);
    text
}

fn row(text: &mut String, setting: &Setting) {
    let repeat = if setting.repeated { ", repeatable" } else { "" };
    let mut default = format!("`{}`", setting.default);
    if let Some(with_upstream) = setting.default_with_upstream {
        let _ = write!(default, "; with an upstream `{with_upstream}`");
    }
    let range =
        setting.range.map(|(least, most)| format!(" From `{least}` to `{most}`.")).unwrap_or_default();
    let meaning = setting.help.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    let live = if setting.is_live { " *Live.*" } else { "" };
    let alias =
        setting.alias.map(|alias| format!(" RabbitMQ's `{alias}` is understood.")).unwrap_or_default();
    let flag = match setting.is_secret {
        true => "none".to_owned(),
        false => format!("`--{} {}`{repeat}", setting.flag(), setting.kind),
    };
    let _ = writeln!(
        text,
        "| {flag} | `{}` | `{}` | {default} | {meaning}{range}{alias}{live} |",
        setting.key,
        setting.variable(),
    );
}

/// Appends the section on the keys of a relay.
fn relays(text: &mut String) {
    text.push_str(RELAYS);
    for RelayKey { key, kind, default, meaning } in RELAY_KEYS {
        let default = if default.contains('`') { (*default).to_owned() } else { format!("`{default}`") };
        let _ = writeln!(text, "| `{key}` | {kind} | {default} | {meaning} |");
    }
}

const TABLE_HEAD: &str = "| flag | key | variable | default | meaning |\n|---|---|---|---|---|\n";

const RELAYS: &str = "
### Keys of a relay

In the file, a relay is a table. A flag or an element of the variable can be the same as an inline table. As with any
setting, relays of a flag or variable replace all of those of the file.

```toml
[[relay]]
path = \"/mqtt\"
upstream = \"tcp://localhost:1883\"
subprotocols = [\"mqtt\"]
```

    leveret serve --relay 0.0.0.0:15675=tcp://localhost:1883 --relay '{path = \"/redis\", upstream = \"unix:/run/redis.sock\"}'

| key | kind | default | meaning |
|---|---|---|---|
";

const INTRODUCTION: &str = "\
# Configuration

<!-- Written by `leveret config reference` from crates/leveret/src/config/settings.rs; a test compares them. -->

Each setting is a variable of the environment, a key of the file, and, unless it is a secret, a flag of `leveret serve`,
under one name. A flag wins over a variable, a variable over the file, the file over the default. Every value that is given is checked, even
where another layer wins. A few variables of RabbitMQ's containers are understood, too, where nothing else sets the
setting and there is no upstream.

    leveret serve --amqp 0.0.0.0:5672 --max-message-size 64MiB
    LEVERET_AMQP=0.0.0.0:5672 LEVERET_MAX_MESSAGE_SIZE=64MiB leveret serve
    leveret serve --config leveret.toml

The file is TOML, named by `--config FILE` or else by `{FILE_VARIABLE}`; without either none is read. Unknown keys and
unknown variables `LEVERET_*` are errors; the variables `LEVERET_CTL_*` are for `leveret ctl`, and those that Kubernetes
makes for a service called leveret, such as `LEVERET_SERVICE_HOST`, are left alone. The second command above as a file:

```toml
amqp = \"0.0.0.0:5672\"
max_message_size = \"64MiB\"
```

`leveret config check` reads all layers, and the files that they name, and reports the first mistake. `leveret config print`
shows each value in effect and where it came from. Both take the flags of `leveret serve`.

| kind of value | written as |
|---|---|
| ADDR | `HOST:PORT` (`[::1]:5672` for IPv6, port 0 for any free one), `unix:/path`, or `off`; several of the first kind as repeated flags, a list in the file, or separated by commas. A host name stands for all its addresses that this machine has, `localhost` for 127.0.0.1 and `[::1]` |
| URL | `amqp://host[:port]` or `amqps://host[:port]`, or `off` for none; several as repeated flags, a list in the file, or separated by commas in the variable |
| FILE | a path, or `off` for none; several like URLs |
| RELAY | `LISTEN=URL`, an inline table of TOML, or `off` for none; see below; several like URLs |
| SPOOL | an inline table of TOML such as `{exchange = \"^orders$\"}`, or `off` for none; several like URLs |
| NETWORK | an address, or a range of them such as `10.0.0.0/8`; several like URLs |
| ORIGIN | `local`, a host such as `*.example.com`, an origin such as `https://app.example.com`, `null` or `*`; several like URLs |
| MODE | one of the words that the meaning lists |
| BACKEND | `internal`, `oauth2`, `http`, `cache:http`, or two of them with a plus; several like URLs |
| DURATION | a number of seconds, or a number with `ms`, `s`, `m` or `h` |
| SIZE | a number of bytes, or a number with `KiB`, `MiB`, `GiB` or `TiB` (of 1024), or `MB`, `GB` or `TB` (of 1000) |
| WATERMARK | a share from 0 to 1, a size, or `off` |
| N | a whole number; `unlimited` or `auto` where the default shows it |
| PASSWORD | text; never printed or logged |
| LEVEL | `error`, `warn`, `info`, `debug`, `trace` or `off`, or directives such as `info,proxy=debug` |

Settings that are *live* change on SIGHUP, while clients are served; the others at the next start.

A variable that is empty counts as not set. Credentials in URLs are never logged or printed.

## Settings
";

const CONCLUSION: &str = "
## Output, signals and exit codes

`leveret serve` prints one line with a URL per listener to standard output once it accepts connections; logs go to
standard error.

| signal | effect |
|---|---|
| SIGTERM, SIGINT (Ctrl-C) | drain: accept no more connections, close the clients, exit 0; a second one ends the process immediately with exit code 1 |
| SIGHUP | read the configuration again: settings that are *live* change, others are named in the log and change at the next start; with a mistake in it all settings stay as they were. Read the files of TLS again (certificates, keys, CA certificates) and that of `upstream_external`: new connections use the new contents, open ones stay as they are; if one file cannot be used, the old contents of all stay in use. Read the file of `oauth2_jwks` again, whatever becomes of the others. Reopen the file of `access_log`. If another file is in the place of the program, start that to take over |
| SIGUSR2 | start the program on the disk, to take over (`leveret ctl upgrade`) |

| exit code | meaning |
|---|---|
| 0 | clean |
| 1 | failed to run, such as an address in use |
| 2 | wrong usage or configuration; one line on standard error names the key at fault |
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_reference_is_the_generated_one() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
        let committed = std::fs::read_to_string(path).unwrap();
        assert!(
            committed == reference(),
            "docs/configuration.md is out of date: cargo run -- config reference > docs/configuration.md"
        );
    }

    #[test]
    fn every_setting_has_its_row_and_no_cell_breaks_the_table() {
        let reference = reference();
        for setting in SETTINGS {
            assert!(reference.contains(&format!("| `{}` |", setting.variable())), "{}", setting.key);
            assert!(!setting.help.contains('|'), "{}", setting.key);
        }
    }
}
