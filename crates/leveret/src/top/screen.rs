//! The state of the screen, and how keys and snapshots change it, independent of terminal and server.

use std::collections::VecDeque;
use std::time::Duration;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::snapshot::{Query, Reading, Snapshot};
use super::tables::TableKind;
use crate::Failure;

/// Rates kept for the graph, one per snapshot.
const HISTORY: usize = 300;
/// Rows that Page Up and Page Down move by.
const PAGE_ROWS: usize = 10;
/// Maximum bytes of a filter, more than a name may have.
const FILTER_MAX: usize = 255;

/// Everything that is drawn.
#[derive(Debug)]
pub(super) struct Screen {
    /// The server's address.
    pub(super) endpoint: String,
    pub(super) interval: Duration,
    /// The query that the user has chosen. The snapshot may be of an earlier one.
    pub(super) query: Query,
    pub(super) is_paused: bool,
    pub(super) snapshot: Option<Snapshot>,
    pub(super) rates: Vec<RateHistory>,
    /// Why there is no newer snapshot.
    pub(super) error: Option<String>,
    /// Index of the first row that is shown.
    pub(super) scroll: usize,
    /// The filter while it is typed.
    pub(super) typed: Option<String>,
}

/// A rate and what it was.
#[derive(Debug)]
pub(super) struct RateHistory {
    pub(super) label: &'static str,
    /// Per second, the latest last.
    pub(super) values: VecDeque<f64>,
}

/// The effect of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reaction {
    /// Draw again.
    Draw,
    /// Draw again, and ask the server with the query as it is now.
    Ask,
    Quit,
}

impl Screen {
    pub(super) fn new(endpoint: String, interval: Duration) -> Self {
        Self {
            endpoint,
            interval,
            query: Query::default(),
            is_paused: false,
            snapshot: None,
            rates: Vec::new(),
            error: None,
            scroll: 0,
            typed: None,
        }
    }

    /// The tables that the server has; none until it has answered.
    pub(super) fn tables(&self) -> &'static [&'static TableKind] {
        self.snapshot.as_ref().map_or(&[], |snapshot| snapshot.kind.tables())
    }

    /// The table that is shown, if the server has answered.
    pub(super) fn table(&self) -> Option<&'static TableKind> {
        self.tables().get(self.query.table).copied()
    }

    /// Takes the result of asking the server. Earlier figures stay when it has failed.
    pub(super) fn handle_sample(&mut self, sample: Result<Snapshot, Failure>) {
        match sample {
            Err(failure) => self.error = Some(failure.into_line()),
            Ok(snapshot) => {
                self.error = None;
                self.remember(&snapshot);
                self.scroll = self.scroll.min(snapshot.rows.len().saturating_sub(1));
                self.snapshot = Some(snapshot);
            }
        }
    }

    fn remember(&mut self, snapshot: &Snapshot) {
        let before = self.snapshot.as_ref().filter(|before| before.kind == snapshot.kind);
        if before.is_none() {
            let empty = |(label, _): &(&'static str, Reading)| RateHistory { label, values: VecDeque::new() };
            self.rates = snapshot.rates.iter().map(empty).collect();
            // A table of a server of another kind may not exist.
            self.query.table = self.query.table.min(snapshot.kind.tables().len() - 1);
        }
        for (index, (history, (_, reading))) in self.rates.iter_mut().zip(&snapshot.rates).enumerate() {
            let value = match *reading {
                Reading::PerSecond(rate) => Some(rate),
                Reading::Counter(count) => before.and_then(|before| {
                    let Reading::Counter(earlier) = before.rates[index].1 else { return None };
                    let seconds = snapshot.at.duration_since(before.at).as_secs_f64();
                    // The counters of a restarted server begin at zero.
                    (seconds > 0.0 && count >= earlier).then(|| (count - earlier) as f64 / seconds)
                }),
            };
            history.values.extend(value);
            if history.values.len() > HISTORY {
                history.values.pop_front();
            }
        }
    }

    /// Takes a key.
    pub(super) fn handle_key(&mut self, key: KeyEvent) -> Reaction {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if key.code == KeyCode::Char('c') { Reaction::Quit } else { Reaction::Draw };
        }
        if let Some(typed) = self.typed.take() {
            return self.type_filter(typed, key.code);
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => Reaction::Quit,
            KeyCode::Tab | KeyCode::Right => self.show(self.query.table + 1),
            KeyCode::BackTab | KeyCode::Left => self.show(self.query.table + self.tables().len().max(1) - 1),
            KeyCode::Char(digit @ '1'..='9') if (digit as usize - '1' as usize) < self.tables().len() => {
                self.show(digit as usize - '1' as usize)
            }
            KeyCode::Char('s') => self.sort_by_next(),
            KeyCode::Char('r') => {
                self.query.reverse = !self.query.reverse;
                Reaction::Ask
            }
            KeyCode::Char('/') => {
                self.typed = Some(self.query.filter.clone());
                Reaction::Draw
            }
            KeyCode::Char('p' | ' ') => {
                self.is_paused = !self.is_paused;
                Reaction::Ask
            }
            KeyCode::Up => self.scroll_to(self.scroll.saturating_sub(1)),
            KeyCode::Down => self.scroll_to(self.scroll + 1),
            KeyCode::PageUp => self.scroll_to(self.scroll.saturating_sub(PAGE_ROWS)),
            KeyCode::PageDown => self.scroll_to(self.scroll + PAGE_ROWS),
            KeyCode::Home => self.scroll_to(0),
            KeyCode::End => self.scroll_to(usize::MAX),
            _ => Reaction::Draw,
        }
    }

    fn type_filter(&mut self, mut typed: String, key: KeyCode) -> Reaction {
        match key {
            KeyCode::Esc => return Reaction::Draw,
            KeyCode::Enter => {
                self.query.filter = typed;
                self.scroll = 0;
                return Reaction::Ask;
            }
            KeyCode::Backspace => drop(typed.pop()),
            KeyCode::Char(sign) if typed.len() < FILTER_MAX => typed.push(sign),
            _ => {}
        }
        self.typed = Some(typed);
        Reaction::Draw
    }

    /// Shows another table, from its beginning and in its own order.
    fn show(&mut self, table: usize) -> Reaction {
        let Some(table) = table.checked_rem(self.tables().len()) else { return Reaction::Draw };
        self.query = Query { table, filter: self.query.filter.clone(), ..Query::default() };
        self.scroll = 0;
        Reaction::Ask
    }

    fn sort_by_next(&mut self) -> Reaction {
        let Some(table) = self.table() else { return Reaction::Draw };
        self.query.sort = Some((self.query.sorted_by(table) + 1) % table.columns.len());
        self.query.reverse = false;
        Reaction::Ask
    }

    fn scroll_to(&mut self, row: usize) -> Reaction {
        let rows = self.snapshot.as_ref().map_or(0, |snapshot| snapshot.rows.len());
        self.scroll = row.min(rows.saturating_sub(1));
        Reaction::Draw
    }
}

impl RateHistory {
    /// The rate now; `None` until it is known.
    pub(super) fn latest(&self) -> Option<f64> {
        self.values.back().copied()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use serde_json::json;

    use super::super::tables::ServerKind;
    use super::*;

    fn snapshot(kind: ServerKind, at: Instant, count: u64) -> Snapshot {
        let reading = match kind {
            ServerKind::Pool => Reading::Counter(count),
            ServerKind::Broker | ServerKind::Other => Reading::PerSecond(count as f64),
        };
        Snapshot {
            at,
            kind,
            title: String::new(),
            facts: Vec::new(),
            alarms: Vec::new(),
            rates: vec![("Publish", reading)],
            query: Query::default(),
            rows: vec![json!({}); 3],
            total: 3,
        }
    }

    fn state(kind: ServerKind) -> Screen {
        let mut state = Screen::new(String::new(), Duration::from_secs(2));
        state.handle_sample(Ok(snapshot(kind, Instant::now(), 0)));
        state
    }

    fn press(state: &mut Screen, keys: &[KeyCode]) -> Reaction {
        keys.iter().map(|key| state.handle_key(KeyEvent::from(*key))).last().unwrap()
    }

    #[test]
    fn a_counter_becomes_a_rate_with_the_second_snapshot() {
        let (mut state, begin) = (Screen::new(String::new(), Duration::from_secs(2)), Instant::now());
        state.handle_sample(Ok(snapshot(ServerKind::Pool, begin, 100)));
        assert_eq!(state.rates[0].latest(), None);
        state.handle_sample(Ok(snapshot(ServerKind::Pool, begin + Duration::from_secs(2), 300)));
        assert_eq!(state.rates[0].latest(), Some(100.0));
        // The server was started again.
        state.handle_sample(Ok(snapshot(ServerKind::Pool, begin + Duration::from_secs(4), 10)));
        assert_eq!(state.rates[0].values.len(), 1);
    }

    #[test]
    fn a_server_that_is_away_leaves_the_last_figures_and_says_why() {
        let mut state = state(ServerKind::Broker);
        state.handle_sample(Err(Failure::Run("connection refused".to_owned())));
        assert!(state.snapshot.is_some() && state.error.is_some());
        state.handle_sample(Ok(snapshot(ServerKind::Broker, Instant::now(), 7)));
        assert_eq!((state.error.as_ref(), state.rates[0].latest()), (None, Some(7.0)));
        // Another server is there now, which has other figures.
        state.handle_sample(Ok(snapshot(ServerKind::Pool, Instant::now(), 7)));
        assert_eq!(state.rates[0].latest(), None);
    }

    #[test]
    fn keys_select_the_table_and_its_sort_order() {
        let mut state = state(ServerKind::Broker);
        assert_eq!(press(&mut state, &[KeyCode::Tab]), Reaction::Ask);
        assert_eq!(state.table().unwrap().name, "Connections");
        press(&mut state, &[KeyCode::Left, KeyCode::Left]);
        assert_eq!(state.table().unwrap().name, "Nodes");
        press(&mut state, &[KeyCode::Char('1'), KeyCode::Char('s')]);
        assert_eq!(state.query.sort, Some(5));
        assert_eq!(press(&mut state, &[KeyCode::Char('r')]), Reaction::Ask);
        assert!(!state.query.is_descending(state.table().unwrap()));
        // There is no fifth.
        assert_eq!(press(&mut state, &[KeyCode::Char('5')]), Reaction::Draw);
        assert_eq!(press(&mut state, &[KeyCode::Char('q')]), Reaction::Quit);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(state.handle_key(interrupt), Reaction::Quit);
    }

    #[test]
    fn before_the_server_has_answered_there_is_nothing_to_choose() {
        let mut state = Screen::new(String::new(), Duration::from_secs(2));
        for key in [KeyCode::Tab, KeyCode::BackTab, KeyCode::Char('1'), KeyCode::Char('s'), KeyCode::End] {
            assert_eq!(press(&mut state, &[key]), Reaction::Draw);
        }
    }

    #[test]
    fn a_filter_is_typed_and_taken_with_enter_or_left_with_escape() {
        let mut state = state(ServerKind::Broker);
        let typed = ['/', 'q', 'x'].map(KeyCode::Char);
        assert_eq!(press(&mut state, &typed), Reaction::Draw);
        assert_eq!(press(&mut state, &[KeyCode::Backspace, KeyCode::Enter]), Reaction::Ask);
        assert_eq!(state.query.filter, "q");
        assert_eq!(
            press(&mut state, &[KeyCode::Char('/'), KeyCode::Char('y'), KeyCode::Esc]),
            Reaction::Draw
        );
        assert_eq!((state.query.filter.as_str(), state.typed), ("q", None));
    }

    #[test]
    fn rows_are_scrolled_within_the_table() {
        let mut state = state(ServerKind::Broker);
        press(&mut state, &[KeyCode::End]);
        assert_eq!(state.scroll, 2);
        press(&mut state, &[KeyCode::PageDown, KeyCode::Up]);
        assert_eq!(state.scroll, 1);
        press(&mut state, &[KeyCode::Home]);
        assert_eq!(state.scroll, 0);
    }
}
