//! Forms as RabbitMQ's plugin writes them (`application/x-www-form-urlencoded`).

use std::fmt::Write as _;

/// The fields of a request, in order.
pub(crate) struct Form(String);

impl Form {
    pub(crate) fn new() -> Self {
        Self(String::new())
    }

    /// Adds a field.
    #[must_use]
    pub(crate) fn with(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        if !self.0.is_empty() {
            self.0.push('&');
        }
        self.encode(name.as_bytes());
        self.0.push('=');
        self.encode(value.as_ref());
        self
    }

    fn encode(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            match byte {
                b' ' => self.0.push('+'),
                byte if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => {
                    self.0.push(char::from(byte))
                }
                byte => _ = write!(self.0, "%{byte:02X}"),
            }
        }
    }

    pub(crate) fn into_text(self) -> String {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_but_letters_digits_and_four_others_is_escaped() {
        let form = Form::new().with("username", "a b+c&d=e").with("password", b"\xff/%\r\n").with("tags", "");
        let text = "username=a+b%2Bc%26d%3De&password=%FF%2F%25%0D%0A&tags=";
        assert_eq!(form.into_text(), text);
        assert_eq!(
            Form::new().with("variable_map.username", "-._~ü").into_text(),
            "variable_map.username=-._~%C3%BC"
        );
    }
}
