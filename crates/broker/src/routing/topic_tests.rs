use proptest::prelude::*;

use super::*;

/// A tree with its keys.
#[derive(Default)]
struct Tree {
    keys: Keys,
    topic: Topic,
}

impl Tree {
    fn insert(&mut self, pattern: &str, destination: u32) {
        let number = self.keys.intern(pattern.as_bytes());
        if self.keys.insert(number, destination) {
            self.topic.insert(&self.keys, number);
        }
    }

    fn remove(&mut self, pattern: &str, destination: u32) {
        let number = self.keys.number_of(pattern.as_bytes()).unwrap();
        if self.keys.remove(number, destination) {
            self.topic.remove(&self.keys, number);
            self.keys.forget(number);
        }
    }

    /// The matching destinations. Panics if a pattern is found twice.
    fn matches(&self, key: &str) -> Vec<u32> {
        let mut patterns = Vec::new();
        self.topic.matches(&self.keys, key, |pattern| patterns.push(pattern));
        let count = patterns.len();
        patterns.sort_unstable();
        patterns.dedup();
        assert_eq!(patterns.len(), count, "found twice for {key:?}");
        let mut found: Vec<u32> =
            patterns.iter().flat_map(|pattern| self.keys.destinations(*pattern).iter()).collect();
        found.sort_unstable();
        found
    }

    fn is_empty(&self) -> bool {
        let Topic { nodes, edges, .. } = &self.topic;
        let root = nodes.get(ROOT as usize).is_none_or(|root| root.children == 0 && root.pattern == NONE);
        root && nodes.len() <= 1 && edges.is_empty() && self.keys.is_empty()
    }
}

/// A literal implementation of the definition.
fn naive(pattern: &[&str], key: &[&str]) -> bool {
    match (pattern.split_first(), key.split_first()) {
        (None, None) => true,
        (None, Some(_)) => false,
        (Some((&"#", rest)), _) => (0..=key.len()).any(|skipped| naive(rest, &key[skipped..])),
        (Some(_), None) => false,
        (Some((word, rest)), Some((first, others))) => (*word == "*" || word == first) && naive(rest, others),
    }
}

fn dotted(words: &[String]) -> String {
    words.join(".")
}

fn split(text: &str) -> Vec<&str> {
    if text.is_empty() { Vec::new() } else { text.split('.').collect() }
}

#[test]
fn patterns_match_as_rabbitmq_documents() {
    let mut tree = Tree::default();
    let patterns = ["a.b.c", "*.b.*", "#", "a.#", "#.c", "a.*", "*", "a.#.c", "", "a..c"];
    patterns.iter().enumerate().for_each(|(id, pattern)| tree.insert(pattern, id as u32));
    let names =
        |key: &str| -> Vec<&str> { tree.matches(key).into_iter().map(|id| patterns[id as usize]).collect() };
    assert_eq!(names("a.b.c"), ["a.b.c", "*.b.*", "#", "a.#", "#.c", "a.#.c"]);
    assert_eq!(names("a"), ["#", "a.#", "*"]);
    assert_eq!(names(""), ["#", ""]);
    assert_eq!(names("a..c"), ["#", "a.#", "#.c", "a.#.c", "a..c"]);
    assert_eq!(names("a."), ["#", "a.#", "a.*"]);
}

#[test]
fn a_key_with_many_words_and_many_hashes_stays_cheap() {
    let mut tree = Tree::default();
    for hashes in 1..=60 {
        let pattern = vec!["#.a"; hashes].join(".");
        tree.insert(&format!("{pattern}.z"), hashes as u32);
    }
    // Exponential unless the search records the words that it has followed: this would not end.
    let key = vec!["a"; 127].join(".");
    assert_eq!(tree.matches(&key), [0u32; 0]);
    assert_eq!(tree.matches(&format!("{key}.z")).len(), 60);
}

#[test]
fn each_pattern_is_found_once() {
    let mut tree = Tree::default();
    tree.insert("#.#.#", 1);
    tree.insert("a.#.#", 2);
    tree.insert("#.b.#", 3);
    assert_eq!(tree.matches("a.b.c"), [1, 2, 3]);
    assert_eq!(tree.matches("a.b.b.b"), [1, 2, 3]);
}

#[test]
fn removing_leaves_nothing_behind() {
    let mut tree = Tree::default();
    let patterns = ["a.b.c", "a.*.#", "#.x", "a.b", ""];
    patterns.iter().for_each(|pattern| tree.insert(pattern, 7));
    patterns.iter().for_each(|pattern| tree.remove(pattern, 7));
    assert!(tree.is_empty());
}

#[test]
fn a_pattern_with_a_word_of_its_own_takes_one_edge() {
    let mut tree = Tree::default();
    (0..100).for_each(|number| tree.insert(&format!("{number}.in.*.between.#"), number));
    assert_eq!((tree.topic.nodes.len(), tree.topic.edges.len()), (1, 100));
    tree.insert("7.in.detail", 107);
    assert_eq!(tree.matches("7.in.detail"), [107]);
    assert_eq!(tree.matches("7.in.and.between.now.and.then"), [7]);
    tree.remove("7.in.*.between.#", 7);
    tree.remove("7.in.detail", 107);
    assert_eq!((tree.topic.nodes.len(), tree.topic.edges.len()), (1, 99));
}

fn word() -> impl Strategy<Value = String> {
    prop_oneof![Just("a"), Just("b"), Just("*"), Just("#"), Just("")].prop_map(str::to_owned)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    #[test]
    fn agrees_with_the_naive_matcher(
        patterns in proptest::collection::vec(proptest::collection::vec(word(), 0..6), 1..20),
        removed in proptest::collection::vec(any::<bool>(), 20),
        key in proptest::collection::vec(prop_oneof![Just("a"), Just("b"), Just("")], 0..7),
    ) {
        let patterns: Vec<String> = patterns.iter().map(|words| dotted(words)).collect();
        let key = key.join(".");
        let mut tree = Tree::default();
        for (id, pattern) in patterns.iter().enumerate() {
            tree.insert(pattern, id as u32);
        }
        for (id, pattern) in patterns.iter().enumerate().filter(|(id, _)| removed[*id]) {
            tree.remove(pattern, id as u32);
        }
        let expected: Vec<u32> = patterns
            .iter()
            .enumerate()
            .filter(|(id, pattern)| !removed[*id] && naive(&split(pattern), &split(&key)))
            .map(|(id, _)| id as u32)
            .collect();
        prop_assert_eq!(tree.matches(&key), expected);
        for (id, pattern) in patterns.iter().enumerate().filter(|(id, _)| !removed[*id]) {
            tree.remove(pattern, id as u32);
        }
        prop_assert!(tree.is_empty());
    }
}
