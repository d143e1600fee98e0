//! Why a text is not a value of a setting.

use std::error::Error;
use std::fmt;

use websocket::handshake::NotOrigin;

/// A mistake in a value. Its text completes a line that begins with the name of the setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ValueError {
    /// The fault of a value that is not quoted: `must be a name`. It may hold a secret, or be a list.
    Unquoted(&'static str),
    /// The fault of a URL, and the form that it should have.
    Url { fault: &'static str, expected: &'static str },
    /// The fault of the text: `'ten' is not a whole number`.
    Text { text: String, fault: &'static str },
    /// The text is none of these words.
    NoneOf { text: String, words: &'static [&'static str] },
    /// The value is not between these two.
    OutOfRange { least: &'static str, most: &'static str },
    /// The text is not of the type, nor this word.
    NorWord { source: Box<Self>, word: &'static str },
    /// A list has this element twice.
    Twice(String),
    /// The file has a value of this type of TOML.
    TomlType(&'static str),
    /// An inline table cannot be parsed.
    Table(toml::de::Error),
    /// The text is not an origin.
    Origin { text: String, source: NotOrigin },
    /// The mistake is in this key of a table.
    Key { key: String, source: Box<Self> },
}

impl ValueError {
    pub(super) fn text(text: &str, fault: &'static str) -> Self {
        Self::Text { text: text.to_owned(), fault }
    }

    pub(super) fn nor(self, word: &'static str) -> Self {
        Self::NorWord { source: Box::new(self), word }
    }

    pub(super) fn in_key(self, key: &str) -> Self {
        Self::Key { key: key.to_owned(), source: Box::new(self) }
    }
}

impl From<&'static str> for ValueError {
    fn from(fault: &'static str) -> Self {
        Self::Unquoted(fault)
    }
}

impl fmt::Display for ValueError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unquoted(fault) => formatter.write_str(fault),
            Self::Url { fault, expected } => write!(formatter, "{fault} ({expected})"),
            Self::Text { text, fault } => write!(formatter, "'{text}' {fault}"),
            Self::NoneOf { text, words } => write!(formatter, "'{text}' is none of: {}", words.join(", ")),
            Self::OutOfRange { least, most } => write!(formatter, "must be between {least} and {most}"),
            Self::NorWord { source, word } => write!(formatter, "{source}, nor '{word}'"),
            Self::Twice(element) => write!(formatter, "names {element} twice"),
            Self::TomlType(kind) => {
                write!(formatter, "takes a string or a number, not a value of type {kind}")
            }
            Self::Table(error) => write!(formatter, "not a table of TOML: {}", error.message()),
            Self::Origin { text, source } => write!(formatter, "'{text}' is {source}"),
            Self::Key { key, source } => write!(formatter, "{key}: {source}"),
        }
    }
}

impl Error for ValueError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::NorWord { source, .. } | Self::Key { source, .. } => Some(source),
            Self::Table(error) => Some(error),
            Self::Origin { source, .. } => Some(source),
            _ => None,
        }
    }
}
