//! The health check of certificates.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::call::{ApiAnswer, Call, Reply};
use super::error::ApiError;
use super::process::{CertificateFile, TlsListener};

/// `GET /api/health/checks/certificate-expiration/{within}/{unit}`: succeeds if no listener has a certificate,
/// including its chain and the CA certificates for client certificates, that expires within that time.
pub(super) fn expiration(call: &Call) -> ApiAnswer {
    let within = seconds(call.at("within"), call.at("unit"))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).as_ref().map_or(0, Duration::as_secs);
    let end = i64::try_from(now).unwrap_or(i64::MAX).saturating_add(within);
    let expired = expired(call.api.process.node_name(), &call.api.process.tls_listeners(), end);
    if expired.is_empty() {
        return Ok(Reply::json(json!({"status": "ok"})));
    }
    let reason = "Certificates expiring";
    Err(ApiError::unhealthy(json!({"status": "failed", "reason": reason, "expired": expired})))
}

/// Converts the time to seconds as RabbitMQ does: a month is a twelfth of a year of 365 days.
fn seconds(within: &str, unit: &str) -> Result<i64, ApiError> {
    const DAY: i64 = 24 * 60 * 60;
    let within: i64 = within.parse().map_err(|_| ApiError::bad_request("Invalid expiration value."))?;
    let unit = match unit.to_ascii_lowercase().as_str() {
        "days" => DAY,
        "weeks" => 7 * DAY,
        "months" => 365 * DAY / 12,
        "years" => 365 * DAY,
        _ => {
            let reason = "Time unit not recognised. Supported units: days, weeks, months, years.";
            return Err(ApiError::bad_request(reason));
        }
    };
    Ok(within.saturating_mul(unit))
}

/// One object for each certificate of a listener that expires before `end`, or whose listener's CA certificates do.
/// The object is that of RabbitMQ, where a listener has one certificate.
fn expired(node: &str, listeners: &[TlsListener], end: i64) -> Vec<Value> {
    let mut expired = Vec::new();
    for TlsListener { listener, certificates, ca } in listeners {
        let of_ca = ca.as_ref().map(|file| ends(file, end)).unwrap_or_default();
        for certificate in certificates {
            let of_certificate = ends(certificate, end);
            if of_certificate.is_empty() && of_ca.is_empty() {
                continue;
            }
            expired.push(json!({
                "node": node, "protocol": listener.protocol, "interface": listener.host, "port": listener.port,
                "certfile": certificate.path, "certfile_expires_on": of_certificate,
                "cacertfile": ca.as_ref().map_or("", |file| &file.path),
                "cacertfile_expires_on": of_ca,
            }));
        }
    }
    expired
}

/// The expiry times, as text, of the file's certificates that expire before `end`.
fn ends(file: &CertificateFile, end: i64) -> Vec<&str> {
    file.ends.iter().filter(|(at, _)| *at < end).map(|(_, text)| text.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::process::ListenerInfo;
    use super::*;

    #[test]
    fn times_are_read_as_rabbitmq_reads_them() {
        for (within, unit, seconds_of_it) in [
            ("1", "days", Ok(86_400)),
            ("2", "WEEKS", Ok(1_209_600)),
            ("1", "months", Ok(2_628_000)),
            ("1", "years", Ok(31_536_000)),
            ("-1", "days", Ok(-86_400)),
            ("9223372036854775807", "years", Ok(i64::MAX)),
            ("1", "hours", Err("Time unit not recognised. Supported units: days, weeks, months, years.")),
            ("soon", "days", Err("Invalid expiration value.")),
            ("1.5", "days", Err("Invalid expiration value.")),
        ] {
            assert_eq!(
                seconds(within, unit),
                seconds_of_it.map_err(ApiError::bad_request),
                "{within} {unit}"
            );
        }
    }

    #[test]
    fn expiring_certificates_are_reported_by_listener_and_file() {
        let file = |path: &str, ends: &[i64]| CertificateFile {
            path: path.to_owned(),
            ends: ends.iter().map(|at| (*at, format!("at {at}"))).collect(),
        };
        let listener = |port, ca| TlsListener {
            listener: ListenerInfo { protocol: "amqp/ssl", host: "::".to_owned(), port },
            certificates: vec![file("a", &[10, 20]), file("b", &[30])],
            ca,
        };
        let reported = |listener: &TlsListener, end| {
            let reported = expired("here", std::slice::from_ref(listener), end);
            let reported = reported.iter().map(|each| {
                json!([each["certfile"], each["certfile_expires_on"], each["cacertfile_expires_on"]])
            });
            reported.collect::<Vec<_>>()
        };
        let plain = listener(1, None);
        assert_eq!(reported(&plain, 10), Vec::<Value>::new(), "not before, but then");
        assert_eq!(reported(&plain, 25), [json!(["a", ["at 10", "at 20"], []])], "the chain as well");
        let believing = listener(2, Some(file("ca", &[5])));
        assert_eq!(reported(&believing, 6), [json!(["a", [], ["at 5"]]), json!(["b", [], ["at 5"]])]);
        let [first, _] = &expired("here", &[believing], 6)[..] else { panic!() };
        let place =
            json!([first["node"], first["protocol"], first["interface"], first["port"], first["cacertfile"]]);
        assert_eq!(place, json!(["here", "amqp/ssl", "::", 2, "ca"]));
    }
}
