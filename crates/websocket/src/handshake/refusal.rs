//! Answers to requests that are not upgraded.

use std::borrow::Cow;

/// The status code of such an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// 400: the request is wrong.
    BadRequest = 400,
    /// 403: the page that the request comes from may not connect.
    Forbidden = 403,
    /// 404: nothing is served at that path.
    NotFound = 404,
    /// 405: only GET can be upgraded.
    MethodNotAllowed = 405,
    /// 408: the request did not come in time.
    RequestTimeout = 408,
    /// 426: it is not an upgrade to WebSocket version 13.
    UpgradeRequired = 426,
    /// 431: the head is too large.
    HeadTooLarge = 431,
    /// 502: the backend refuses.
    BadGateway = 502,
    /// 503: a limit is reached, or the server shuts down.
    Unavailable = 503,
    /// 504: the backend does not answer.
    GatewayTimeout = 504,
}

impl Status {
    fn phrase(self) -> &'static str {
        match self {
            Self::BadRequest => "Bad Request",
            Self::Forbidden => "Forbidden",
            Self::NotFound => "Not Found",
            Self::MethodNotAllowed => "Method Not Allowed",
            Self::RequestTimeout => "Request Timeout",
            Self::UpgradeRequired => "Upgrade Required",
            Self::HeadTooLarge => "Request Header Fields Too Large",
            Self::BadGateway => "Bad Gateway",
            Self::Unavailable => "Service Unavailable",
            Self::GatewayTimeout => "Gateway Timeout",
        }
    }

    /// Additional header fields of the answer.
    fn fields(self) -> &'static str {
        match self {
            Self::UpgradeRequired => "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
            Self::MethodNotAllowed => "Allow: GET\r\n",
            _ => "",
        }
    }
}

/// The reason why a request is not upgraded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpgradeRefusal {
    /// The HTTP status of the response.
    pub status: Status,
    /// One line of explanation for humans.
    pub text: Cow<'static, str>,
}

impl UpgradeRefusal {
    /// A refusal with this status and text.
    pub fn new(status: Status, text: impl Into<Cow<'static, str>>) -> Self {
        Self { status, text: text.into() }
    }

    /// The whole answer; close the connection after it.
    pub fn response(&self) -> Vec<u8> {
        // 426 must name the upgrade in Connection (RFC 9110, 7.8).
        let connection = if self.status == Status::UpgradeRequired { "Upgrade, close" } else { "close" };
        format!(
            "HTTP/1.1 {} {}\r\nConnection: {connection}\r\n{}Content-Type: text/plain; charset=utf-8\r\n\
             X-Content-Type-Options: nosniff\r\nContent-Length: {}\r\n\r\n{}\n",
            self.status as u16,
            self.status.phrase(),
            self.status.fields(),
            self.text.len() + 1,
            self.text,
        )
        .into_bytes()
    }
}
