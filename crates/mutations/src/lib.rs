//! Runs the bodies of fuzz targets on a small corpus and some thousand mutations of it, on stable Rust and
//! deterministically. A dev-dependency of the crates with parsers only.

/// Calls `body` with each seed of a corpus, and with `count` mutations of them. `tokens` are bytes that are
/// significant in the format, which chance would seldom hit.
///
/// # Panics
/// If `body` panics, or there is no seed.
pub fn check_mutations(corpus: &[Vec<u8>], count: usize, tokens: &[u8], body: impl Fn(&[u8])) {
    corpus.iter().for_each(|seed| body(seed));
    let mut random = Random::new(0x9E37_79B9_7F4A_7C15);
    for _ in 0..count {
        let mut input = corpus[random.below(corpus.len())].clone();
        for _ in 0..=random.below(4) {
            mutate(&mut input, tokens, &mut random);
        }
        body(&input);
    }
}

/// Most bytes that a mutation repeats, so that inputs do not grow without bound.
const MAX_REPEAT: usize = 4096;

fn mutate(input: &mut Vec<u8>, tokens: &[u8], random: &mut Random) {
    let at = random.below(input.len() + 1);
    match random.below(6) {
        0 => input.truncate(at),
        1 => input.insert(at, random.byte()),
        // Repeats a part of the input.
        2 => {
            let from = at - random.below((at + 1).min(MAX_REPEAT));
            drop(input.splice(at.., input.clone().into_iter().skip(from)));
        }
        3 if at < input.len() => drop(input.remove(at)),
        4 if at < input.len() => input[at] ^= 1 << random.below(8),
        _ if at < input.len() => {
            let chosen = tokens.get(random.below(tokens.len() + 1)).copied();
            input[at] = chosen.unwrap_or_else(|| random.byte());
        }
        _ => {}
    }
}

/// An xorshift generator: deterministic.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Creates the sequence of a seed, which must not be 0.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    fn byte(&mut self) -> u8 {
        (self.next() >> 32) as u8
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    use super::*;

    fn inputs(tokens: &[u8]) -> Vec<Vec<u8>> {
        let seen = RefCell::new(Vec::new());
        check_mutations(&[b"abcdef".to_vec(), Vec::new()], 2000, tokens, |input| {
            seen.borrow_mut().push(input.to_vec())
        });
        seen.into_inner()
    }

    #[test]
    fn the_seeds_come_first_and_the_same_mutations_every_time() {
        let seen = inputs(b"#");
        assert_eq!((seen.len(), &*seen[0], &*seen[1]), (2002, &b"abcdef"[..], &b""[..]));
        assert_eq!(seen, inputs(b"#"));
        assert!(seen.iter().collect::<BTreeSet<_>>().len() > 500, "and they differ");
    }

    #[test]
    fn mutations_shorten_and_lengthen_inputs_and_favour_tokens() {
        let seen = inputs(b"#");
        let lengths: BTreeSet<usize> = seen.iter().map(Vec::len).collect();
        assert!(lengths.contains(&0) && lengths.iter().any(|len| *len > 7), "{lengths:?}");
        let hits = |seen: &[Vec<u8>]| seen.iter().filter(|input| input.contains(&b'#')).count();
        assert!(hits(&seen) > 5 * hits(&inputs(&[])).max(1));
    }
}
