use proptest::prelude::*;

use super::*;

fn matches(topic: &Topic, key: &str) -> Vec<u32> {
    let mut found = Vec::new();
    topic.matches(key, |set| found.extend(set.iter()));
    found.sort_unstable();
    found
}

/// The definition, followed word for word.
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
    words_of(text).collect()
}

#[test]
fn patterns_match_as_rabbitmq_documents() {
    let mut topic = Topic::default();
    let patterns = ["a.b.c", "*.b.*", "#", "a.#", "#.c", "a.*", "*", "a.#.c", "", "a..c"];
    patterns.iter().enumerate().for_each(|(id, pattern)| topic.insert(pattern, id as u32));
    let names = |key: &str| -> Vec<&str> {
        matches(&topic, key).into_iter().map(|id| patterns[id as usize]).collect()
    };
    assert_eq!(names("a.b.c"), ["a.b.c", "*.b.*", "#", "a.#", "#.c", "a.#.c"]);
    assert_eq!(names("a"), ["#", "a.#", "*"]);
    assert_eq!(names(""), ["#", ""]);
    assert_eq!(names("a..c"), ["#", "a.#", "#.c", "a.#.c", "a..c"]);
    assert_eq!(names("a."), ["#", "a.#", "a.*"]);
}

#[test]
fn a_key_with_many_words_and_many_hashes_stays_cheap() {
    let mut topic = Topic::default();
    for hashes in 1..=60 {
        let pattern = vec!["#.a"; hashes].join(".");
        topic.insert(&format!("{pattern}.z"), hashes as u32);
    }
    // Exponential without the memory of what was followed: this would not end.
    let key = vec!["a"; 127].join(".");
    assert_eq!(matches(&topic, &key), [0u32; 0]);
    assert_eq!(matches(&topic, &format!("{key}.z")).len(), 60);
}

#[test]
fn each_pattern_is_found_once() {
    let mut topic = Topic::default();
    topic.insert("#.#.#", 1);
    let mut calls = 0;
    topic.matches("a.b.c", |_| calls += 1);
    assert_eq!(calls, 1);
}

#[test]
fn removing_leaves_nothing_behind() {
    let mut topic = Topic::default();
    let patterns = ["a.b.c", "a.*.#", "#.x", "a.b", ""];
    patterns.iter().for_each(|pattern| topic.insert(pattern, 7));
    patterns.iter().for_each(|pattern| topic.remove(pattern, 7));
    topic.remove("never.there", 7);
    assert_eq!(topic.nodes.len(), 1, "the root alone");
    assert!(topic.edges.is_empty());
    assert_eq!(topic.words.words.len(), 2, "the two wildcards");
}

fn word() -> impl Strategy<Value = String> {
    prop_oneof![Just("a"), Just("b"), Just("*"), Just("#"), Just("")].prop_map(str::to_owned)
}

proptest! {
    #[test]
    fn agrees_with_the_naive_matcher(
        patterns in proptest::collection::vec(proptest::collection::vec(word(), 0..6), 1..20),
        removed in proptest::collection::vec(any::<bool>(), 20),
        key in proptest::collection::vec(prop_oneof![Just("a"), Just("b"), Just("")], 0..7),
    ) {
        let patterns: Vec<String> = patterns.iter().map(|words| dotted(words)).collect();
        let key = key.join(".");
        let mut topic = Topic::default();
        for (id, pattern) in patterns.iter().enumerate() {
            topic.insert(pattern, id as u32);
        }
        for (id, pattern) in patterns.iter().enumerate().filter(|(id, _)| removed[*id]) {
            topic.remove(pattern, id as u32);
        }
        let expected: Vec<u32> = patterns
            .iter()
            .enumerate()
            .filter(|(id, pattern)| !removed[*id] && naive(&split(pattern), &split(&key)))
            .map(|(id, _)| id as u32)
            .collect();
        prop_assert_eq!(matches(&topic, &key), expected);
    }
}
