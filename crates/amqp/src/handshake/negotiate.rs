//! The limits negotiated by `connection.tune` and `connection.tune-ok`.

use crate::error::{Fault, ReplyCode};
use crate::frame::MIN_FRAME_MAX;
use crate::method::connection;

/// The limits of an open connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Negotiated {
    /// How many channels may be open at once; 0 means no limit.
    pub channel_max: u16,
    /// Bytes of the largest frame, with its header and end byte; 0 means no limit.
    pub frame_max: u32,
    /// Heartbeat interval in seconds; 0 means that none are sent or expected.
    pub heartbeat_secs: u16,
}

impl Negotiated {
    /// Validates a client's `tune-ok` as RabbitMQ does: the client may lower channel_max and frame_max, not raise them,
    /// and "no limit" (0) is higher than any limit; the client chooses the heartbeat.
    ///
    /// # Errors
    /// 530 NOT_ALLOWED.
    pub(super) fn accept(offered: Self, answer: &connection::TuneOk) -> Result<Self, Fault> {
        check("frame_max", MIN_FRAME_MAX, offered.frame_max, answer.frame_max, "")?;
        let no_limit = if answer.channel_max == 0 { " (no limit)" } else { "" };
        check("channel_max", 1, offered.channel_max.into(), answer.channel_max.into(), no_limit)?;
        Ok(Self {
            channel_max: answer.channel_max,
            frame_max: answer.frame_max,
            heartbeat_secs: answer.heartbeat,
        })
    }

    /// A client's answer to a server's `tune`: the lower value of each pair, where 0 means no preference.
    ///
    /// # Errors
    /// 530 NOT_ALLOWED if the server's frame_max is below the minimum of the specification.
    pub(super) fn answer(wanted: Self, tune: &connection::Tune) -> Result<Self, Fault> {
        if tune.frame_max != 0 && tune.frame_max < MIN_FRAME_MAX {
            return Err(refusal("frame_max", tune.frame_max, "", "lower", "minimum", MIN_FRAME_MAX));
        }
        let wanted_frame_max = if wanted.frame_max == 0 { 0 } else { wanted.frame_max.max(MIN_FRAME_MAX) };
        Ok(Self {
            channel_max: lower(wanted.channel_max, tune.channel_max),
            frame_max: lower(wanted_frame_max, tune.frame_max),
            heartbeat_secs: lower(wanted.heartbeat_secs, tune.heartbeat),
        })
    }
}

fn check(field: &str, minimum: u32, offered: u32, answer: u32, detail: &str) -> Result<(), Fault> {
    if answer != 0 && answer < minimum {
        return Err(refusal(field, answer, detail, "lower", "minimum", minimum));
    }
    if offered != 0 && (answer == 0 || answer > offered) {
        return Err(refusal(field, answer, detail, "higher", "maximum", offered));
    }
    Ok(())
}

fn refusal(field: &str, answer: u32, detail: &str, relation: &str, bound: &str, allowed: u32) -> Fault {
    Fault::new(
        ReplyCode::NotAllowed,
        format!(
            "negotiated {field} = {answer}{detail} is {relation} than the {bound} allowed value ({allowed})"
        ),
    )
    // RabbitMQ attributes these to connection.tune, its own method.
    .caused_by((10, 30))
}

fn lower<N: Ord + Default + Copy>(a: N, b: N) -> N {
    let none = N::default();
    if a == none || b == none { a.max(b) } else { a.min(b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFERED: Negotiated = Negotiated { channel_max: 2047, frame_max: 131_072, heartbeat_secs: 60 };

    fn accept(channel_max: u16, frame_max: u32, heartbeat: u16) -> Result<Negotiated, String> {
        Negotiated::accept(OFFERED, &connection::TuneOk { channel_max, frame_max, heartbeat })
            .map_err(|fault| fault.to_string())
    }

    #[test]
    fn a_client_may_lower_the_limits_and_choose_any_heartbeat() {
        for (channel_max, frame_max, heartbeat_secs) in
            [(2047, 131_072, 60), (1, MIN_FRAME_MAX, 0), (10, 8192, 600)]
        {
            let expected = Negotiated { channel_max, frame_max, heartbeat_secs };
            assert_eq!(accept(channel_max, frame_max, heartbeat_secs), Ok(expected));
        }
    }

    #[test]
    fn refusals_have_rabbitmqs_texts() {
        let text = |result: Result<_, String>| result.unwrap_err();
        assert_eq!(
            text(accept(2047, 100, 60)),
            "530 NOT_ALLOWED - negotiated frame_max = 100 is lower than the minimum allowed value (4096)"
        );
        assert_eq!(
            text(accept(2047, 131_073, 60)),
            "530 NOT_ALLOWED - negotiated frame_max = 131073 is higher than the maximum allowed value (131072)"
        );
        assert_eq!(
            text(accept(2047, 0, 60)),
            "530 NOT_ALLOWED - negotiated frame_max = 0 is higher than the maximum allowed value (131072)"
        );
        assert_eq!(
            text(accept(2048, 4096, 60)),
            "530 NOT_ALLOWED - negotiated channel_max = 2048 is higher than the maximum allowed value (2047)"
        );
        assert_eq!(
            text(accept(0, 4096, 60)),
            "530 NOT_ALLOWED - negotiated channel_max = 0 (no limit) is higher than the maximum allowed value (2047)"
        );
    }

    #[test]
    fn a_server_without_limits_takes_any() {
        let unlimited = Negotiated { channel_max: 0, frame_max: 0, heartbeat_secs: 0 };
        let answer = connection::TuneOk { channel_max: 0, frame_max: 0, heartbeat: 5 };
        let settled = Negotiated { heartbeat_secs: 5, ..unlimited };
        assert_eq!(Negotiated::accept(unlimited, &answer), Ok(settled));
    }

    #[test]
    fn a_clients_answer_is_the_lower_of_each_pair() {
        let tune = connection::Tune { channel_max: 0, frame_max: 131_072, heartbeat: 60 };
        let wanted = Negotiated { channel_max: 100, frame_max: 100, heartbeat_secs: 0 };
        assert_eq!(
            Negotiated::answer(wanted, &tune),
            Ok(Negotiated { channel_max: 100, frame_max: MIN_FRAME_MAX, heartbeat_secs: 60 })
        );
        let tune = connection::Tune { frame_max: 100, ..tune };
        assert_eq!(Negotiated::answer(wanted, &tune).unwrap_err().code, ReplyCode::NotAllowed);
    }
}
