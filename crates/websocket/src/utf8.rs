//! Validates text that arrives in pieces.

/// Validates one text, piece by piece. Bytes that can no longer become UTF-8 are refused at once, not at the end.
#[derive(Debug, Clone, Copy, Default)]
pub struct Utf8 {
    /// The first bytes of a character whose rest has not arrived.
    partial: [u8; 4],
    /// Number of bytes used in `partial`.
    len: u8,
}

/// The text is not UTF-8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotUtf8;

impl Utf8 {
    /// Validates the next piece.
    ///
    /// # Errors
    /// The text is not, or cannot become, UTF-8.
    pub fn push(&mut self, mut piece: &[u8]) -> Result<(), NotUtf8> {
        while self.len > 0 {
            let Some((&byte, rest)) = piece.split_first() else { return Ok(()) };
            self.partial[usize::from(self.len)] = byte;
            self.len += 1;
            piece = rest;
            match std::str::from_utf8(&self.partial[..usize::from(self.len)]) {
                Ok(_) => self.len = 0,
                Err(error) if error.error_len().is_some() => return Err(NotUtf8),
                // Four bytes are a character or invalid, so there is space for the next one.
                Err(_) => {}
            }
        }
        if let Err(error) = simdutf8::compat::from_utf8(piece) {
            if error.error_len().is_some() {
                return Err(NotUtf8);
            }
            let rest = &piece[error.valid_up_to()..];
            self.partial[..rest.len()].copy_from_slice(rest);
            self.len = rest.len() as u8;
        }
        Ok(())
    }

    /// The text ends here.
    ///
    /// # Errors
    /// It ends within a character.
    pub fn finish(&mut self) -> Result<(), NotUtf8> {
        if std::mem::take(&mut self.len) == 0 { Ok(()) } else { Err(NotUtf8) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pieces: &[&[u8]]) -> Result<(), NotUtf8> {
        let mut utf8 = Utf8::default();
        pieces.iter().try_for_each(|piece| utf8.push(piece))?;
        utf8.finish()
    }

    #[test]
    fn every_cut_of_good_and_bad_text_gives_the_standard_librarys_verdict() {
        let texts: [&[u8]; 9] = [
            "κόσμε".as_bytes(),
            "a\u{10ffff}b\u{800}\u{80}".as_bytes(),
            b"\xce\xba\xed\xa0\x80edited",
            b"\xf4\x90\x80\x80",
            b"\xc0\xaf",
            b"\xf8\x88\x80\x80\x80",
            b"ok\x80",
            b"cut\xe2\x82",
            b"\xff",
        ];
        for text in texts {
            let expected = std::str::from_utf8(text).map(drop).map_err(|_| NotUtf8);
            for first in 0..=text.len() {
                for second in first..=text.len() {
                    let pieces = [&text[..first], &text[first..second], &text[second..]];
                    assert_eq!(check(&pieces), expected, "{text:?} cut at {first} and {second}");
                }
            }
        }
    }

    #[test]
    fn bytes_that_cannot_become_utf8_are_refused_before_the_last_byte() {
        let mut utf8 = Utf8::default();
        assert_eq!(utf8.push(b"\xf4"), Ok(()));
        assert_eq!(utf8.push(b"\x90"), Err(NotUtf8), "above U+10FFFF whatever follows");
        let mut utf8 = Utf8::default();
        assert_eq!(utf8.push(b"\xed\xa0"), Err(NotUtf8), "a surrogate whatever follows");
    }
}
