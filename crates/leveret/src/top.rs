//! `leveret top`: a server's rates, queues, connections and upstreams in a terminal, for a broker, a pool, and whatever
//! else has RabbitMQ's management API.

mod draw;
mod screen;
mod snapshot;
mod tables;

use std::future::poll_fn;
use std::io::{self, IsTerminal as _};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use parking_lot::{Condvar, Mutex};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::text::Span;
use tokio::runtime;
use tokio::signal::unix::{SignalKind, signal};

use crate::Failure;
use crate::config::ValueError;
use crate::ctl::{Api, Connection, print};
use screen::{Reaction, Screen};
use snapshot::{Query, Snapshot};

/// Which server, and how often it is asked.
#[derive(Debug, Args)]
pub(crate) struct TopArguments {
    /// Seconds between two refreshes
    #[arg(long, short = 'i', value_name = "SECONDS", default_value_t = 2.0, value_parser = seconds)]
    interval: f64,
    /// Print one snapshot, and exit; for scripts, and where there is no terminal
    #[arg(long)]
    once: bool,
    // Behind the others, which would be listed under its heading.
    #[command(flatten)]
    connection: Connection,
}

/// The time between two questions is at least this many times what the last answer took, so that watching a busy server
/// does not become its work.
const PAUSES: u32 = 4;
/// Maximum of that pause, unless the interval is longer.
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// Bounds of the interval, in seconds; the message of a wrong one names them.
const MIN_INTERVAL: f64 = 0.1;
const MAX_INTERVAL: f64 = 3600.0;
/// Columns for `--once`, wide enough for tables whose names are not long.
const ONCE_WIDTH: u16 = 160;
/// Lines for it: those of a page of rows, and what is above them.
const ONCE_HEIGHT: u16 = 260;

/// Inputs that wait for the main thread at most.
const INPUTS: usize = 16;

/// An event for the main thread.
enum Input {
    Key(KeyEvent),
    /// The terminal has another size.
    Resized,
    Sample(Box<Result<Snapshot, Failure>>),
    /// The process is asked to end.
    Stopped,
    /// The terminal cannot be read any more.
    End(io::Error),
}

/// The latest request to the thread that takes the samples.
struct Requests {
    latest: Mutex<Request>,
    changed: Condvar,
}

struct Request {
    query: Query,
    is_paused: bool,
    /// Whether the thread has not seen it.
    is_new: bool,
}

pub(crate) fn run(arguments: &TopArguments) -> Result<(), Failure> {
    if !arguments.once && !io::stdout().is_terminal() {
        return Err(Failure::Usage(
            "standard output is not a terminal; --once prints what there is to see".to_owned(),
        ));
    }
    let api = Api::new(&arguments.connection, arguments.once)?;
    let interval = Duration::from_secs_f64(arguments.interval);
    let mut state = Screen::new(api.endpoint().to_string(), interval);
    // A wrong address or password is reported before the screen is taken.
    state.handle_sample(Ok(Snapshot::take(&api, &state.query)?));
    if arguments.once {
        thread::sleep(interval);
        state.handle_sample(Ok(Snapshot::take(&api, &state.query)?));
        return print_once(&state);
    }
    watch(api, state)
}

/// Draws until the user has seen enough.
fn watch(api: Api, mut state: Screen) -> Result<(), Failure> {
    let (inputs, received) = sync_channel(INPUTS);
    let first = Request { query: state.query.clone(), is_paused: false, is_new: false };
    let requests = Arc::new(Requests { latest: Mutex::new(first), changed: Condvar::new() });
    let (interval, requested, samples) = (state.interval, Arc::clone(&requests), inputs.clone());
    thread::spawn(move || sample(&api, interval, &requested, &samples));
    let signals = inputs.clone();
    thread::spawn(move || wait_for_signals(&signals));
    let mut terminal = ratatui::try_init().map_err(Failure::run)?;
    // It ends with the process: reading a terminal cannot be interrupted.
    thread::spawn(move || read_terminal(&inputs));
    let result = loop {
        if let Err(error) = terminal.draw(|frame| draw::draw(frame, &state)) {
            break Err(Failure::run(error));
        }
        // The threads hold a sender for as long as they run.
        let Ok(input) = received.recv() else { break Ok(()) };
        let reaction = match input {
            Input::Key(key) => state.handle_key(key),
            Input::Resized => Reaction::Draw,
            Input::Sample(sample) => {
                state.handle_sample(*sample);
                Reaction::Draw
            }
            Input::Stopped => Reaction::Quit,
            Input::End(error) => break Err(Failure::run(error)),
        };
        match reaction {
            Reaction::Draw => {}
            Reaction::Ask => requests.replace(state.query.clone(), state.is_paused),
            Reaction::Quit => break Ok(()),
        }
    };
    ratatui::restore();
    result
}

/// Takes samples at intervals, and at once after a new request. Ends when nobody receives them.
fn sample(api: &Api, interval: Duration, requests: &Requests, samples: &SyncSender<Input>) {
    let mut query = requests.latest.lock().query.clone();
    loop {
        let began = Instant::now();
        let sample = Snapshot::take(api, &query);
        let is_answered = sample.is_ok();
        if samples.send(Input::Sample(Box::new(sample))).is_err() {
            return;
        }
        let pause = if is_answered { began.elapsed() * PAUSES } else { Duration::ZERO };
        query = requests.next(pause.min(MAX_PAUSE).max(interval));
    }
}

impl Requests {
    fn replace(&self, query: Query, is_paused: bool) {
        *self.latest.lock() = Request { query, is_paused, is_new: true };
        self.changed.notify_one();
    }

    /// Waits until there is a new request, or the pause is over and the user has not paused; returns the query.
    fn next(&self, pause: Duration) -> Query {
        let mut latest = self.latest.lock();
        if !latest.is_new {
            self.changed.wait_for(&mut latest, pause);
        }
        self.changed.wait_while(&mut latest, |request| request.is_paused && !request.is_new);
        latest.is_new = false;
        latest.query.clone()
    }
}

/// Waits for a signal that ends the process, so that the terminal is left as it was.
fn wait_for_signals(inputs: &SyncSender<Input>) {
    let Ok(runtime) = runtime::Builder::new_current_thread().enable_all().build() else { return };
    let wait = async {
        let mut signals = [SignalKind::terminate(), SignalKind::hangup(), SignalKind::interrupt()]
            .into_iter()
            .map(signal)
            .collect::<io::Result<Vec<_>>>()?;
        poll_fn(|task| match signals.iter_mut().any(|signal| signal.poll_recv(task).is_ready()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
        io::Result::Ok(())
    };
    if runtime.block_on(wait).is_ok() {
        let _ = inputs.send(Input::Stopped);
    }
}

fn read_terminal(inputs: &SyncSender<Input>) {
    loop {
        let input = match event::read() {
            Ok(Event::Key(key)) if key.kind != KeyEventKind::Release => Input::Key(key),
            Ok(Event::Resize(..)) => Input::Resized,
            Ok(_) => continue,
            Err(error) => Input::End(error),
        };
        let is_end = matches!(input, Input::End(_));
        if inputs.send(input).is_err() || is_end {
            return;
        }
    }
}

/// Prints the screen as lines.
fn print_once(state: &Screen) -> Result<(), Failure> {
    let mut terminal = Terminal::new(TestBackend::new(ONCE_WIDTH, ONCE_HEIGHT)).map_err(Failure::run)?;
    terminal.draw(|frame| draw::draw(frame, state)).map_err(Failure::run)?;
    let mut lines = lines(terminal.backend().buffer());
    // The keys are of no use, nor is the space above them.
    lines.pop();
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    print(&(lines.join("\n") + "\n"))
}

/// The lines of a screen, without the spaces at their ends.
fn lines(buffer: &Buffer) -> Vec<String> {
    let line = |cells: &[ratatui::buffer::Cell]| {
        let (mut line, mut at) = (String::new(), 0);
        while let Some(cell) = cells.get(at) {
            line.push_str(cell.symbol());
            // A wide character covers the cell behind it.
            at += Span::raw(cell.symbol()).width().max(1);
        }
        line.trim_end().to_owned()
    };
    buffer.content().chunks(usize::from(buffer.area().width)).map(line).collect()
}

fn seconds(text: &str) -> Result<f64, ValueError> {
    let bounds = MIN_INTERVAL..=MAX_INTERVAL;
    let seconds = text.parse().ok().filter(|seconds| bounds.contains(seconds));
    seconds.ok_or_else(|| "is not a number of seconds from 0.1 to 3600".into())
}
