//! Answers of another authority that are used again for a while, as RabbitMQ's plug-in rabbitmq_auth_backend_cache does.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use aws_lc_rs::{constant_time, hmac, rand};
use hashbrown::HashMap;
use parking_lot::Mutex;

/// Logins that are kept: some hundred bytes each.
const MAX_LOGINS: usize = 10_000;

/// Refused logins that are kept. They have room of their own, so that guesses push out no login that was accepted.
const MAX_REFUSED_LOGINS: usize = 1_000;

/// Verdicts about operations that are kept: sixty bytes each.
const MAX_VERDICTS: usize = 100_000;

/// For how long answers are kept, and which of them.
#[derive(Debug, Clone, Copy)]
pub struct CacheSettings {
    /// `auth_cache.cache_ttl`: age at which an answer is asked for again.
    pub ttl: Duration,
    /// `auth_cache.cache_refusals`: whether refusals are kept, too.
    pub keeps_refusals: bool,
}

/// Answers by all that was asked. Failures to answer are never kept.
pub(crate) struct AnswerCache {
    settings: CacheSettings,
    /// Made at the start, and known to nobody: what is kept of a password is of no use without it.
    key: hmac::Key,
    logins: Mutex<Shelf<Vec<String>>>,
    refused_logins: Mutex<Shelf<()>>,
    verdicts: Mutex<Shelf<bool>>,
}

/// The keyed hash of a question, secrets included.
#[derive(Clone, Copy)]
pub(crate) struct AnswerKey {
    /// The part by which it is found.
    place: [u8; HALF],
    /// The part that is compared in constant time.
    proof: [u8; HALF],
}

const HALF: usize = 16;

impl AnswerCache {
    /// An empty cache; `None` if the system gives no random bytes.
    pub(crate) fn new(settings: CacheSettings) -> Option<Self> {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &rand::SystemRandom::new()).ok()?;
        let logins = Mutex::new(Shelf::new(MAX_LOGINS));
        let refused_logins = Mutex::new(Shelf::new(MAX_REFUSED_LOGINS));
        let verdicts = Mutex::new(Shelf::new(MAX_VERDICTS));
        Some(Self { settings, key, logins, refused_logins, verdicts })
    }

    /// The key of a question: the form that would be sent.
    pub(crate) fn key(&self, path: &str, form: &str) -> AnswerKey {
        let mut context = hmac::Context::with_key(&self.key);
        context.update(&path.len().to_le_bytes());
        context.update(path.as_bytes());
        context.update(form.as_bytes());
        let tag = context.sign();
        let (mut place, mut proof) = ([0; HALF], [0; HALF]);
        place.copy_from_slice(&tag.as_ref()[..HALF]);
        proof.copy_from_slice(&tag.as_ref()[HALF..2 * HALF]);
        AnswerKey { place, proof }
    }

    /// The tags of a user whose login was accepted, or `Err` if it was refused.
    pub(crate) fn login(&self, key: AnswerKey, now: Instant) -> Option<Result<Vec<String>, ()>> {
        if let Some(tags) = self.logins.lock().find(key, now) {
            return Some(Ok(tags));
        }
        self.refused_logins.lock().find(key, now).map(|()| Err(()))
    }

    pub(crate) fn keep_login(&self, key: AnswerKey, outcome: Result<&[String], ()>, now: Instant) {
        let until = now + self.settings.ttl;
        match outcome {
            Ok(tags) => self.logins.lock().insert(key, tags.to_owned(), until),
            Err(()) if self.settings.keeps_refusals => self.refused_logins.lock().insert(key, (), until),
            Err(()) => {}
        }
    }

    /// Whether an operation was allowed.
    pub(crate) fn verdict(&self, key: AnswerKey, now: Instant) -> Option<bool> {
        self.verdicts.lock().find(key, now)
    }

    pub(crate) fn keep_verdict(&self, key: AnswerKey, is_allowed: bool, now: Instant) {
        if is_allowed || self.settings.keeps_refusals {
            self.verdicts.lock().insert(key, is_allowed, now + self.settings.ttl);
        }
    }

    pub(crate) fn clear(&self) {
        self.logins.lock().clear();
        self.refused_logins.lock().clear();
        self.verdicts.lock().clear();
    }
}

/// Answers of one kind, of which the oldest gives way. All live equally long, and so it is the first to end, too.
struct Shelf<T> {
    most: usize,
    by_place: HashMap<[u8; HALF], Kept<T>>,
    order: VecDeque<([u8; HALF], Instant)>,
}

struct Kept<T> {
    proof: [u8; HALF],
    until: Instant,
    answer: T,
}

impl<T: Clone> Shelf<T> {
    fn new(most: usize) -> Self {
        Self { most, by_place: HashMap::new(), order: VecDeque::new() }
    }

    fn find(&self, key: AnswerKey, now: Instant) -> Option<T> {
        let kept = self.by_place.get(&key.place).filter(|kept| now < kept.until)?;
        let is_same = constant_time::verify_slices_are_equal(&kept.proof, &key.proof).is_ok();
        is_same.then(|| kept.answer.clone())
    }

    fn insert(&mut self, key: AnswerKey, answer: T, until: Instant) {
        while let Some((place, end)) = self.order.front().copied() {
            // Otherwise a later answer has replaced it.
            let is_current = self.by_place.get(&place).is_some_and(|kept| kept.until == end);
            if is_current && self.order.len() < self.most {
                break;
            }
            self.order.pop_front();
            if is_current {
                self.by_place.remove(&place);
            }
        }
        self.by_place.insert(key.place, Kept { proof: key.proof, until, answer });
        self.order.push_back((key.place, until));
    }

    fn clear(&mut self) {
        self.by_place = HashMap::new();
        self.order = VecDeque::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(15);

    fn cache(keeps_refusals: bool) -> AnswerCache {
        AnswerCache::new(CacheSettings { ttl: TTL, keeps_refusals }).unwrap()
    }

    #[test]
    fn an_answer_is_used_again_until_it_is_old() {
        let (cache, now) = (cache(false), Instant::now());
        let key = cache.key("/user", "username=u&password=p");
        assert_eq!(cache.login(key, now), None);
        cache.keep_login(key, Ok(&["management".to_owned()]), now);
        cache.keep_verdict(key, true, now);
        let before = now + TTL - Duration::from_millis(1);
        assert_eq!(cache.login(key, before), Some(Ok(vec!["management".to_owned()])));
        assert_eq!(cache.verdict(key, before), Some(true));
        assert!(cache.login(key, now + TTL).is_none() && cache.verdict(key, now + TTL).is_none());
    }

    #[test]
    fn another_question_has_another_answer() {
        let (cache, now) = (cache(false), Instant::now());
        cache.keep_login(cache.key("/user", "username=u&password=p"), Ok(&[]), now);
        for (path, form) in [
            ("/user", "username=u&password=q"),
            ("/vhost", "username=u&password=p"),
            ("/use", "rusername=u&password=p"),
        ] {
            assert_eq!(cache.login(cache.key(path, form), now), None);
        }
        let other = AnswerCache::new(CacheSettings { ttl: TTL, keeps_refusals: false }).unwrap();
        assert_ne!(other.key("/user", "a").place, cache.key("/user", "a").place, "keys are of one process");
    }

    #[test]
    fn refusals_are_kept_if_the_operator_says_so() {
        for keeps in [false, true] {
            let (cache, now) = (cache(keeps), Instant::now());
            let key = cache.key("/user", "u");
            cache.keep_login(key, Err(()), now);
            cache.keep_verdict(key, false, now);
            assert_eq!(cache.login(key, now), keeps.then_some(Err(())));
            assert_eq!(cache.verdict(key, now), keeps.then_some(false));
        }
    }

    #[test]
    fn guesses_push_out_nobody_and_take_bounded_room() {
        let (cache, now) = (cache(true), Instant::now());
        let good = cache.key("/user", "good");
        cache.keep_login(good, Ok(&[]), now);
        for number in 0..MAX_REFUSED_LOGINS + 100 {
            cache.keep_login(cache.key("/user", &number.to_string()), Err(()), now);
        }
        assert_eq!(cache.login(good, now), Some(Ok(Vec::new())));
        let refused = cache.refused_logins.lock();
        assert!(refused.by_place.len() <= MAX_REFUSED_LOGINS && refused.order.len() <= MAX_REFUSED_LOGINS);
    }

    #[test]
    fn an_answer_that_is_renewed_is_kept_once() {
        let mut shelf = Shelf::new(3);
        let cache = cache(false);
        let now = Instant::now();
        for number in 0..100 {
            let until = now + Duration::from_secs(number);
            shelf.insert(cache.key("/", "same"), number, until);
            assert!(shelf.order.len() <= 3 && shelf.by_place.len() == 1);
        }
        assert_eq!(shelf.find(cache.key("/", "same"), now), Some(99));
        shelf.clear();
        assert_eq!(shelf.find(cache.key("/", "same"), now), None);
    }
}
