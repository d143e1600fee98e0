//! The owner of each session: the connection that has it, and the one that waits for it.
//!
//! A session is owned by one connection, or is detached. A connection [claims](Claims::claim) it by client identifier. If
//! another connection owns it, that connection is asked to close, and then hands the session over ([`Claims::release`]).

use std::collections::BTreeSet;
use std::sync::Arc;

use broker::{Identity, Timestamp};
use hashbrown::HashMap;
use sync::{Mutex, Rank};
use transport::Outbox;

/// The identity of a session.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Owner {
    pub(super) vhost: Arc<str>,
    pub(super) client_id: Box<str>,
}

/// A user to whom a session belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SessionUser {
    pub(super) name: Box<str>,
    /// Whether another auth backend authenticated the user. The broker's own user with the same name is a different user.
    pub(super) is_external: bool,
}

impl SessionUser {
    pub(super) fn of(identity: &Identity) -> Self {
        Self { name: identity.user().into(), is_external: !identity.is_listed() }
    }

    /// A user of the broker's own list, or of the upstream.
    pub(super) fn named(name: &str) -> Self {
        Self { name: name.into(), is_external: false }
    }
}

/// A session without a connection.
pub(super) trait Detached {
    /// The session's user; `None` if an earlier version did not record it.
    fn user(&self) -> Option<SessionUser>;
    /// The next time at which its will is due or it expires.
    fn due(&self) -> Option<Timestamp>;
}

/// The owners of all sessions of a backend, and the detached sessions themselves.
pub(super) struct Claims<D> {
    slots: HashMap<Arc<Owner>, Slot<D>>,
    /// The deadlines of detached sessions.
    due: BTreeSet<(Timestamp, Arc<Owner>)>,
}

impl<D> Default for Claims<D> {
    fn default() -> Self {
        Self { slots: HashMap::new(), due: BTreeSet::new() }
    }
}

enum Slot<D> {
    /// A connection owns it; another one may wait for it.
    Taken { by: Arc<Claim<D>>, next: Option<Arc<Claim<D>>> },
    /// The session is detached.
    Detached(Box<D>),
}

/// One connection's claim to a session.
pub(super) struct Claim<D> {
    outbox: Arc<Outbox>,
    /// The claiming user; `None` while a session without a recorded user is being ended.
    user: Option<SessionUser>,
    state: Mutex<ClaimState<D>, { Rank::Leaf as u8 }>,
}

struct ClaimState<D> {
    granted: Option<Option<Box<D>>>,
    /// Another connection of the same client has claimed the session.
    superseded: bool,
}

impl<D> Claim<D> {
    pub(super) fn new(outbox: &Arc<Outbox>, user: Option<SessionUser>) -> Arc<Self> {
        let state = Mutex::new(ClaimState { granted: None, superseded: false });
        Arc::new(Self { outbox: Arc::clone(outbox), user, state })
    }

    /// The outcome of the claim once it is granted: the detached session, if there was one.
    pub(super) fn take_granted(&self) -> Option<Option<Box<D>>> {
        self.state.lock().granted.take()
    }

    /// Whether a newer claim exists, so that the connection has to close.
    pub(super) fn is_superseded(&self) -> bool {
        self.state.lock().superseded
    }

    /// Whether the user of the claim is not `user`.
    pub(super) fn is_foreign_to(&self, user: &SessionUser) -> bool {
        self.user.as_ref() != Some(user)
    }

    fn grant(&self, detached_session: Option<Box<D>>) {
        self.state.lock().granted = Some(detached_session);
        self.outbox.nudge();
    }

    pub(super) fn supersede(&self) {
        self.state.lock().superseded = true;
        self.outbox.nudge();
    }
}

/// The user that a session belongs to.
#[derive(PartialEq, Eq)]
pub(super) enum SessionHolder {
    /// There is no session.
    None,
    /// An earlier version did not record the user.
    Unknown,
    User(SessionUser),
}

impl<D: Detached> Claims<D> {
    /// The detached sessions, in no order.
    pub(super) fn detached_mut(&mut self) -> impl Iterator<Item = &mut D> {
        self.slots.values_mut().filter_map(|slot| match slot {
            Slot::Detached(detached_session) => Some(&mut **detached_session),
            Slot::Taken { .. } => None,
        })
    }

    /// The user that has a session.
    pub(super) fn holder(&self, owner: &Owner) -> SessionHolder {
        let user = match self.slots.get(owner) {
            None => return SessionHolder::None,
            Some(Slot::Taken { by, .. }) => by.user.clone(),
            Some(Slot::Detached(detached_session)) => detached_session.user(),
        };
        user.map_or(SessionHolder::Unknown, SessionHolder::User)
    }

    /// Claims a session. The claim's outbox is nudged when it is granted, or superseded by another one.
    pub(super) fn claim(&mut self, owner: &Arc<Owner>, claim: &Arc<Claim<D>>) {
        let slot = match self.slots.remove(owner) {
            Some(Slot::Taken { by, next }) => {
                by.supersede();
                next.iter().for_each(|earlier| earlier.supersede());
                Slot::Taken { by, next: Some(Arc::clone(claim)) }
            }
            detached_session => {
                let detached_session = match detached_session {
                    Some(Slot::Detached(detached_session)) => Some(detached_session),
                    _ => None,
                };
                if let Some(due) =
                    detached_session.as_ref().and_then(|detached_session| detached_session.due())
                {
                    self.due.remove(&(due, Arc::clone(owner)));
                }
                claim.grant(detached_session);
                Slot::Taken { by: Arc::clone(claim), next: None }
            }
        };
        self.slots.insert(Arc::clone(owner), slot);
    }

    /// Called when a connection that has a session, or waits for it, has ended. The session in `left` is granted to the
    /// waiting connection or stays detached. Returns whether a deadline may have become earlier.
    pub(super) fn release(
        &mut self,
        owner: &Arc<Owner>,
        claim: &Arc<Claim<D>>,
        left: Option<Box<D>>,
    ) -> bool {
        match self.slots.remove(owner) {
            Some(Slot::Taken { by, next }) if Arc::ptr_eq(&by, claim) => {
                if let Some(next) = next {
                    next.grant(left);
                    self.slots.insert(Arc::clone(owner), Slot::Taken { by: next, next: None });
                } else if let Some(detached_session) = left {
                    return self.keep(owner, detached_session);
                }
            }
            Some(Slot::Taken { by, next }) => {
                let next = next.filter(|next| !Arc::ptr_eq(next, claim));
                self.slots.insert(Arc::clone(owner), Slot::Taken { by, next });
            }
            Some(slot) => drop(self.slots.insert(Arc::clone(owner), slot)),
            None => {}
        }
        false
    }

    /// Keeps a detached session. Returns whether a deadline may have become earlier.
    pub(super) fn keep(&mut self, owner: &Arc<Owner>, detached_session: Box<D>) -> bool {
        let due = detached_session.due();
        if let Some(due) = due {
            self.due.insert((due, Arc::clone(owner)));
        }
        self.slots.insert(Arc::clone(owner), Slot::Detached(detached_session));
        due.is_some()
    }

    /// A session, if it is detached.
    pub(super) fn detached(&mut self, owner: &Owner) -> Option<&mut D> {
        match self.slots.get_mut(owner) {
            Some(Slot::Detached(detached_session)) => Some(&mut **detached_session),
            _ => None,
        }
    }

    /// Takes a session of `user` that is detached, if there is one.
    pub(super) fn take_detached(&mut self, owner: &Owner, user: &SessionUser) -> Option<Box<D>> {
        let is_it = |slot: &Slot<D>| matches!(slot, Slot::Detached(detached_session) if detached_session.user().as_ref() == Some(user));
        self.slots.get(owner).filter(|slot| is_it(slot))?;
        let (owner, slot) = self.slots.remove_entry(owner)?;
        let Slot::Detached(detached_session) = slot else { return None };
        if let Some(due) = detached_session.due() {
            self.due.remove(&(due, owner));
        }
        Some(detached_session)
    }

    /// The next deadline.
    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Takes a detached session that is due. The caller has to [keep](Self::keep) it again, or to [end](Self::ending) it.
    pub(super) fn take_due(&mut self, now: Timestamp) -> Option<(Arc<Owner>, Box<D>)> {
        loop {
            self.due.first().filter(|(due, _)| *due <= now)?;
            let (_, owner) = self.due.pop_first()?;
            match self.slots.remove(&owner) {
                Some(Slot::Detached(detached_session)) => return Some((owner, detached_session)),
                Some(taken) => drop(self.slots.insert(owner, taken)),
                None => {}
            }
        }
    }

    /// Claims a [due](Self::take_due) session while it is being ended, so that a client that connects meanwhile waits.
    pub(super) fn ending(&mut self, owner: &Arc<Owner>, user: Option<SessionUser>) -> Arc<Claim<D>> {
        let by = Claim::new(&Arc::new(Outbox::new(0)), user);
        self.slots.insert(Arc::clone(owner), Slot::Taken { by: Arc::clone(&by), next: None });
        by
    }

    /// Removes all sessions of a virtual host. Returns the claims to them, and the detached ones.
    pub(super) fn remove_vhost(&mut self, vhost: &str) -> (Vec<Arc<Claim<D>>>, Vec<Box<D>>) {
        self.due.retain(|(_, owner)| *owner.vhost != *vhost);
        let (mut claims, mut detached) = (Vec::new(), Vec::new());
        for (_, slot) in self.slots.extract_if(|owner, _| *owner.vhost == *vhost) {
            match slot {
                Slot::Taken { by, next } => claims.extend([by].into_iter().chain(next)),
                Slot::Detached(detached_session) => detached.push(detached_session),
            }
        }
        (claims, detached)
    }
}
