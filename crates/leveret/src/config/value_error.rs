//! Why a text is not a value of a setting.

use websocket::handshake::ParseOriginError;

use super::suggestion::did_you_mean;

/// A mistake in a value. Its text completes a line that begins with the name of the setting.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub(crate) enum ValueError {
    /// The fault of a value that is not quoted: `must be a name`. It may hold a secret, or be a list.
    #[error("{0}")]
    Unquoted(&'static str),
    /// The fault of a URL, and the form that it should have.
    #[error("{fault} ({expected})")]
    Url { fault: &'static str, expected: &'static str },
    /// The fault of the text: `'ten' is not a whole number`.
    #[error("'{text}' {fault}")]
    Text { text: String, fault: &'static str },
    /// A size without a unit that is too small to be meant.
    #[error("'{0}' is {0} bytes; write 0.6 for a share or 2GiB for a size")]
    FewBytes(String),
    /// A directive of the log is for a target that does not exist.
    #[error("there is no target '{target}'{}", did_you_mean(Some(*.meant)))]
    LogTarget { target: String, meant: &'static str },
    /// The text is none of these words.
    #[error("'{text}' is none of: {}", .words.join(", "))]
    NoneOf { text: String, words: &'static [&'static str] },
    /// The value is not between these two.
    #[error("must be between {least} and {most}")]
    OutOfRange { least: &'static str, most: &'static str },
    /// The text is not of the type, nor this word.
    #[error("{source}, nor '{word}'")]
    NorWord { source: Box<Self>, word: &'static str },
    /// A list has this element twice.
    #[error("names {0} twice")]
    Twice(String),
    /// The file has a value of this type of TOML.
    #[error("takes a string or a number, not a value of type {0}")]
    TomlType(&'static str),
    /// An inline table cannot be parsed.
    #[error("not a table of TOML: {}", .0.message())]
    Table(#[source] toml::de::Error),
    /// The text is not an origin.
    #[error("'{text}' is {source}")]
    Origin { text: String, source: ParseOriginError },
    /// The text is not the URL of a service.
    #[error(transparent)]
    Service(auth::ServiceUrlError),
    /// The text is not a regular expression.
    #[error("{0}")]
    Pattern(String),
    /// A table has no key of this name. The key that was probably meant, if one is near.
    #[error("unknown key of a {table}{}", did_you_mean(*.meant))]
    UnknownKey { table: &'static str, meant: Option<&'static str> },
    /// The mistake is in this key of a table.
    #[error("{key}: {source}")]
    Key { key: String, source: Box<Self> },
}

impl ValueError {
    pub(super) fn text(text: &str, fault: &'static str) -> Self {
        Self::Text { text: text.to_owned(), fault }
    }

    pub(super) fn nor(self, word: &'static str) -> Self {
        Self::NorWord { source: Box::new(self), word }
    }

    pub(crate) fn in_key(self, key: &str) -> Self {
        Self::Key { key: key.to_owned(), source: Box::new(self) }
    }
}

impl From<&'static str> for ValueError {
    fn from(fault: &'static str) -> Self {
        Self::Unquoted(fault)
    }
}
