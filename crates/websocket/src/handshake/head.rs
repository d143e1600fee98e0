//! The head of an HTTP/1.1 request.

/// Bytes of the largest head. Browsers send every cookie of the host along, so 8 KiB is not always enough.
pub const MAX_HEAD: usize = 16 * 1024;

/// Most header fields of a request; browsers send some fifteen, and proxies add a few.
pub const MAX_HEADERS: usize = 64;

/// A request without its body, borrowed from the buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head<'a> {
    /// The method, such as `GET`.
    pub method: &'a str,
    /// The path, beginning with `/` and not decoded.
    pub path: &'a str,
    /// The query, after the first `?`.
    pub query: Option<&'a str>,
    /// 0 or 1: HTTP/1.0 or HTTP/1.1.
    pub minor_version: u8,
    headers: Vec<(&'a str, &'a [u8])>,
}

/// The reason why bytes are no head.
#[derive(Debug, thiserror::Error, Clone, Copy, PartialEq, Eq)]
pub enum HeadError {
    /// Not HTTP/1.
    #[error("not an HTTP/1.1 request")]
    Malformed,
    /// More than [`MAX_HEAD`] bytes or [`MAX_HEADERS`] fields.
    #[error("more than {MAX_HEAD} bytes or {MAX_HEADERS} header fields")]
    TooLarge,
}

impl<'a> Head<'a> {
    /// Parses a head from the front of `input`, and returns it with its length; `None` asks for more.
    ///
    /// # Errors
    /// The bytes cannot become a head, or it is too large.
    pub fn parse(input: &'a [u8]) -> Result<Option<(Self, usize)>, HeadError> {
        let looked_at = &input[..input.len().min(MAX_HEAD)];
        let mut fields = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut request = httparse::Request::new(&mut fields);
        let len = match request.parse(looked_at) {
            Ok(httparse::Status::Complete(len)) => len,
            Ok(httparse::Status::Partial) if looked_at.len() < MAX_HEAD => return Ok(None),
            Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
                return Err(HeadError::TooLarge);
            }
            Err(_) => return Err(HeadError::Malformed),
        };
        let (Some(method), Some(target), Some(minor_version)) =
            (request.method, request.path, request.version)
        else {
            return Err(HeadError::Malformed);
        };
        let (path, query) = path_and_query(target).ok_or(HeadError::Malformed)?;
        let headers = request.headers.iter().map(|field| (field.name, field.value)).collect();
        Ok(Some((Self { method, path, query, minor_version, headers }, len)))
    }

    /// The first header of that name, if it is text.
    pub fn header(&self, name: &str) -> Option<&'a str> {
        self.all(name).next()
    }

    /// All headers of that name that are text, without white space around them.
    pub fn all(&self, name: &str) -> impl Iterator<Item = &'a str> {
        self.headers
            .iter()
            .filter(move |(candidate, _)| candidate.eq_ignore_ascii_case(name))
            .filter_map(|(_, value)| std::str::from_utf8(value).ok().map(str::trim))
    }

    /// The header of that name. `None` unless there is exactly one, and its value is text.
    pub fn single(&self, name: &str) -> Option<&'a str> {
        let mut values = self.headers.iter().filter(|(candidate, _)| candidate.eq_ignore_ascii_case(name));
        let (_, value) = values.next()?;
        if values.next().is_some() { None } else { std::str::from_utf8(value).ok().map(str::trim) }
    }

    /// The elements of all headers of that name, each of which is a comma-separated list.
    pub(crate) fn elements(&self, name: &str) -> impl Iterator<Item = &'a str> {
        self.all(name).flat_map(|value| value.split(',')).map(str::trim).filter(|element| !element.is_empty())
    }

    /// Whether a list has this element, ignoring case.
    pub fn lists(&self, name: &str, element: &str) -> bool {
        self.elements(name).any(|candidate| candidate.eq_ignore_ascii_case(element))
    }

    /// Whether the request has a body after the head.
    pub fn has_body(&self) -> bool {
        self.all("transfer-encoding").next().is_some()
            || self.all("content-length").any(|length| length != "0")
    }
}

/// Splits `/path?query`, or the same behind `http://host` (RFC 9112, 3.2.2).
fn path_and_query(target: &str) -> Option<(&str, Option<&str>)> {
    let target = match target.split_once("://") {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("ws") => {
            &rest[rest.find('/')?..]
        }
        _ => target,
    };
    if !target.starts_with('/') {
        return None;
    }
    Some(target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Option<(Head<'_>, usize)>, HeadError> {
        Head::parse(text.as_bytes())
    }

    #[test]
    fn a_truncated_head_needs_more_input_and_following_bytes_are_left() {
        let text = "GET /ws/amqp?a=1&b=2 HTTP/1.1\r\nHost: h\r\nX-List: a, B\r\nx-list:c\r\n\r\nrest";
        let end = text.len() - 4;
        for cut in 0..end {
            assert_eq!(parse(&text[..cut]), Ok(None), "{cut}");
        }
        let (head, len) = parse(text).unwrap().unwrap();
        assert_eq!((head.path, head.query, len), ("/ws/amqp", Some("a=1&b=2"), end));
        assert_eq!(head.elements("X-LIST").collect::<Vec<_>>(), ["a", "B", "c"]);
        assert!(head.lists("x-list", "b") && !head.lists("x-list", "d"));
        assert_eq!((head.single("host"), head.single("x-list")), (Some("h"), None));
    }

    #[test]
    fn an_oversize_head_is_refused_without_reading_more() {
        let long = format!("GET / HTTP/1.1\r\nCookie: {}", "c".repeat(MAX_HEAD));
        assert_eq!(parse(&long), Err(HeadError::TooLarge));
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(MAX_HEADERS + 1));
        assert_eq!(parse(&many), Err(HeadError::TooLarge));
    }

    #[test]
    fn malformed_requests_are_refused_at_once() {
        for text in ["AMQP\0\0\x09\x01", "\x16\x03\x01", "GET  HTTP/1.1\r\n\r\n", "GET / HTTP/2.0\r\n\r\n"] {
            assert_eq!(parse(text), Err(HeadError::Malformed), "{text:?}");
        }
        assert_eq!(parse("GET host:80 HTTP/1.1\r\n\r\n"), Err(HeadError::Malformed));
        assert_eq!(parse("OPTIONS * HTTP/1.1\r\n\r\n"), Err(HeadError::Malformed));
    }

    #[test]
    fn absolute_targets_are_understood() {
        let (head, _) = parse("GET http://h:80/p?q HTTP/1.1\r\n\r\n").unwrap().unwrap();
        assert_eq!((head.path, head.query), ("/p", Some("q")));
    }
}
