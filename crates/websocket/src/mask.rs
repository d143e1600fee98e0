//! Masking (RFC 6455, 5.3).

/// Bytes processed in one step. A multiple of the key's length, and wide enough for the compiler to use whole
/// registers.
const STEP: usize = 64;

/// Applies `key` to `bytes`, the first of which is masked with the key's first byte. Masking twice restores the input.
/// Returns the key for the byte that follows.
#[inline]
pub fn mask(key: [u8; 4], bytes: &mut [u8]) -> [u8; 4] {
    let wide: [u8; STEP] = std::array::from_fn(|i| key[i % 4]);
    let mut steps = bytes.chunks_exact_mut(STEP);
    for step in &mut steps {
        for (byte, key) in step.iter_mut().zip(&wide) {
            *byte ^= key;
        }
    }
    for (byte, key) in steps.into_remainder().iter_mut().zip(&wide) {
        *byte ^= key;
    }
    let mut next = key;
    next.rotate_left(bytes.len() % 4);
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masking_follows_the_definition_for_every_length_and_split() {
        let key = [0x37, 0xfa, 0x21, 0x3d];
        for len in (0..200).chain([1000, 4097]) {
            let plain: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
            let expected: Vec<u8> = plain.iter().enumerate().map(|(i, byte)| byte ^ key[i % 4]).collect();
            for cut in [0, 1, 3, 64, len] {
                let mut bytes = plain.clone();
                let (front, back) = bytes.split_at_mut(cut.min(len));
                let next = mask(key, front);
                mask(next, back);
                assert_eq!(bytes, expected, "{len} bytes, cut at {cut}");
            }
        }
    }
}
