//! Frames: a command, headers, and a body.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::fault::Fault;

/// A frame that has been read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The command, whatever it is.
    pub command: &'a str,
    /// The headers.
    pub headers: Headers<'a>,
    /// The body.
    pub body: Payload<'a>,
}

/// The headers of a frame, unescaped, in their order. Of several with one name the first counts (1.2, "Repeated Header
/// Entries"), so that the others are not kept.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Headers<'a>(pub(crate) SmallVec<[(Cow<'a, str>, Cow<'a, str>); 8]>);

impl Headers<'_> {
    /// The value of a header.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(own, _)| own == name).map(|(_, value)| &**value)
    }

    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }

    /// A header that is a number; spaces around it do not matter.
    ///
    /// # Errors
    /// It is none, or too large.
    pub fn number<N: std::str::FromStr>(&self, name: &'static str) -> Result<Option<N>, Fault> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let number = text.trim().parse();
        number.map(Some).map_err(|_| Fault::header(format!("'{name}' must be a number, not '{text}'\n")))
    }

    /// A header that is `true` or `false`.
    ///
    /// # Errors
    /// It is neither.
    pub fn flag(&self, name: &'static str) -> Result<Option<bool>, Fault> {
        match self.get(name) {
            None => Ok(None),
            Some("true" | "True") => Ok(Some(true)),
            Some("false" | "False") => Ok(Some(false)),
            Some(other) => Err(Fault::header(format!("'{name}' must be true or false, not '{other}'\n"))),
        }
    }
}

/// Does not tell passwords.
impl fmt::Debug for Headers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.iter().map(|(name, value)| (name, if name == "passcode" { "…" } else { value }));
        f.debug_map().entries(shown).finish()
    }
}

/// The body of a frame.
#[derive(Debug, Clone, Eq)]
pub enum Payload<'a> {
    /// It lies whole in what was read.
    Borrowed(&'a [u8]),
    /// It came in several reads.
    Owned(Bytes),
}

impl Payload<'_> {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Owned(bytes) => bytes,
        }
    }
}

impl PartialEq for Payload<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.bytes() == other.bytes()
    }
}
