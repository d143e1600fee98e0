//! Keys of stored records: names, each preceded by its length.

use super::session_ownership::Owner;

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

/// The key of the record of a message with this packet identifier.
pub(super) fn packet_key(owner: &Owner, packet_id: u16) -> Vec<u8> {
    let mut key = key(&[&owner.vhost, &owner.client_id]);
    key.extend_from_slice(&packet_id.to_be_bytes());
    key
}

/// Decodes a key of [`packet_key`]; `None` if malformed.
pub(super) fn read_packet_key(key: &[u8]) -> Option<(Owner, u16)> {
    let ([vhost, client_id], rest) = names_and_rest::<2>(key)?;
    let owner = Owner { vhost: vhost.into(), client_id: client_id.into() };
    Some((owner, u16::from_be_bytes(rest.try_into().ok()?)))
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

    #[test]
    fn a_packet_identifier_is_read_as_it_was_written() {
        let owner = Owner { vhost: "/".into(), client_id: "größe".into() };
        let key = packet_key(&owner, 7);
        assert_eq!(read_packet_key(&key[..key.len() - 1]), None);
        assert_eq!(read_packet_key(&key), Some((owner, 7)));
    }
}
