//! Keys of stored records: names, each preceded by its length.

/// The key made of names of at most 255 bytes each.
pub(super) fn key(names: &[&str]) -> Vec<u8> {
    let mut key = Vec::with_capacity(names.iter().map(|name| name.len() + 1).sum());
    for name in names {
        debug_assert!(name.len() <= 255, "names have 255 bytes at most");
        key.push(name.len() as u8);
        key.extend_from_slice(name.as_bytes());
    }
    key
}

/// Decodes a key of exactly `N` names; `None` if it is malformed.
pub(super) fn names<const N: usize>(key: &[u8]) -> Option<[&str; N]> {
    let (names, rest) = names_and_rest(key)?;
    rest.is_empty().then_some(names)
}

/// Decodes the names at the front of a key; returns them with the rest.
pub(super) fn names_and_rest<const N: usize>(mut key: &[u8]) -> Option<([&str; N], &[u8])> {
    let mut names = [""; N];
    for name in &mut names {
        let (len, rest) = key.split_first()?;
        let (bytes, rest) = rest.split_at_checked(usize::from(*len))?;
        *name = std::str::from_utf8(bytes).ok()?;
        key = rest;
    }
    Some((names, key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_were_written() {
        let mut bytes = key(&["v", "größe"]);
        assert_eq!(names(&bytes), Some(["v", "größe"]));
        assert_eq!(names::<1>(&bytes), None);
        bytes.extend([0, 7]);
        assert_eq!(names_and_rest(&bytes), Some((["v", "größe"], &[0, 7][..])));
        assert_eq!(names::<3>(&bytes), None);
    }
}
