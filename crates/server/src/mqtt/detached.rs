//! A detached session, between two connections of its client, and its stored form.

use std::sync::Arc;

use broker::{Delivery, DiskPoint, Identity, Lsn, Queue, Timestamp};
use hashbrown::{HashMap, HashSet};
use mqtt::server::StoredWill;
use mqtt::session::{InFlight, Session};
use mqtt::{Holder, PacketProperties, PropertyList, QoS};

use super::in_flight::InFlightRecord;
use super::pending_retained::PendingRetained;
use super::received::PartialMessages;
use super::session_ownership::{Detached, SessionUser};
use super::subscriptions::Class;

/// A session with its unsettled deliveries and pending messages.
pub(super) struct DetachedSession {
    pub(super) session: Session,
    /// Deliveries that are unacknowledged in their queues, by tag.
    pub(super) unacked: HashMap<u64, UnackedDelivery>,
    /// Tags of messages that were in flight before a restart, and that their queue has not redelivered yet.
    pub(super) restored: HashSet<u64>,
    /// The next tag for a message without a position in the client's own queue.
    pub(super) next_tag: u64,
    /// Retained messages that have not been sent to the client, or not been acknowledged by it.
    pub(super) pending_retained: PendingRetained,
    /// Names of the shared subscriptions' queues.
    pub(super) groups: Vec<Box<str>>,
    /// QoS 2 messages from the client that reached only some of their queues before a crash.
    pub(super) partial: PartialMessages,
    /// Messages taken from a shared queue, by tag, with the log position at which that queue has released them. If a
    /// crash left the log shorter than that, the queue still has the message, and it was not sent to the client.
    pub(super) moving: Vec<(u64, Lsn)>,
    /// The session's user. `None` only for a session of an earlier version, which recorded no user: it then belongs to
    /// the first user who connects with its client identifier and has permission for its queue.
    pub(super) user: Option<SessionUser>,
    /// Messages at lower positions of the client's queue came from an earlier version, which did not
    /// distinguish `.` and `/` in topics; 0 if there are none (see [`super::merging`]).
    pub(super) merged_below: u64,
    /// Whether an earlier version wrote the session, and [`super::merging`] has not upgraded it yet.
    pub(super) is_merged: bool,
    /// Seconds that the session outlives its connection; `u32::MAX` forever.
    pub(super) expiry: u32,
    /// When the connection ended.
    pub(super) since: Timestamp,
    pub(super) will: Option<PendingWill>,
    /// Whether the client's queue of each [class](super::subscriptions::Class) ends with the session. False for a queue
    /// that was declared by somebody else, until the client's user is found to have permission for it.
    pub(super) owns: [bool; 2],
    /// Whether the session was made from queues that existed without a session. The user then needs permissions for them.
    pub(super) is_found: bool,
    /// The writes that had not been confirmed when the connection ended. A new connection waits for them, since it may
    /// send the answers that depend on them.
    pub(super) until: DiskPoint,
}

/// `x-expires`, in milliseconds, of the queue of a session that outlives its connection by `expiry` seconds;
/// `None` forever.
pub(super) fn lease(expiry: u32) -> Option<u64> {
    (expiry != u32::MAX).then(|| u64::from(expiry) * 1000)
}

/// A delivery that is not settled.
pub(super) struct UnackedDelivery {
    pub(super) queue: Arc<Queue>,
    pub(super) delivery: Delivery,
}

/// A will with a delay.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PendingWill {
    pub(super) will: StoredWill,
    /// The user that publishes it.
    pub(super) user: Box<str>,
    /// The identity of a user who was authenticated by another auth backend. The will of such a user is not stored, and
    /// is lost in a restart: after it, nothing can confirm that the user still exists.
    pub(super) external: Option<Identity>,
    pub(super) due: Timestamp,
}

/// The user that publishes a will.
#[derive(Clone, Copy)]
pub(super) struct WillAuthor<'a> {
    pub(super) user: &'a str,
    /// `None` for a user of the broker's own list.
    pub(super) external: Option<&'a Identity>,
}

impl PendingWill {
    pub(super) fn author(&self) -> WillAuthor<'_> {
        WillAuthor { user: &self.user, external: self.external.as_ref() }
    }
}

/// Tags from here on are allocated by the session; lower tags are positions in the client's queue.
pub(super) const OWN_TAGS: u64 = 1 << 63;

impl Detached for DetachedSession {
    fn user(&self) -> Option<SessionUser> {
        self.user.clone()
    }

    /// When the will is due or the session expires, whichever is earlier.
    fn due(&self) -> Option<Timestamp> {
        self.will.as_ref().map(|will| will.due).into_iter().chain(self.ends()).min()
    }
}

impl DetachedSession {
    /// A new session.
    pub(super) fn new() -> Self {
        Self {
            session: Session::new(),
            unacked: HashMap::new(),
            restored: HashSet::new(),
            next_tag: OWN_TAGS,
            pending_retained: PendingRetained::default(),
            groups: Vec::new(),
            partial: PartialMessages::new(),
            moving: Vec::new(),
            user: None,
            merged_below: 0,
            is_merged: false,
            expiry: 0,
            since: Timestamp::default(),
            will: None,
            owns: [true; 2],
            is_found: false,
            until: DiskPoint::default(),
        }
    }

    /// The session of queues that exist without one. The caller adds the subscriptions; the client sets an expiry.
    pub(super) fn of_queues() -> Self {
        Self { is_found: true, expiry: u32::MAX, ..Self::new() }
    }

    /// Whether a user may resume it.
    pub(super) fn belongs_to(&self, user: &SessionUser) -> bool {
        self.user.as_ref().is_none_or(|own| own == user)
    }

    /// When the session expires, if ever.
    pub(super) fn ends(&self) -> Option<Timestamp> {
        lease(self.expiry).map(|lease| self.since.after(lease))
    }

    /// Whether it has expired by `now`, even if it has not been ended yet.
    pub(super) fn is_over(&self, now: Timestamp) -> bool {
        self.ends().is_some_and(|end| end <= now)
    }

    /// Whether it has subscriptions whose messages come from the client's own queue of this class.
    pub(super) fn needs(&self, class: Class) -> bool {
        let mut all = self.session.subscriptions();
        all.any(|(_, one)| Class::of(one.options.qos) == class && !one.is_shared)
    }

    /// Decodes the output of [`Written::encode`]; `None` if malformed. A session whose connection was open when
    /// the server stopped counts as detached since `now`.
    pub(super) fn decode(bytes: &[u8], now: Timestamp) -> Option<Self> {
        let (&[form], rest) = bytes.split_first_chunk()?;
        let (expiry, rest) = rest.split_first_chunk()?;
        let (since, mut rest) = rest.split_first_chunk()?;
        let will = take_will(&mut rest)?;
        let (user, merged_below) = match form {
            // The user of a will is that of its session.
            WITHOUT_MOVING | WITHOUT_USER => (will.as_ref().map(|will| SessionUser::named(&will.user)), 0),
            FORM | OF_EXTERNAL | WITH_IN_FLIGHT | OF_EXTERNAL_WITH_IN_FLIGHT => {
                let name = Some(take_text(&mut rest)?).filter(|name| !name.is_empty());
                let is_external = matches!(form, OF_EXTERNAL | OF_EXTERNAL_WITH_IN_FLIGHT);
                let user = name.map(|name| SessionUser { name: name.into(), is_external });
                let (merged_below, after) = rest.split_first_chunk()?;
                rest = after;
                (user, u64::from_be_bytes(*merged_below))
            }
            _ => return None,
        };
        let moving = if form == WITHOUT_MOVING { Vec::new() } else { take_moving(&mut rest)? };
        let since = Some(u64::from_be_bytes(*since)).filter(|since| *since != 0).map_or(now, Timestamp);
        let mut decoded = Self {
            session: Session::decode(rest).ok()?,
            expiry: u32::from_be_bytes(*expiry),
            since,
            will,
            moving,
            user,
            merged_below,
            is_merged: matches!(form, WITHOUT_MOVING | WITHOUT_USER),
            ..Self::new()
        };
        decoded.note_restored();
        Some(decoded)
    }

    /// Restores messages in flight, in the order of their first sending.
    pub(super) fn restore_in_flight(&mut self, records: impl IntoIterator<Item = InFlightRecord>) {
        for InFlightRecord { entry, until } in records {
            self.moving.extend(until.map(|until| (entry.tag, until)));
            self.session.restore_in_flight(entry);
        }
        self.note_restored();
    }

    /// Notes the tags of the messages that are in flight after a restart.
    fn note_restored(&mut self) {
        for InFlight { tag, .. } in self.session.in_flight() {
            if *tag < OWN_TAGS {
                self.restored.insert(*tag);
            } else {
                self.next_tag = self.next_tag.max(tag + 1);
            }
        }
    }

    /// Called after a crash that has left the message log at `end`: forgets messages in flight that their queues had not
    /// released by then. Returns whether there were any. The session must then be written before the log grows.
    pub(super) fn forget_unreleased(&mut self, end: Lsn) -> bool {
        let moving = std::mem::take(&mut self.moving);
        let stayed = moving.into_iter().filter(|(_, until)| *until > end);
        stayed.map(|(tag, _)| self.session.forget_in_flight(tag)).count() > 0
    }

    /// Called after a restart, when the next message of the client's queue gets the position `next`. If the queue was
    /// empty and the journal has no record of it, its positions start from 0 again. Messages in flight at `next` or above
    /// are then in no queue, but later messages will get their positions: so they get tags of the session's own. Returns
    /// whether there were any. The session must then be written before the queue grows.
    pub(super) fn give_up_positions(&mut self, next: u64) -> bool {
        self.restored.retain(|tag| *tag < next);
        let next_tag = &mut self.next_tag;
        self.session.remap_tags(|tag| {
            let is_outdated = (next..OWN_TAGS).contains(&tag);
            is_outdated.then(|| take_tag(next_tag))
        })
    }
}

/// Allocates a tag of the session's own.
pub(super) fn take_tag(next_tag: &mut u64) -> u64 {
    let tag = *next_tag;
    *next_tag += 1;
    tag
}

/// A session in its stored form, without its [messages in flight](super::in_flight).
pub(super) struct Written<'a> {
    pub(super) session: &'a Session,
    pub(super) user: Option<&'a SessionUser>,
    pub(super) merged_below: u64,
    pub(super) expiry: u32,
    /// When its connection ended; `None` while it is open.
    pub(super) since: Option<Timestamp>,
    pub(super) will: Option<&'a PendingWill>,
}

impl Written<'_> {
    /// The bytes for the disk.
    pub(super) fn encode(&self) -> Vec<u8> {
        let is_external = self.user.is_some_and(|user| user.is_external);
        let mut bytes = vec![if is_external { OF_EXTERNAL } else { FORM }];
        bytes.extend_from_slice(&self.expiry.to_be_bytes());
        bytes.extend_from_slice(&self.since.map_or(0, |since| since.0).to_be_bytes());
        // A stored will names its user only, and after a restart would be published as the broker's own user of that
        // name.
        match self.will.filter(|will| will.external.is_none()) {
            None => bytes.push(0),
            Some(PendingWill { will, user, due, .. }) => {
                bytes.extend_from_slice(&[1, will.qos as u8, u8::from(will.retain)]);
                bytes.extend_from_slice(&due.0.to_be_bytes());
                let properties = will.properties.as_properties();
                for part in [user.as_bytes(), will.topic.as_bytes(), properties.bytes(), &will.payload] {
                    put(&mut bytes, part);
                }
            }
        }
        put(&mut bytes, self.user.map_or("", |user| &user.name).as_bytes());
        bytes.extend_from_slice(&self.merged_below.to_be_bytes());
        // An empty list of `moving`, which earlier versions stored here.
        bytes.extend_from_slice(&[0; 4]);
        self.session.encode_without_messages(&mut bytes);
        bytes
    }
}

fn put(bytes: &mut Vec<u8>, part: &[u8]) {
    bytes.extend_from_slice(&(part.len() as u32).to_be_bytes());
    bytes.extend_from_slice(part);
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
    let properties = PacketProperties::check(take(rest)?, Holder::Publish).ok()?;
    let will = StoredWill {
        topic: topic.into(),
        qos: QoS::from_level(qos)?,
        retain: retain != 0,
        properties: properties.iter().fold(PropertyList::new(), PropertyList::with),
        payload: take(rest)?.into(),
        delay: 0,
    };
    let due = Timestamp(u64::from_be_bytes(*due));
    Some(Some(PendingWill { will, user: user.into(), external: None, due }))
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

/// First byte of a stored session: the version of its format.
const FORM: u8 = 5;

/// The same, for a user of another auth backend than the broker's own list.
const OF_EXTERNAL: u8 = 6;

/// The format that contained the messages in flight.
const WITH_IN_FLIGHT: u8 = 3;

/// The same, of a user of another auth backend.
const OF_EXTERNAL_WITH_IN_FLIGHT: u8 = 4;

/// The format before the user was recorded, when `.` and `/` in topics were not distinguished.
const WITHOUT_USER: u8 = 2;

/// The older format that also lacks the list of `moving`.
const WITHOUT_MOVING: u8 = 1;

#[cfg(test)]
mod tests {
    use broker::TokenPermissions;
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
            external: None,
            due: Timestamp(1500),
        };
        let mut session = Session::new();
        let options = SubscribeOptions::of_qos(QoS::ExactlyOnce);
        session.subscribe("a/#", Subscription { options, identifier: Some(7), is_shared: false });
        let alice = SessionUser::named("alice");
        let written = Written {
            session: &session,
            user: Some(&alice),
            merged_below: 7,
            expiry: 60,
            since: Some(Timestamp(1000)),
            will: Some(&will),
        };
        let bytes = written.encode();
        let detached_session = DetachedSession::decode(&bytes, Timestamp(9)).unwrap();
        assert!(
            detached_session.belongs_to(&alice) && !detached_session.belongs_to(&SessionUser::named("guest"))
        );
        assert_eq!((detached_session.merged_below, detached_session.is_merged), (7, false));
        assert!(detached_session.session.subscriptions().eq(session.subscriptions()));
        assert_eq!(
            (detached_session.ends(), detached_session.due()),
            (Some(Timestamp(61_000)), Some(Timestamp(1500)))
        );
        assert_eq!(detached_session.will.as_ref(), Some(&will));
        for cut in 0..bytes.len() {
            assert!(DetachedSession::decode(&bytes[..cut], Timestamp(9)).is_none(), "{cut} bytes");
        }
        let open = Written { expiry: u32::MAX, since: None, will: None, ..written };
        let detached_session = DetachedSession::decode(&open.encode(), Timestamp(9)).unwrap();
        assert_eq!((detached_session.since, detached_session.due()), (Timestamp(9), None));
    }

    #[test]
    fn a_session_of_an_external_user_is_written_as_such_and_without_its_will() {
        let rights = TokenPermissions { scopes: Vec::new(), tags: Vec::new(), expires_at: Timestamp(60_000) };
        let identity = Identity::of_token("alice", rights);
        let user = SessionUser::of(&identity);
        let topic = "gone".into();
        let properties = PropertyList::new();
        let will = StoredWill {
            topic,
            qos: QoS::AtMostOnce,
            retain: false,
            properties,
            payload: [].into(),
            delay: 0,
        };
        let will =
            PendingWill { will, user: user.name.clone(), external: Some(identity), due: Timestamp(1500) };
        let written = Written {
            session: &Session::new(),
            user: Some(&user),
            merged_below: 0,
            expiry: 60,
            since: Some(Timestamp(1000)),
            will: Some(&will),
        };
        let detached_session = DetachedSession::decode(&written.encode(), Timestamp(9)).unwrap();
        assert!(
            detached_session.belongs_to(&user) && !detached_session.belongs_to(&SessionUser::named("alice"))
        );
        assert_eq!((detached_session.will, detached_session.is_merged), (None, false));
    }

    #[test]
    fn a_session_of_an_earlier_version_is_read_and_has_a_user_if_its_will_has() {
        let mut session = Session::new();
        session.subscribe("a/#", Subscription::of(SubscribeOptions::default()));
        let mut rest = Vec::new();
        session.encode_without_messages(&mut rest);
        let expiry = 60_u32.to_be_bytes();
        let since = 1000_u64.to_be_bytes();
        let with_moving = [&[WITHOUT_USER][..], &expiry, &since, &[0], &[0; 4], &rest].concat();
        let without = [&[WITHOUT_MOVING][..], &expiry, &since, &[0], &rest].concat();
        let will = [&[1, 0, 0][..], &[0; 8], &[0, 0, 0, 5], b"guest", &[0, 0, 0, 1], b"t", &[0; 8]].concat();
        let with_will = [&[WITHOUT_USER][..], &expiry, &since, &will, &[0; 4], &rest].concat();
        for (bytes, user) in [(with_moving, None), (without, None), (with_will, Some("guest"))] {
            let detached_session = DetachedSession::decode(&bytes, Timestamp(9)).unwrap();
            assert_eq!(
                (detached_session.user, detached_session.is_merged),
                (user.map(SessionUser::named), true)
            );
            assert!(detached_session.session.subscriptions().eq(session.subscriptions()));
        }
    }
}
