//! The message by which other processes learn that a client has connected.

/// The first line: the message type and its version.
const HEAD: &str = "leveret-takeover-1";

/// The longest announcement in bytes. The client identifier is part of a queue name, which has at most 255.
const MAX_LENGTH: usize = 512;

/// A client that has connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Announcement<'a> {
    /// The random name of the process that it has connected to.
    pub(super) process: &'a str,
    /// Increases with each client of a process. At least the milliseconds since 1970, so that the numbers of different
    /// processes are comparable.
    pub(super) number: u64,
    /// Whether the client resumes its session.
    pub(super) resumes: bool,
    pub(super) client_id: &'a str,
}

impl<'a> Announcement<'a> {
    /// Encodes the message body: one line per field.
    pub(super) fn encode(&self) -> String {
        let Self { process, number, resumes, client_id } = self;
        let session = if *resumes { RESUMED } else { CLEAN };
        format!("{HEAD}\n{process}\n{number}\n{session}\n{client_id}")
    }

    /// Decodes a message body; `None` if it is no announcement.
    pub(super) fn parse(body: &'a [u8]) -> Option<Self> {
        if body.len() > MAX_LENGTH {
            return None;
        }
        let rest = std::str::from_utf8(body).ok()?.strip_prefix(HEAD)?.strip_prefix('\n')?;
        let mut lines = rest.splitn(4, '\n');
        let (process, number) = (lines.next()?, lines.next()?.parse().ok()?);
        let resumes = match lines.next()? {
            RESUMED => true,
            CLEAN => false,
            _ => return None,
        };
        let client_id = lines.next().filter(|client_id| !client_id.is_empty())?;
        Some(Self { process, number, resumes, client_id })
    }
}

const RESUMED: &str = "session";
const CLEAN: &str = "clean";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_announcement_round_trips_through_its_encoding() {
        for (client_id, resumes) in [("a", true), ("ü/#\u{2028}", false), (&"x".repeat(232), true)] {
            let announcement = Announcement { process: "one", number: u64::MAX, resumes, client_id };
            assert_eq!(Announcement::parse(announcement.encode().as_bytes()), Some(announcement));
        }
    }

    #[test]
    fn other_messages_are_not_announcements() {
        let good = Announcement { process: "one", number: 7, resumes: true, client_id: "me" }.encode();
        for length in 0..good.len() - 1 {
            assert_eq!(Announcement::parse(&good.as_bytes()[..length]), None, "{length}");
        }
        let bad = [
            good.replace('7', "-7"),
            good.replace('7', "18446744073709551616"),
            good.replace("session", "other"),
            good.replace("-1", "-2"),
            format!("{good}{}", "x".repeat(MAX_LENGTH)),
        ];
        for body in bad {
            assert_eq!(Announcement::parse(body.as_bytes()), None, "{body}");
        }
        assert_eq!(Announcement::parse(b"leveret-takeover-1\none\n7\nclean\n\xFF"), None);
    }
}
