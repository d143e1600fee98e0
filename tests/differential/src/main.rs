//! Differential tests: random programs of AMQP operations run on RabbitMQ and on Leveret, and everything that the
//! two answer, deliver and refuse is compared.
//!
//! [`generate`] writes a program from a seed; [`run`] runs it on one broker, waits after each step until the broker is at
//! rest, and writes down what was seen; [`compare`] looks for differences, but for those that are meant; [`check`] makes
//! sure that RabbitMQ agrees with itself; [`shrink`] makes a failing program small. It is printed as lines of JSON that
//! `--replay` takes.

mod check;
mod compare;
mod event;
mod generate;
mod link;
mod names;
mod program;
mod quorum;
mod rng;
mod run;
mod session;
mod shrink;
mod users;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Instant;

use check::{Outcome, Pair};
use clap::Parser;
use compare::Difference;
use program::Program;
use run::TOO_SLOW;

/// Runs random programs on RabbitMQ and on Leveret and compares all that can be seen.
#[derive(Debug, Parser)]
struct Arguments {
    /// Host and port of RabbitMQ, the one to be believed.
    #[arg(long)]
    rabbitmq: String,
    /// Host and port of the broker under test.
    #[arg(long)]
    leveret: String,
    /// How many programs.
    #[arg(long, default_value_t = 1000)]
    programs: u64,
    /// Names the programs: the same seed, the same programs.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Programs that run at the same time.
    #[arg(long, default_value_t = 3)]
    threads: usize,
    /// How many programs, of these, in which time passes; they take some seconds each, most of it asleep.
    #[arg(long, default_value_t = 100)]
    timed: u64,
    /// Of these, programs that run at the same time.
    #[arg(long, default_value_t = 8)]
    timed_threads: usize,
    /// Stop after so many failures.
    #[arg(long, default_value_t = 3)]
    failures: usize,
    /// Most trials that shrinking one failing program may take.
    #[arg(long, default_value_t = 600)]
    shrink: usize,
    /// Print the programs on which RabbitMQ disagrees with itself, too.
    #[arg(long)]
    undetermined: bool,
    /// Run the program in this file instead, and print all that both brokers do.
    #[arg(long)]
    replay: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match &arguments.replay {
        Some(file) => replay(&arguments, file),
        None => explore(&arguments),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            print(&format!("differential: {error}"));
            ExitCode::from(2)
        }
    }
}

/// Which programs a thread runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Steady,
    /// With time passing.
    Timed,
}

/// How far all threads together have come.
#[derive(Debug, Default)]
struct Tally {
    started: u64,
    timed_started: u64,
    steps: u64,
    undetermined: u64,
    /// Programs for whose times to live the machine was too slow.
    too_slow: u64,
    /// How often each difference was met that is meant, by its reason.
    meant: BTreeMap<&'static str, u64>,
    failures: usize,
    /// Why a thread had to give up.
    error: Option<io::Error>,
}

fn explore(arguments: &Arguments) -> io::Result<bool> {
    let begin = Instant::now();
    let tally = Mutex::new(Tally::default());
    std::thread::scope(|scope| {
        for n in 0..arguments.threads.max(1) + arguments.timed_threads {
            let kind = if n < arguments.threads.max(1) { Kind::Steady } else { Kind::Timed };
            let tally = &tally;
            scope.spawn(move || {
                if let Err(error) = work(arguments, kind, tally) {
                    lock(tally).error = Some(error);
                }
            });
        }
    });
    let tally = tally.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(error) = tally.error {
        return Err(error);
    }
    print(&format!(
        "{} programs and {} in which time passes, {} steps, {} differences, {} on which RabbitMQ disagrees with itself, {} that the machine was too slow for, seed {}, {:.0} s",
        tally.started,
        tally.timed_started,
        tally.steps,
        tally.failures,
        tally.undetermined,
        tally.too_slow,
        arguments.seed,
        begin.elapsed().as_secs_f64(),
    ));
    for (reason, times) in &tally.meant {
        print(&format!("{times} times a difference that is meant: {reason}"));
    }
    // So many that the test would say little mean that the programs, or the waiting for rest, must be mended.
    let all = tally.started + tally.timed_started;
    let determined = tally.undetermined * MAX_UNDETERMINED <= all.max(MAX_UNDETERMINED);
    if !determined {
        print("too many programs are undetermined");
    }
    Ok(tally.failures == 0 && determined)
}

/// At most one program in so many may be one on which RabbitMQ disagrees with itself.
const MAX_UNDETERMINED: u64 = 50;
/// Programs in which time passes get so many times fewer trials, for each takes seconds.
const TIMED_TRIALS: usize = 10;

fn work(arguments: &Arguments, kind: Kind, tally: &Mutex<Tally>) -> io::Result<()> {
    let mut pair = Pair::new(&arguments.rabbitmq, &arguments.leveret)?;
    loop {
        let number = {
            let mut tally = lock(tally);
            let failed = tally.failures >= arguments.failures;
            let (started, most) = match kind {
                Kind::Steady => (&mut tally.started, arguments.programs),
                Kind::Timed => (&mut tally.timed_started, arguments.timed),
            };
            if *started == most || failed {
                return Ok(());
            }
            *started += 1;
            *started - 1
        };
        let seed = rng::Rng::new(arguments.seed.wrapping_mul(1 << 32).wrapping_add(number)).next();
        let (program, trials) = match kind {
            Kind::Steady => (generate::generate(seed), arguments.shrink),
            Kind::Timed => (generate::generate_timed(seed), arguments.shrink / TIMED_TRIALS),
        };
        let mut outcome = pair.check(&program);
        let mut small = Program::new();
        if matches!(outcome, Outcome::Different(_)) {
            small = shrink::shrink(&program, trials, |candidate| pair.differs(candidate));
            outcome = pair.check(&small);
        }
        let mut tally = lock(tally);
        tally.steps += program.len() as u64;
        match outcome {
            Outcome::Same if small.is_empty() => {}
            // It differed before, and does not now: that is no proof of anything.
            Outcome::Same => tally.undetermined += 1,
            Outcome::Meant(reason) => *tally.meant.entry(reason).or_default() += 1,
            Outcome::Undetermined(own) => {
                tally.undetermined += 1;
                if arguments.undetermined {
                    report("RabbitMQ disagrees with itself on", number, &program, &own);
                }
            }
            Outcome::TooSlow => tally.too_slow += 1,
            Outcome::Different(difference) => {
                tally.failures += 1;
                report("the brokers differ on", number, &small, &difference);
            }
        }
    }
}

fn report(what: &str, number: u64, program: &Program, difference: &Difference) {
    print(&format!(
        "\n{what} program {number}:\n{}at step {}:\n{}",
        program::to_text(program),
        difference.step + 1,
        difference.to_text(),
    ));
}

fn replay(arguments: &Arguments, file: &PathBuf) -> io::Result<bool> {
    let program = program::from_text(&std::fs::read_to_string(file)?).map_err(io::Error::other)?;
    let mut pair = Pair::new(&arguments.rabbitmq, &arguments.leveret)?;
    let outcome = pair.check(&program);
    match &outcome {
        Outcome::Same => print("the same"),
        Outcome::Meant(reason) => print(&format!("different, and meant to be: {reason}")),
        Outcome::Undetermined(_) => print("RabbitMQ disagrees with itself"),
        Outcome::TooSlow => print(TOO_SLOW),
        Outcome::Different(difference) => {
            print(&format!("after step {}:\n{}", difference.step + 1, difference.to_text()));
        }
    }
    Ok(matches!(outcome, Outcome::Same | Outcome::Meant(_)))
}

/// Writes a line to the standard output; whoever closed it does not want it.
fn print(text: &str) {
    drop(writeln!(io::stdout().lock(), "{text}"));
}

fn lock(tally: &Mutex<Tally>) -> std::sync::MutexGuard<'_, Tally> {
    tally.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
