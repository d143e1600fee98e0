//! Runs a program on both brokers and judges the outcome.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::compare::{Difference, compare, first_difference};
use crate::link::Link;
use crate::program::Program;
use crate::run::{Pace, Story, TOO_SLOW, run};

/// Two brokers, as one thread sees them.
#[derive(Debug)]
pub(crate) struct Pair {
    rabbitmq: Broker,
    leveret: Broker,
}

/// What came of a program.
#[derive(Debug)]
pub(crate) enum Outcome {
    Same,
    /// Different, as it is meant to be, and for which reason.
    Meant(&'static str),
    /// RabbitMQ itself did not do the same each time; where it differs from itself.
    Undetermined(Difference),
    /// The machine was too slow for the times to live in the program.
    TooSlow,
    Different(Difference),
}

impl Pair {
    /// # Errors
    /// When a broker cannot be reached.
    pub(crate) fn new(rabbitmq: &str, leveret: &str) -> io::Result<Self> {
        Ok(Self { rabbitmq: Broker::new(rabbitmq)?, leveret: Broker::new(leveret)? })
    }

    /// Runs the program fast; if the brokers differ, again with care; if they still do, on RabbitMQ a few times more, to
    /// see whether it agrees with itself.
    pub(crate) fn check(&mut self, program: &Program) -> Outcome {
        let (mut expected, mut got) = self.stories(program, Pace::Fast);
        let same = compare(program, &expected, &got).is_none();
        if !same || is_too_slow(&expected) {
            (expected, got) = self.stories(program, Pace::Careful);
        }
        if is_too_slow(&expected) || is_too_slow(&got) {
            return Outcome::TooSlow;
        }
        let difference = match compare(program, &expected, &got) {
            None => return Outcome::Same,
            Some((_, Some(reason))) => return Outcome::Meant(reason),
            Some((difference, None)) => difference,
        };
        for _ in 0..SECOND_OPINIONS {
            let again = self.rabbitmq.story(program, Pace::Careful);
            match first_difference(&expected, &again) {
                _ if is_too_slow(&again) => return Outcome::TooSlow,
                Some(own) if own.step <= difference.step => return Outcome::Undetermined(own),
                _ => {}
            }
        }
        Outcome::Different(difference)
    }

    /// Runs the program on RabbitMQ and on Leveret.
    fn stories(&mut self, program: &Program, pace: Pace) -> (Story, Story) {
        (self.rabbitmq.story(program, pace), self.leveret.story(program, pace))
    }

    /// Whether the brokers differ though they are not meant to.
    pub(crate) fn differs(&mut self, program: &Program) -> bool {
        matches!(self.check(program), Outcome::Different(_))
    }
}

fn is_too_slow(story: &Story) -> bool {
    story.iter().flatten().any(|line| line == TOO_SLOW)
}

/// How often a program in which time passes is tried on a machine that is too slow for it.
const SLOW_TRIES: usize = 4;
/// How often RabbitMQ must repeat itself before a difference is believed.
const SECOND_OPINIONS: usize = 3;

#[derive(Debug)]
struct Broker {
    address: String,
    control: Link,
}

impl Broker {
    fn new(address: &str) -> io::Result<Self> {
        Ok(Self { address: address.to_owned(), control: Link::open(address, CONTROLLER)? })
    }

    /// What the program does here. What went wrong with the run itself is part of it.
    fn story(&mut self, program: &Program, pace: Pace) -> Story {
        for _ in 0..SLOW_TRIES {
            match self.attempt(program, pace) {
                Ok(story) => return story,
                Err(error) => {
                    if let Ok(control) = Link::open(&self.address, CONTROLLER) {
                        self.control = control;
                    }
                    if error.kind() != io::ErrorKind::TimedOut {
                        return vec![vec![format!("the run failed: {error}")]];
                    }
                }
            }
        }
        vec![vec![TOO_SLOW.to_owned()]]
    }

    fn attempt(&mut self, program: &Program, pace: Pace) -> io::Result<Story> {
        // RabbitMQ 4 ends the connection of whoever asks for a reply queue that is not there.
        if self.control.closed {
            self.control = Link::open(&self.address, CONTROLLER)?;
        }
        let prefix = format!("d{}x{}_", std::process::id(), RUNS.fetch_add(1, Ordering::Relaxed));
        run(program, &self.address, &mut self.control, prefix, pace)
    }
}

/// Who counts and cleans up.
const CONTROLLER: &str = "guest";
/// Runs so far, for names that no other run uses.
static RUNS: AtomicU64 = AtomicU64::new(0);
