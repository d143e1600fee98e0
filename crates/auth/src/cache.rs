//! Caches the answers of an auth backend, as RabbitMQ's plugin rabbitmq_auth_backend_cache does.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use aws_lc_rs::{constant_time, hmac, rand};
use hashbrown::HashMap;
use parking_lot::Mutex;

/// Accepted logins that are stored: some two hundred bytes each, and the tags.
const MAX_LOGINS: usize = 10_000;

/// The most refused logins stored. They have a limit of their own, so that guesses evict no accepted login.
const MAX_REFUSED_LOGINS: usize = 1_000;

/// The most authorization decisions stored: some two hundred bytes each, in the table and in the order.
const MAX_VERDICTS: usize = 100_000;

/// How long answers are cached, and which ones.
#[derive(Debug, Clone, Copy)]
pub struct CacheSettings {
    /// `auth_cache.cache_ttl`: the age at which an answer is requested again.
    pub ttl: Duration,
    /// `auth_cache.cache_refusals`: whether refusals are cached, too.
    pub caches_refusals: bool,
}

/// Answers by request. Failures to answer are never stored.
///
/// Each answer belongs to the generation of its request, and is found only in that generation: an answer that arrives, or
/// is looked up, while the cache is cleared is not used for later requests.
pub(crate) struct AnswerCache {
    settings: CacheSettings,
    /// Random key of the password hashes, created at the start; it never leaves the process.
    key: hmac::Key,
    logins: Mutex<AnswerTable<Vec<String>>>,
    refused_logins: Mutex<AnswerTable<()>>,
    verdicts: Mutex<AnswerTable<bool>>,
}

/// The keyed hash of a request, secrets included.
#[derive(Clone, Copy)]
pub(crate) struct AnswerKey {
    /// The part used for the lookup.
    index: [u8; HALF],
    /// The part that is compared in constant time.
    proof: [u8; HALF],
}

const HALF: usize = 16;

impl AnswerCache {
    /// An empty cache; `None` if the system provides no random bytes.
    pub(crate) fn new(settings: CacheSettings) -> Option<Self> {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &rand::SystemRandom::new()).ok()?;
        let logins = Mutex::new(AnswerTable::new(MAX_LOGINS));
        let refused_logins = Mutex::new(AnswerTable::new(MAX_REFUSED_LOGINS));
        let verdicts = Mutex::new(AnswerTable::new(MAX_VERDICTS));
        Some(Self { settings, key, logins, refused_logins, verdicts })
    }

    /// The key of a request, computed from the form that would be sent.
    pub(crate) fn key(&self, path: &str, form: &str) -> AnswerKey {
        let mut context = hmac::Context::with_key(&self.key);
        context.update(&path.len().to_le_bytes());
        context.update(path.as_bytes());
        context.update(form.as_bytes());
        let tag = context.sign();
        let (mut index, mut proof) = ([0; HALF], [0; HALF]);
        index.copy_from_slice(&tag.as_ref()[..HALF]);
        proof.copy_from_slice(&tag.as_ref()[HALF..2 * HALF]);
        AnswerKey { index, proof }
    }

    /// The tags of a user whose login was accepted, or `Err` if it was refused.
    pub(crate) fn login(&self, key: AnswerKey, at: AskedAt) -> Option<Result<Vec<String>, ()>> {
        if let Some(tags) = self.logins.lock().lookup(key, at) {
            return Some(Ok(tags));
        }
        self.refused_logins.lock().lookup(key, at).map(|()| Err(()))
    }

    /// Stores the outcome of a login that was requested in the generation of `at`.
    pub(crate) fn store_login(&self, key: AnswerKey, outcome: Result<&[String], ()>, at: AskedAt) {
        match outcome {
            Ok(tags) => self.logins.lock().insert(key, tags.to_owned(), at, self.settings.ttl),
            Err(()) if self.settings.caches_refusals => {
                self.refused_logins.lock().insert(key, (), at, self.settings.ttl);
            }
            Err(()) => {}
        }
    }

    /// Whether an operation was allowed.
    pub(crate) fn verdict(&self, key: AnswerKey, at: AskedAt) -> Option<bool> {
        self.verdicts.lock().lookup(key, at)
    }

    /// As [`Self::store_login`].
    pub(crate) fn store_verdict(&self, key: AnswerKey, is_allowed: bool, at: AskedAt) {
        if is_allowed || self.settings.caches_refusals {
            self.verdicts.lock().insert(key, is_allowed, at, self.settings.ttl);
        }
    }

    /// Frees the memory of all answers, which a new generation has invalidated.
    pub(crate) fn clear(&self) {
        self.logins.lock().clear();
        self.refused_logins.lock().clear();
        self.verdicts.lock().clear();
    }
}

/// When an answer is looked up or stored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AskedAt {
    /// The auth backend's generation at the time of the request.
    pub(crate) generation: u32,
    pub(crate) now: Instant,
}

/// Answers of one kind; the oldest is evicted first. All have the same TTL, so it is also the first to expire.
struct AnswerTable<T> {
    most: usize,
    entries: HashMap<[u8; HALF], Entry<T>>,
    order: VecDeque<([u8; HALF], Instant)>,
}

struct Entry<T> {
    proof: [u8; HALF],
    generation: u32,
    until: Instant,
    answer: T,
}

impl<T: Clone> AnswerTable<T> {
    fn new(most: usize) -> Self {
        Self { most, entries: HashMap::new(), order: VecDeque::new() }
    }

    fn lookup(&self, key: AnswerKey, at: AskedAt) -> Option<T> {
        let is_current = |entry: &&Entry<T>| at.now < entry.until && at.generation == entry.generation;
        let entry = self.entries.get(&key.index).filter(is_current)?;
        let is_same = constant_time::verify_slices_are_equal(&entry.proof, &key.proof).is_ok();
        is_same.then(|| entry.answer.clone())
    }

    fn insert(&mut self, key: AnswerKey, answer: T, at: AskedAt, ttl: Duration) {
        let AskedAt { generation, now } = at;
        let until = now + ttl;
        while let Some((index, end)) = self.order.front().copied() {
            // Otherwise a later answer has replaced it.
            let is_current = self.entries.get(&index).is_some_and(|entry| entry.until == end);
            if is_current && self.order.len() < self.most {
                break;
            }
            self.order.pop_front();
            if is_current {
                self.entries.remove(&index);
            }
        }
        self.entries.insert(key.index, Entry { proof: key.proof, generation, until, answer });
        self.order.push_back((key.index, until));
    }

    fn clear(&mut self) {
        self.entries = HashMap::new();
        self.order = VecDeque::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(15);

    fn cache(caches_refusals: bool) -> AnswerCache {
        AnswerCache::new(CacheSettings { ttl: TTL, caches_refusals }).unwrap()
    }

    fn at(now: Instant) -> AskedAt {
        AskedAt { generation: 7, now }
    }

    #[test]
    fn an_answer_is_cached_until_its_ttl() {
        let (cache, now) = (cache(false), Instant::now());
        let key = cache.key("/user", "username=u&password=p");
        assert_eq!(cache.login(key, at(now)), None);
        cache.store_login(key, Ok(&["management".to_owned()]), at(now));
        cache.store_verdict(key, true, at(now));
        let before = now + TTL - Duration::from_millis(1);
        assert_eq!(cache.login(key, at(before)), Some(Ok(vec!["management".to_owned()])));
        assert_eq!(cache.verdict(key, at(before)), Some(true));
        assert!(cache.login(key, at(now + TTL)).is_none() && cache.verdict(key, at(now + TTL)).is_none());
    }

    #[test]
    fn another_question_has_another_answer() {
        let (cache, now) = (cache(false), Instant::now());
        cache.store_login(cache.key("/user", "username=u&password=p"), Ok(&[]), at(now));
        for (path, form) in [
            ("/user", "username=u&password=q"),
            ("/vhost", "username=u&password=p"),
            ("/use", "rusername=u&password=p"),
        ] {
            assert_eq!(cache.login(cache.key(path, form), at(now)), None);
        }
        let other = AnswerCache::new(CacheSettings { ttl: TTL, caches_refusals: false }).unwrap();
        assert_ne!(other.key("/user", "a").index, cache.key("/user", "a").index, "keys are of one process");
    }

    #[test]
    fn refusals_are_cached_if_configured() {
        for keeps in [false, true] {
            let (cache, now) = (cache(keeps), Instant::now());
            let key = cache.key("/user", "u");
            cache.store_login(key, Err(()), at(now));
            cache.store_verdict(key, false, at(now));
            assert_eq!(cache.login(key, at(now)), keeps.then_some(Err(())));
            assert_eq!(cache.verdict(key, at(now)), keeps.then_some(false));
        }
    }

    #[test]
    fn guesses_evict_no_accepted_login_and_use_bounded_memory() {
        let (cache, now) = (cache(true), Instant::now());
        let good = cache.key("/user", "good");
        cache.store_login(good, Ok(&[]), at(now));
        for number in 0..MAX_REFUSED_LOGINS + 100 {
            cache.store_login(cache.key("/user", &number.to_string()), Err(()), at(now));
        }
        assert_eq!(cache.login(good, at(now)), Some(Ok(Vec::new())));
        let refused = cache.refused_logins.lock();
        assert!(refused.entries.len() <= MAX_REFUSED_LOGINS && refused.order.len() <= MAX_REFUSED_LOGINS);
    }

    #[test]
    fn an_answer_that_is_renewed_is_stored_once() {
        let mut table = AnswerTable::new(3);
        let cache = cache(false);
        let now = Instant::now();
        let later = |seconds| at(now + Duration::from_secs(seconds));
        for number in 0..100 {
            table.insert(cache.key("/", "same"), number, later(number), TTL);
            assert!(table.order.len() <= 3 && table.entries.len() == 1);
        }
        assert_eq!(table.lookup(cache.key("/", "same"), later(99)), Some(99));
        table.clear();
        assert_eq!(table.lookup(cache.key("/", "same"), later(99)), None);
    }

    #[test]
    fn an_answer_counts_in_its_generation_alone() {
        let (cache, now) = (cache(true), Instant::now());
        let key = cache.key("/user", "u");
        let in_generation = |generation| AskedAt { generation, now };
        // The second answer arrives after all were invalidated; the first is still in the table, as until that is cleared.
        for outcome in [Ok(&[][..]), Err(())] {
            cache.store_login(key, outcome, in_generation(1));
            cache.store_verdict(key, outcome.is_ok(), in_generation(1));
            assert!(cache.login(key, in_generation(1)).is_some());
            assert!(cache.verdict(key, in_generation(1)).is_some());
            assert_eq!(cache.login(key, in_generation(2)), None);
            assert_eq!(cache.verdict(key, in_generation(2)), None);
        }
    }
}
