//! The file of remembered logins.
//!
//! It has one line per user, virtual host and secret: `1`, the time in milliseconds since 1970, the number of iterations,
//! and in Base64 the salt, the hash, the virtual host and the user.

use std::fmt::Write as _;
use std::fs::{File, Permissions};
use std::io;
use std::num::NonZeroU32;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::hashing::{HashParameters, MAX_ITERATIONS, SecretHash};
use crate::private_file::MODE;

/// A line of the file.
pub(super) struct LoginLine {
    pub(super) accepted_at: u64,
    pub(super) parameters: HashParameters,
    pub(super) hash: SecretHash,
    pub(super) vhost: Box<str>,
    pub(super) user: Box<str>,
}

impl LoginLine {
    pub(super) fn append_to(&self, out: &mut String) {
        let Self { accepted_at, parameters: HashParameters { iterations, salt }, hash, vhost, user } = self;
        let base64 = |bytes: &[u8]| STANDARD.encode(bytes);
        let (salt, hash) = (base64(salt), base64(&hash.0));
        let (vhost, user) = (base64(vhost.as_bytes()), base64(user.as_bytes()));
        // Writing to a string cannot fail.
        let _ = writeln!(out, "1 {accepted_at} {iterations} {salt} {hash} {vhost} {user}");
    }

    /// Parses a line; `None` for one of another release or a damaged one.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let parts: Vec<&str> = line.split(' ').collect();
        let ["1", accepted_at, iterations, salt, hash, vhost, user] = parts[..] else { return None };
        let bytes = |text: &str| STANDARD.decode(text).ok();
        let name = |text: &str| Some(String::from_utf8(bytes(text)?).ok()?.into_boxed_str());
        let iterations =
            iterations.parse().ok().filter(|count: &NonZeroU32| count.get() <= MAX_ITERATIONS)?;
        Some(Self {
            accepted_at: accepted_at.parse().ok()?,
            parameters: HashParameters { iterations, salt: bytes(salt)?.try_into().ok()? },
            hash: SecretHash(bytes(hash)?.try_into().ok()?),
            vhost: name(vhost)?,
            user: name(user)?,
        })
    }
}

/// Reads the file; empty if it does not exist. If other users can read it, its permissions are restricted.
pub(super) fn read(path: &Path) -> io::Result<Vec<LoginLine>> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    if file.metadata()?.permissions().mode() & 0o077 != 0 {
        tracing::warn!(path = %path.display(), "login cache readable by other users: permissions fixed");
        file.set_permissions(Permissions::from_mode(MODE))?;
    }
    let mut text = String::new();
    io::Read::read_to_string(&mut file, &mut text)?;
    Ok(text.lines().filter_map(LoginLine::parse).collect())
}
