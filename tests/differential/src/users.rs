//! Who programs are: the users of `definitions.py`, whose passwords are their names.

/// The user of each connection of a program, by its number.
const USERS: [&str; 5] = ["guest", "guest", "limited", "topical", "masked"];

/// How many connections a program may have.
pub(crate) const CONNECTIONS: u8 = USERS.len() as u8;

/// Connections of the user who may do anything.
pub(crate) const UNLIMITED: u8 = 2;

/// Who logs in on a connection.
pub(crate) fn user_of(connection: u8) -> &'static str {
    USERS.get(usize::from(connection)).copied().unwrap_or(USERS[0])
}
