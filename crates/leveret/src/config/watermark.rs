//! Limits on memory, such as `memory_high_watermark`.

use super::value::{ByteSize, Value, quoted};
use super::value_error::ValueError;

/// The value of `memory_high_watermark` or `memory_paging_watermark`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Watermark {
    /// No limit.
    Off,
    /// A share of the memory that this process may use, 0 to 1.
    Share(f64),
    /// Bytes.
    Size(ByteSize),
}

impl Watermark {
    /// The limit in bytes, given the `total` memory if that is known; `None` for no limit.
    pub(crate) fn of(self, total: Option<u64>) -> Option<u64> {
        match self {
            Self::Off => None,
            Self::Share(share) => total.map(|total| (total as f64 * share) as u64),
            Self::Size(size) => Some(size.0),
        }
    }
}

/// Smaller numbers without a unit are refused, since no process fits in as many bytes: 60 was meant as a percentage.
const MIN_BARE_SIZE: u64 = 1 << 20;

impl Value for Watermark {
    const KIND: &'static str = "WATERMARK";

    /// A bare number is a share if it is at most 1, and a number of bytes otherwise.
    fn parse(text: &str) -> Result<Self, ValueError> {
        if text == "off" {
            return Ok(Self::Off);
        }
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        if let Ok(share) = text.parse()
            && is_number
            && (0.0..=1.0).contains(&share)
        {
            return Ok(Self::Share(share));
        }
        let fault = "is neither a share (such as 0.6), nor a size (such as 2GiB), nor 'off'";
        let size = ByteSize::parse(text).map_err(|_| ValueError::text(text, fault))?;
        if is_number && size.0 < MIN_BARE_SIZE {
            return Err(ValueError::FewBytes(text.to_owned()));
        }
        Ok(Self::Size(size))
    }

    fn to_toml(&self) -> String {
        match self {
            Self::Off => quoted("off"),
            Self::Share(share) => format!("{share:?}"),
            Self::Size(size) => size.to_toml(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watermark_is_a_share_a_size_or_off() {
        let mebibytes = |count: u64| Watermark::Size(ByteSize(count << 20));
        for (text, value, toml) in [
            ("0.6", Watermark::Share(0.6), "0.6"),
            ("1", Watermark::Share(1.0), "1.0"),
            ("0", Watermark::Share(0.0), "0.0"),
            ("512MiB", mebibytes(512), "\"512MiB\""),
            ("1048576", mebibytes(1), "\"1MiB\""),
            ("off", Watermark::Off, "\"off\""),
        ] {
            assert_eq!(Watermark::parse(text), Ok(value));
            assert_eq!(value.to_toml(), toml);
        }
        for text in ["", "1.5", "-0.5", "60%", "inf", "much", "1e-3"] {
            let reason =
                format!("'{text}' is neither a share (such as 0.6), nor a size (such as 2GiB), nor 'off'");
            assert_eq!(Watermark::parse(text).unwrap_err().to_string(), reason);
        }
    }

    #[test]
    fn a_percentage_is_not_read_as_a_number_of_bytes() {
        for text in ["60", "2", "1048575"] {
            let reason = format!("'{text}' is {text} bytes; write 0.6 for a share or 2GiB for a size");
            assert_eq!(Watermark::parse(text).unwrap_err().to_string(), reason);
        }
        assert_eq!(Watermark::parse("100KiB"), Ok(Watermark::Size(ByteSize(100 << 10))));
    }

    #[test]
    fn a_share_is_taken_of_the_total() {
        assert_eq!(Watermark::Share(0.6).of(Some(1000)), Some(600));
        assert_eq!(Watermark::Size(ByteSize(7)).of(None), Some(7));
        assert_eq!(Watermark::Off.of(Some(1000)), None);
    }
}
