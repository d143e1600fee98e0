//! Rates that change: fixed, ramps, and sequences of both. Time is an argument.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::Error;

/// The rate of messages over time: `1000` per second, `0..5000` (a ramp over the whole round), or pieces such
/// as `1000:5,1000..5000:10,0:1`, which repeat if the last has a length.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Schedule {
    text: String,
    pieces: Vec<Piece>,
}

/// A period with a constant rate or a ramp.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Piece {
    /// Messages per second at the beginning and at the end.
    from: f64,
    to: f64,
    /// Length in seconds; `None`, allowed for the last piece only, means forever.
    seconds: Option<f64>,
}

impl Schedule {
    /// Gives a ramp without a length `round` seconds, after which its final rate stays.
    ///
    /// # Errors
    /// There is such a ramp and the round has no length.
    pub(crate) fn over(mut self, round: Option<f64>) -> Result<Self, Error> {
        if let Some(last) = self.pieces.last_mut()
            && last.from != last.to
            && last.seconds.is_none()
        {
            let needed = "--rate: a ramp needs a length, as in 0..100:10, in rounds of --messages";
            last.seconds = Some(round.ok_or_else(|| Error::Usage(needed.into()))?);
            let rate = last.to;
            self.pieces.push(Piece { from: rate, to: rate, seconds: None });
        }
        Ok(self)
    }

    /// Seconds from the start until the message with this number, from 0, is due.
    pub(crate) fn due(&self, number: u64) -> f64 {
        let (mut left, mut start) = (number as f64, 0.0);
        if self.pieces.last().is_some_and(|last| last.seconds.is_some()) {
            let (messages, seconds) = self
                .pieces
                .iter()
                .filter_map(Piece::whole)
                .fold((0.0, 0.0), |(messages, seconds), (m, s)| (messages + m, seconds + s));
            let times = (left / messages).floor();
            (left, start) = (left - times * messages, times * seconds);
        }
        for piece in &self.pieces {
            match piece.whole() {
                Some((messages, seconds)) if left >= messages => {
                    left -= messages;
                    start += seconds;
                }
                _ => return start + piece.until(left),
            }
        }
        // Rounding made it equal to the number of messages in all pieces.
        start
    }

    /// The rate, if it is constant.
    pub(crate) fn fixed(&self) -> Option<f64> {
        match self.pieces[..] {
            [Piece { from, to, .. }] if from == to => Some(from),
            _ => None,
        }
    }
}

impl Piece {
    /// Messages and seconds of a piece that has a length.
    fn whole(&self) -> Option<(f64, f64)> {
        self.seconds.map(|seconds| ((self.from + self.to) / 2.0 * seconds, seconds))
    }

    /// Seconds until `messages` messages were due.
    fn until(&self, messages: f64) -> f64 {
        if messages <= 0.0 {
            return 0.0;
        }
        // The messages are from·t + slope·t²/2; solved in a form that is accurate for small slopes.
        let slope = self.seconds.map_or(0.0, |seconds| (self.to - self.from) / seconds);
        let root = (self.from * self.from + 2.0 * slope * messages).max(0.0).sqrt();
        2.0 * messages / (self.from + root)
    }
}

impl FromStr for Schedule {
    type Err = ScheduleError;

    fn from_str(text: &str) -> Result<Self, ScheduleError> {
        let number = |part: &str| part.trim().parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0);
        let piece = |part: &str| {
            let (rates, seconds) = match part.split_once(':') {
                Some((rates, seconds)) => (rates, Some(number(seconds).filter(|seconds| *seconds > 0.0)?)),
                None => (part, None),
            };
            let (from, to) = rates.split_once("..").unwrap_or((rates, rates));
            Some(Piece { from: number(from)?, to: number(to)?, seconds })
        };
        let pieces: Option<Vec<Piece>> = text.split(',').map(piece).collect();
        let unknown = || ScheduleError::Form(text.to_owned());
        let pieces = pieces.ok_or_else(unknown)?;
        let (last, before) = pieces.split_last().ok_or_else(unknown)?;
        if before.iter().any(|piece| piece.seconds.is_none()) {
            return Err(ScheduleError::EndlessPiece);
        }
        let any = pieces.iter().any(|piece| piece.from > 0.0 || piece.to > 0.0);
        if !any || last.seconds.is_none() && last.to == 0.0 {
            return Err(ScheduleError::NoRate);
        }
        Ok(Self { text: text.to_owned(), pieces })
    }
}

/// A text that is no schedule.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub(crate) enum ScheduleError {
    /// It is not written as one.
    #[error("invalid rate {0:?}; expected RATE, RATE..RATE or RATE[..RATE]:SECONDS,...")]
    Form(String),
    /// A piece before the last has no length.
    #[error("only the last piece may be without a length")]
    EndlessPiece,
    /// The rate is 0 all the time, or forever at the end.
    #[error("the last rate must be above 0")]
    NoRate,
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for Schedule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A schedule stored in a report is restored from its text, without the changes of `Schedule::over`.
impl<'de> Deserialize<'de> for Schedule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(text: &str) -> Schedule {
        text.parse().unwrap()
    }

    fn near(actual: f64, expected: f64) -> bool {
        (actual - expected).abs() < 1e-6
    }

    #[test]
    fn a_ramp_speeds_up_evenly_and_its_last_rate_stays() {
        let ramp = schedule("0..100").over(Some(10.0)).unwrap();
        // 500 messages in ten seconds; a quarter of them in the first half.
        assert!(near(ramp.due(0), 0.0) && near(ramp.due(125), 5.0) && near(ramp.due(500), 10.0));
        assert!(near(ramp.due(600), 11.0), "{}", ramp.due(600));
        let down = schedule("100..0:10,50").over(None).unwrap();
        assert!(near(down.due(375), 5.0) && near(down.due(550), 11.0));
        assert!(schedule("1..2").over(None).is_err());
    }

    #[test]
    fn pieces_follow_each_other_and_are_repeated() {
        let steps = schedule("10:1,0:2,20:1");
        for (number, seconds) in [(0, 0.0), (5, 0.5), (10, 3.0), (29, 3.95), (30, 4.0), (40, 7.0), (65, 8.5)]
        {
            assert!(near(steps.due(number), seconds), "{number}: {}", steps.due(number));
        }
        assert_eq!(steps.fixed(), None);
        assert_eq!(schedule("7.5").fixed(), Some(7.5));
    }

    #[test]
    fn messages_are_never_due_before_those_in_front_of_them() {
        for text in ["3", "0..1000:3", "1000..0:3,7", "10:1,0:2,20..5:1"] {
            let schedule = schedule(text);
            let times: Vec<f64> = (0..20_000).map(|number| schedule.due(number)).collect();
            assert!(times.is_sorted() && times.iter().all(|time| time.is_finite()), "{text}");
        }
    }

    #[test]
    fn invalid_schedules_are_refused() {
        for text in ["", "x", "0", "-1", "1..", "1:0", "1:x", "5,6", "0:1", "5:1,0", "inf"] {
            assert!(text.parse::<Schedule>().is_err(), "{text}");
        }
    }
}
