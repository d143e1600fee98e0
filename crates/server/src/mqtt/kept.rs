//! A session between two connections of its client, and how it looks on disk.

use std::sync::Arc;

use broker::{Delivery, Lsn, Queue, Timestamp};
use hashbrown::{HashMap, HashSet};
use mqtt::server::StoredWill;
use mqtt::session::Session;
use mqtt::{Holder, Properties, PropertyList, QoS};

use super::owed::Owed;
use super::received::Partial;

/// A session, and what it has of its queues.
pub(super) struct Kept {
    pub(super) session: Session,
    /// Messages on their way to the client that their queues still count, by their tags.
    pub(super) held: HashMap<u64, Held>,
    /// Tags of messages that were on their way before a restart, and that their queue has not brought again yet.
    pub(super) restored: HashSet<u64>,
    /// The next tag of a message that has no place in the client's own queue.
    pub(super) next_tag: u64,
    /// Retained messages that the client does not have yet.
    pub(super) owed: Owed,
    /// Queues of shared subscriptions.
    pub(super) groups: Vec<Box<str>>,
    /// Messages from the client that a crash has left to some of their queues.
    pub(super) partial: Vec<Partial>,
    /// Messages that came out of a queue which others share, by their tags, and how far the log of messages must have got
    /// for that queue to have let go of them. After a crash before that they are the queue's, and were not sent to the client.
    pub(super) moving: Vec<(u64, Lsn)>,
    /// Seconds that the session outlives its connection; `u32::MAX` for ever.
    pub(super) expiry: u32,
    /// When the connection ended.
    pub(super) since: Timestamp,
    pub(super) will: Option<PendingWill>,
}

/// A delivery that is not settled.
pub(super) struct Held {
    pub(super) queue: Arc<Queue>,
    pub(super) delivery: Delivery,
}

/// A will that waits.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PendingWill {
    pub(super) will: StoredWill,
    /// Who publishes it.
    pub(super) user: Box<str>,
    pub(super) due: Timestamp,
}

/// Tags from here on are numbers of the session's own; those below are places in the client's queue.
pub(super) const OWN_TAGS: u64 = 1 << 63;

impl Kept {
    /// A session that begins.
    pub(super) fn new() -> Self {
        Self {
            session: Session::new(),
            held: HashMap::new(),
            restored: HashSet::new(),
            next_tag: OWN_TAGS,
            owed: Owed::default(),
            groups: Vec::new(),
            partial: Vec::new(),
            moving: Vec::new(),
            expiry: 0,
            since: Timestamp::default(),
            will: None,
        }
    }

    /// When the session ends, if ever.
    pub(super) fn ends(&self) -> Option<Timestamp> {
        (self.expiry != u32::MAX).then(|| self.since.after(u64::from(self.expiry) * 1000))
    }

    /// When something is to be done with it.
    pub(super) fn due(&self) -> Option<Timestamp> {
        self.will.as_ref().map(|will| will.due).into_iter().chain(self.ends()).min()
    }

    /// What [`encode`] wrote; `None` if it is not well-formed. A session whose connection was open when the server went is
    /// without one since `now`.
    pub(super) fn decode(octets: &[u8], now: Timestamp) -> Option<Self> {
        let (&[form], rest) = octets.split_first_chunk()?;
        let (expiry, rest) = rest.split_first_chunk()?;
        let (since, mut rest) = rest.split_first_chunk()?;
        let will = take_will(&mut rest)?;
        let moving = match form {
            WITHOUT_MOVING => Vec::new(),
            FORM => take_moving(&mut rest)?,
            _ => return None,
        };
        let session = Session::decode(rest).ok()?;
        let restored: HashSet<u64> = session.in_flight().map(|entry| entry.tag).collect();
        let next_tag = restored.iter().copied().filter(|tag| *tag >= OWN_TAGS).max();
        let since = Some(u64::from_be_bytes(*since)).filter(|since| *since != 0).map_or(now, Timestamp);
        let own = restored.iter().copied().filter(|tag| *tag < OWN_TAGS).collect();
        Some(Self {
            session,
            restored: own,
            next_tag: next_tag.map_or(OWN_TAGS, |tag| tag + 1),
            expiry: u32::from_be_bytes(*expiry),
            since,
            will,
            moving,
            ..Self::new()
        })
    }

    /// After a crash that has left the log of messages at `end`: messages that had not left their queues by then are there.
    /// Returns whether there were any; then the session is to be written down, since the log will be longer.
    pub(super) fn forget_what_did_not_move(&mut self, end: Lsn) -> bool {
        let moving = std::mem::take(&mut self.moving);
        let stayed = moving.into_iter().filter(|(_, until)| *until > end);
        stayed.map(|(tag, _)| self.session.forget_in_flight(tag)).count() > 0
    }
}

/// Appends a session as it is to be kept. `since` is when its connection ended, if it has.
pub(super) fn encode(
    session: &Session,
    moving: &[(u64, Lsn)],
    expiry: u32,
    since: Option<Timestamp>,
    will: Option<&PendingWill>,
) -> Vec<u8> {
    let mut octets = vec![FORM];
    octets.extend_from_slice(&expiry.to_be_bytes());
    octets.extend_from_slice(&since.map_or(0, |since| since.0).to_be_bytes());
    match will {
        None => octets.push(0),
        Some(PendingWill { will, user, due }) => {
            octets.extend_from_slice(&[1, will.qos as u8, u8::from(will.retain)]);
            octets.extend_from_slice(&due.0.to_be_bytes());
            let properties = will.properties.as_properties();
            for part in [user.as_bytes(), will.topic.as_bytes(), properties.octets(), &will.payload] {
                octets.extend_from_slice(&(part.len() as u32).to_be_bytes());
                octets.extend_from_slice(part);
            }
        }
    }
    octets.extend_from_slice(&(moving.len() as u32).to_be_bytes());
    for (tag, until) in moving {
        octets.extend_from_slice(&tag.to_be_bytes());
        octets.extend_from_slice(&until.0.to_be_bytes());
    }
    session.encode_exactly_once(&mut octets);
    octets
}

fn take_moving(rest: &mut &[u8]) -> Option<Vec<(u64, Lsn)>> {
    let (count, after) = rest.split_first_chunk()?;
    *rest = after;
    let mut moving = Vec::new();
    for _ in 0..u32::from_be_bytes(*count) {
        let (tag, after) = rest.split_first_chunk()?;
        let (until, after) = after.split_first_chunk()?;
        *rest = after;
        moving.push((u64::from_be_bytes(*tag), Lsn(u64::from_be_bytes(*until))));
    }
    Some(moving)
}

fn take_will(rest: &mut &[u8]) -> Option<Option<PendingWill>> {
    let (there, after) = rest.split_first()?;
    *rest = after;
    if *there == 0 {
        return Some(None);
    }
    let (&[qos, retain], after) = rest.split_first_chunk()?;
    let (due, after) = after.split_first_chunk()?;
    *rest = after;
    let (user, topic) = (take_text(rest)?, take_text(rest)?);
    let properties = Properties::check(take(rest)?, Holder::Publish).ok()?;
    let will = StoredWill {
        topic: topic.into(),
        qos: QoS::from_level(qos)?,
        retain: retain != 0,
        properties: properties.iter().fold(PropertyList::new(), PropertyList::with),
        payload: take(rest)?.into(),
        delay: 0,
    };
    Some(Some(PendingWill { will, user: user.into(), due: Timestamp(u64::from_be_bytes(*due)) }))
}

fn take<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (len, after) = rest.split_first_chunk()?;
    let (taken, after) = after.split_at_checked(u32::from_be_bytes(*len) as usize)?;
    *rest = after;
    Some(taken)
}

fn take_text<'a>(rest: &mut &'a [u8]) -> Option<&'a str> {
    std::str::from_utf8(take(rest)?).ok()
}

/// First octet of what is written, so that another form can be told from this one.
const FORM: u8 = 2;

/// As it was before messages were noted that are between their queue and the session.
const WITHOUT_MOVING: u8 = 1;

#[cfg(test)]
mod tests {
    use mqtt::Property;
    use mqtt::packet::SubscribeOptions;
    use mqtt::session::Subscription;

    use super::*;

    #[test]
    fn a_session_is_read_as_it_was_written() {
        let will = PendingWill {
            will: StoredWill {
                topic: "gone".into(),
                qos: QoS::ExactlyOnce,
                retain: true,
                properties: PropertyList::new().with(Property::ContentType("x")),
                payload: (*b"bye").into(),
                delay: 0,
            },
            user: "guest".into(),
            due: Timestamp(1500),
        };
        let mut session = Session::new();
        let options = SubscribeOptions::of_qos(QoS::ExactlyOnce);
        session.subscribe("a/#", Subscription { options, identifier: Some(7) });
        let moving = [(OWN_TAGS, Lsn(7))];
        let octets = encode(&session, &moving, 60, Some(Timestamp(1000)), Some(&will));
        let kept = Kept::decode(&octets, Timestamp(9)).unwrap();
        assert!(kept.session.subscriptions().eq(session.subscriptions()));
        assert_eq!((kept.ends(), kept.due()), (Some(Timestamp(61_000)), Some(Timestamp(1500))));
        assert_eq!((kept.will, kept.moving), (Some(will), moving.to_vec()));
        for cut in 0..octets.len() {
            assert!(Kept::decode(&octets[..cut], Timestamp(9)).is_none(), "{cut} octets");
        }
        let open = encode(&session, &[], u32::MAX, None, None);
        let kept = Kept::decode(&open, Timestamp(9)).unwrap();
        assert_eq!((kept.since, kept.due()), (Timestamp(9), None));
    }
}
