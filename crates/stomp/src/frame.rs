//! Frames: a command, headers, and a body.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::fault::StompFault;

/// A frame that has been decoded completely.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StompFrame<'a> {
    /// The command, such as `SEND`.
    pub command: &'a str,
    /// The headers in the order of the frame.
    pub headers: Headers<'a>,
    /// The body, without the NUL that ends it.
    pub body: FrameBody<'a>,
}

/// The headers of a frame, unescaped and in order. Of several with one name only the first is stored, as only
/// the first counts (1.2, "Repeated Header Entries").
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Headers<'a>(pub(crate) SmallVec<[(Cow<'a, str>, Cow<'a, str>); 8]>);

impl Headers<'_> {
    /// The value of the header with this name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(own, _)| own == name).map(|(_, value)| &**value)
    }

    /// A copy that outlives the input.
    pub(crate) fn to_owned(&self) -> Headers<'static> {
        let owned = |text: &str| Cow::Owned(text.to_owned());
        Headers(self.iter().map(|(name, value)| (owned(name), owned(value))).collect())
    }

    /// All names and values in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }

    /// Parses a header as a number; spaces around it are ignored.
    ///
    /// # Errors
    /// The value is not a number, or is too large.
    pub fn number<N: std::str::FromStr>(&self, name: &'static str) -> Result<Option<N>, StompFault> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let number = text.trim().parse();
        number.map(Some).map_err(|_| StompFault::header(format!("'{name}' must be a number, not '{text}'\n")))
    }

    /// Parses a header as `true` or `false`.
    ///
    /// # Errors
    /// The value is neither.
    pub fn flag(&self, name: &'static str) -> Result<Option<bool>, StompFault> {
        match self.get(name) {
            None => Ok(None),
            Some("true" | "True") => Ok(Some(true)),
            Some("false" | "False") => Ok(Some(false)),
            Some(other) => {
                Err(StompFault::header(format!("'{name}' must be true or false, not '{other}'\n")))
            }
        }
    }
}

/// Hides passwords.
impl fmt::Debug for Headers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let view = self.iter().map(|(name, value)| (name, if name == "passcode" { "…" } else { value }));
        f.debug_map().entries(view).finish()
    }
}

/// The body of a frame.
#[derive(Debug, Clone, Eq)]
pub enum FrameBody<'a> {
    /// A slice of the input: the frame arrived whole.
    Borrowed(&'a [u8]),
    /// A copy: the frame arrived in several reads.
    Owned(Bytes),
}

impl FrameBody<'_> {
    /// A body that outlives the input.
    pub(crate) fn to_owned(&self) -> FrameBody<'static> {
        FrameBody::Owned(match self {
            Self::Borrowed(bytes) => Bytes::copy_from_slice(bytes),
            Self::Owned(bytes) => bytes.clone(),
        })
    }

    /// The bytes of the body.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Owned(bytes) => bytes,
        }
    }
}

impl PartialEq for FrameBody<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.bytes() == other.bytes()
    }
}
