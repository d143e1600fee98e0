//! LEB128 integers: seven bits per byte, lowest first.

/// Appends a number.
pub(super) fn put(into: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        into.push(number as u8 | 0x80);
        number >>= 7;
    }
    into.push(number as u8);
}

/// Takes a number from the front; `None` if there is none.
pub(super) fn take(from: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for (at, byte) in from.iter().enumerate().take(MAX_BYTES) {
        number |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            *from = &from[at + 1..];
            return Some(number);
        }
    }
    None
}

/// 64 bits, seven at a time.
const MAX_BYTES: usize = 10;
