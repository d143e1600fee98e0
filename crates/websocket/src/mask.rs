//! Masking (RFC 6455, 5.3).

/// Octets taken in one step. A multiple of the key's length, and wide enough for the compiler to use whole registers.
const STEP: usize = 64;

/// Applies `key` to `octets`, the first of which is masked with the key's first octet. Masking twice changes nothing.
/// Returns the key for the octet that follows.
#[inline]
pub fn mask(key: [u8; 4], octets: &mut [u8]) -> [u8; 4] {
    let wide: [u8; STEP] = std::array::from_fn(|i| key[i % 4]);
    let mut steps = octets.chunks_exact_mut(STEP);
    for step in &mut steps {
        for (octet, key) in step.iter_mut().zip(&wide) {
            *octet ^= key;
        }
    }
    for (octet, key) in steps.into_remainder().iter_mut().zip(&wide) {
        *octet ^= key;
    }
    let mut next = key;
    next.rotate_left(octets.len() % 4);
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_every_cut_give_what_the_definition_says() {
        let key = [0x37, 0xfa, 0x21, 0x3d];
        for len in (0..200).chain([1000, 4097]) {
            let plain: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
            let expected: Vec<u8> = plain.iter().enumerate().map(|(i, octet)| octet ^ key[i % 4]).collect();
            for cut in [0, 1, 3, 64, len] {
                let mut octets = plain.clone();
                let (front, back) = octets.split_at_mut(cut.min(len));
                let next = mask(key, front);
                mask(next, back);
                assert_eq!(octets, expected, "{len} octets, cut at {cut}");
            }
        }
    }
}
