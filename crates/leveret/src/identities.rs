//! The file with the upstream credentials of clients that log in with certificates.

use std::fs;
use std::path::Path;

use proxy::Identities;

/// Reads the file: a table for each identity, with the keys `user` and `password`.
///
/// # Errors
/// A line that begins with the setting's key and describes the mistake without quoting the file.
pub(crate) fn read(path: &Path) -> Result<Identities, String> {
    let fault = |what: &str| format!("upstream_external: {}: {what}", path.display());
    let text = fs::read_to_string(path).map_err(|error| fault(&error.to_string()))?;
    parse(&text).map_err(|what| fault(&what))
}

fn parse(text: &str) -> Result<Identities, String> {
    // The parser's own message would quote the line, and possibly a password in it.
    let file: toml::Table = toml::from_str(text).map_err(|error: toml::de::Error| {
        let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
        format!("line {line} is not TOML")
    })?;
    let mut identities = Identities::default();
    for (identity, entry) in &file {
        let table = entry.as_table().ok_or_else(|| format!("'{identity}' is not a table"))?;
        let word = |key: &str| {
            let value = table.get(key).and_then(toml::Value::as_str);
            value.ok_or_else(|| format!("'{identity}' needs a string for '{key}'"))
        };
        if let Some(unknown) = table.keys().find(|key| !["user", "password"].contains(&key.as_str())) {
            return Err(format!("'{identity}' has an unknown key '{unknown}'"));
        }
        identities.insert(identity, word("user")?, word("password")?);
    }
    Ok(identities)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_identity_has_a_user_and_a_password() {
        let file = "[\"CN=worker,O=example\"]\nuser = \"worker\"\npassword = \"secret\"\n";
        assert!(!parse(file).unwrap().is_empty());
        assert!(parse("").unwrap().is_empty());
    }

    #[test]
    fn what_is_wrong_is_told_without_the_password() {
        for (file, reported) in [
            ("worker = 1", "'worker' is not a table"),
            ("[worker]\nuser = 'w'", "'worker' needs a string for 'password'"),
            ("[worker]\nuser = 'w'\npassword = 1", "'worker' needs a string for 'password'"),
            ("[worker]\nuser = 'w'\npassword = 'p'\nuser2 = ''", "'worker' has an unknown key 'user2'"),
            ("[worker]\nuser = 'w'\npassword = 'hunter2", "line 3 is not TOML"),
        ] {
            assert_eq!(parse(file).unwrap_err(), reported);
        }
    }
}
