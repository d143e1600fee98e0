//! The file with the upstream credentials of clients that log in with certificates.

use std::fs;
use std::path::Path;

use proxy::Identities;

use crate::config::SettingError;

/// Reads the file: a table for each identity, with the keys `user` and `password`.
///
/// # Errors
/// The file cannot be read, or is not in this form.
pub(crate) fn read(path: &Path) -> Result<Identities, SettingError> {
    let at_fault = |error: SettingError| error.about(path.display());
    let text = fs::read_to_string(path).map_err(|error| at_fault(SettingError::new(KEY, error)))?;
    parse(&text).map_err(|error| at_fault(SettingError::new(KEY, error)))
}

const KEY: &str = "upstream_external";

fn parse(text: &str) -> Result<Identities, IdentitiesError> {
    let file: toml::Table = toml::from_str(text).map_err(|error: toml::de::Error| {
        let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
        IdentitiesError::Syntax { line }
    })?;
    let mut identities = Identities::default();
    for (identity, entry) in &file {
        let fault = |fault| IdentitiesError::Entry { identity: identity.clone(), fault };
        let table = entry.as_table().ok_or_else(|| fault(EntryFault::NotATable))?;
        let word = |key: &'static str| {
            let value = table.get(key).and_then(toml::Value::as_str);
            value.ok_or_else(|| fault(EntryFault::Lacks(key)))
        };
        if let Some(unknown) = table.keys().find(|key| !["user", "password"].contains(&key.as_str())) {
            return Err(fault(EntryFault::Unknown(unknown.clone())));
        }
        identities.insert(identity, word("user")?, word("password")?);
    }
    Ok(identities)
}

/// A mistake in the file. The parser's own error is not kept: it quotes the line, and possibly a password in it.
#[derive(Debug, thiserror::Error)]
enum IdentitiesError {
    /// The line is not TOML.
    #[error("line {line} is not TOML")]
    Syntax { line: usize },
    /// The entry of an identity is wrong.
    #[error("'{identity}' {fault}")]
    Entry { identity: String, fault: EntryFault },
}

#[derive(Debug, thiserror::Error)]
enum EntryFault {
    #[error("is not a table")]
    NotATable,
    #[error("needs a string for '{0}'")]
    Lacks(&'static str),
    #[error("has an unknown key '{0}'")]
    Unknown(String),
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
    fn errors_in_the_file_do_not_show_the_password() {
        for (file, reported) in [
            ("worker = 1", "'worker' is not a table"),
            ("[worker]\nuser = 'w'", "'worker' needs a string for 'password'"),
            ("[worker]\nuser = 'w'\npassword = 1", "'worker' needs a string for 'password'"),
            ("[worker]\nuser = 'w'\npassword = 'p'\nuser2 = ''", "'worker' has an unknown key 'user2'"),
            ("[worker]\nuser = 'w'\npassword = 'hunter2", "line 3 is not TOML"),
        ] {
            assert_eq!(parse(file).unwrap_err().to_string(), reported);
        }
    }
}
