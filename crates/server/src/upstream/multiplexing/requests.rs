//! Requests to bind and unbind keys.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use amqp::Fault;

use super::state::{BindingId, IDLE_TIMEOUT, SubscribersState};

/// The maximum of bindings without a subscriber. Above it the oldest is removed at once, so that a client that uses very
/// many keys in turn leaves no more than this many upstream.
pub(super) const MAX_IDLE: usize = 4096;

/// The queue of binding requests. The upstream answers them in order.
#[derive(Default)]
pub(super) struct Requests {
    unsent: VecDeque<BindingRequest>,
    unanswered: VecDeque<BindingRequest>,
    /// Bindings that had no subscriber when they were added, each once, with the time at which to check them.
    line: VecDeque<(Instant, BindingId)>,
    /// Number of bound keys without a subscriber.
    pub(super) idle: usize,
}

/// A request to the upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
enum BindingRequest {
    Bind(BindingId),
    Unbind(Arc<str>),
}

/// A request to send: `queue.bind` or `queue.unbind` with this key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum KeyRequest {
    Bind(Arc<str>),
    Unbind(Arc<str>),
}

/// An answer that matches no request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unasked;

impl Requests {
    pub(super) fn bind(&mut self, id: BindingId) {
        self.unsent.push_back(BindingRequest::Bind(id));
    }

    /// Drops all requests, since there is no queue for them.
    pub(super) fn clear(&mut self) {
        self.unsent = VecDeque::new();
        self.unanswered = VecDeque::new();
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.line.front().map(|(deadline, _)| *deadline)
    }

    pub(super) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }
}

impl SubscribersState {
    /// The next request to send.
    pub(super) fn next_request(&mut self) -> Option<KeyRequest> {
        loop {
            let request = self.requests.unsent.pop_front()?;
            let key = match &request {
                BindingRequest::Unbind(key) => KeyRequest::Unbind(Arc::clone(key)),
                BindingRequest::Bind(id) => match self.bindings.get(id) {
                    Some(binding) if !binding.subscribers.is_empty() => {
                        KeyRequest::Bind(Arc::clone(&binding.key))
                    }
                    // No subscriber needs it any more.
                    _ => {
                        self.remove_binding(*id);
                        continue;
                    }
                },
            };
            self.requests.unanswered.push_back(request);
            return Some(key);
        }
    }

    /// Handles queue.bind-ok for the first unanswered request.
    ///
    /// # Errors
    /// That request was another one.
    pub(super) fn handle_bound(&mut self, now: Instant) -> Result<(), Unasked> {
        let Some(BindingRequest::Bind(id)) = self.requests.unanswered.pop_front() else {
            return Err(Unasked);
        };
        self.request_ended(id);
        let Some(binding) = self.bindings.get_mut(&id) else { return Err(Unasked) };
        binding.is_bound = true;
        if binding.subscribers.is_empty() {
            self.becomes_idle(id, now);
        } else if binding.waiting > 0 {
            self.answers.add_bound(id);
        }
        Ok(())
    }

    /// Handles queue.unbind-ok for the first unanswered request.
    ///
    /// # Errors
    /// That request was another one.
    pub(super) fn handle_unbound(&mut self) -> Result<(), Unasked> {
        match self.requests.unanswered.pop_front() {
            Some(BindingRequest::Unbind(_)) => Ok(()),
            _ => Err(Unasked),
        }
    }

    /// Handles the refusal of the first unanswered request. The upstream has ignored the later ones, which have to be
    /// sent again. Returns the request's key.
    ///
    /// # Errors
    /// There is no unanswered request.
    pub(super) fn handle_refused(&mut self, fault: &Fault) -> Result<Arc<str>, Unasked> {
        let refused = self.requests.unanswered.pop_front().ok_or(Unasked)?;
        while let Some(ignored) = self.requests.unanswered.pop_back() {
            self.requests.unsent.push_front(ignored);
        }
        match refused {
            BindingRequest::Bind(id) => {
                let binding = self.remove_binding(id).ok_or(Unasked)?;
                let key = Arc::clone(&binding.key);
                self.answers.add_refused(id, binding, fault.clone());
                Ok(key)
            }
            // The binding remains as long as the queue; its messages match no subscriber.
            BindingRequest::Unbind(key) => Ok(key),
        }
    }

    /// Called when a bound key has lost its last subscriber.
    pub(super) fn becomes_idle(&mut self, id: BindingId, now: Instant) {
        let Some(binding) = self.bindings.get_mut(&id) else { return };
        binding.idle_since = Some(now);
        self.requests.idle += 1;
        if !std::mem::replace(&mut binding.in_line, true) {
            self.requests.line.push_back((now + IDLE_TIMEOUT, id));
        }
        while self.requests.idle > MAX_IDLE
            && let Some((_, id)) = self.requests.line.pop_front()
        {
            let Some(binding) = self.bindings.get_mut(&id) else { continue };
            binding.in_line = false;
            if binding.idle_since.is_some() {
                self.unbind(id);
            }
        }
    }

    /// Unbinds keys that have had no subscriber for [`IDLE_TIMEOUT`].
    pub(super) fn expire(&mut self, now: Instant) {
        while let Some((_, id)) = self.requests.line.pop_front_if(|(deadline, _)| *deadline <= now) {
            let Some(binding) = self.bindings.get_mut(&id) else { continue };
            let until = binding.idle_since.map(|since| since + IDLE_TIMEOUT);
            binding.in_line = until.is_some_and(|until| until > now);
            match until {
                // It has had a subscriber in between.
                Some(until) if until > now => self.requests.line.push_back((until, id)),
                Some(_) => self.unbind(id),
                None => {}
            }
        }
    }

    fn unbind(&mut self, id: BindingId) {
        let Some(binding) = self.remove_binding(id) else { return };
        if self.queue().is_some() && binding.is_bound {
            self.requests.unsent.push_back(BindingRequest::Unbind(binding.key));
        }
    }
}
