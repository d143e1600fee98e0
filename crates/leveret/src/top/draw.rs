//! Draws `leveret top`.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Sparkline, Table, Tabs};

use super::screen::{RateHistory, Screen};
use super::snapshot::Snapshot;
use super::tables::{TableKind, rate, whole};

/// Columns of a rate: its label, and the figure.
const LABEL_WIDTH: u16 = 16;
const FIGURE_WIDTH: u16 = 12;
/// Spaces between two facts in a line.
const GAP: usize = 3;
/// A column of texts has at most as many cells, so that a long name leaves room for the others.
const TEXT_MAX: usize = 48;

const KEYS: &str =
    "q quit   Tab next table   s sort by next column   r reverse   / filter   p pause   arrows scroll";

/// Draws all of it.
pub(super) fn draw(frame: &mut Frame<'_>, state: &Screen) {
    let width = usize::from(frame.area().width);
    let facts = state.snapshot.as_ref().map_or_else(Vec::new, |snapshot| facts(snapshot, width));
    let alarms = warnings(state);
    let [title, alarm_lines, rates, fact_lines, tabs, rows, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(alarms.len() as u16),
        Constraint::Length(state.rates.len() as u16),
        Constraint::Length(facts.len() as u16),
        Constraint::Length(2),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    draw_title(frame, title, state);
    frame.render_widget(Paragraph::new(alarms), alarm_lines);
    draw_rates(frame, rates, &state.rates);
    frame.render_widget(Paragraph::new(facts), fact_lines);
    if let (Some(table), Some(snapshot)) = (state.table(), &state.snapshot) {
        draw_tabs(frame, tabs, state, snapshot);
        // The rows of another table are on their way until the server has answered.
        if snapshot.query.table == state.query.table {
            draw_rows(frame, rows, state, table, snapshot);
        }
    }
    let bottom = match &state.typed {
        Some(typed) => format!("rows with: {typed}_   Enter apply   Esc cancel"),
        None => KEYS.to_owned(),
    };
    frame.render_widget(Paragraph::new(bottom).style(Style::new().add_modifier(Modifier::DIM)), keys);
}

fn draw_title(frame: &mut Frame<'_>, area: Rect, state: &Screen) {
    let server = state.snapshot.as_ref().map_or("waiting for an answer", |snapshot| &snapshot.title);
    let every = match state.is_paused {
        true => "paused".to_owned(),
        false => format!("every {} s", state.interval.as_secs_f64()),
    };
    let [left, right] =
        Layout::horizontal([Constraint::Min(0), Constraint::Length(every.len() as u16)]).areas(area);
    let title = format!("{}  {server}", state.endpoint);
    frame.render_widget(Paragraph::new(title).style(Style::new().add_modifier(Modifier::BOLD)), left);
    frame.render_widget(Paragraph::new(every).alignment(Alignment::Right), right);
}

/// The alarms and the error, a line each.
fn warnings(state: &Screen) -> Vec<Line<'static>> {
    let alarms = state.snapshot.iter().flat_map(|snapshot| snapshot.alarms.iter().cloned());
    let warning = |text| Line::styled(text, Style::new().fg(Color::Red).add_modifier(Modifier::BOLD));
    alarms.chain(state.error.clone()).map(warning).collect()
}

fn draw_rates(frame: &mut Frame<'_>, area: Rect, rates: &[RateHistory]) {
    let lines = Layout::vertical(vec![Constraint::Length(1); rates.len()]).split(area);
    for (history, line) in rates.iter().zip(lines.iter()) {
        let [label, figure, past] = Layout::horizontal([
            Constraint::Length(LABEL_WIDTH),
            Constraint::Length(FIGURE_WIDTH),
            Constraint::Min(0),
        ])
        .spacing(1)
        .areas(*line);
        frame.render_widget(Paragraph::new(history.label), label);
        let value = history.latest().map_or_else(|| "-".to_owned(), |value| rate(value) + "/s");
        frame.render_widget(Paragraph::new(value).alignment(Alignment::Right), figure);
        let recent = history.values.len().saturating_sub(usize::from(past.width));
        let values: Vec<u64> = history.values.iter().skip(recent).map(|value| whole(*value)).collect();
        frame.render_widget(Sparkline::default().data(values).style(Style::new().fg(Color::Cyan)), past);
    }
}

/// The facts, as many in a line as fit.
fn facts(snapshot: &Snapshot, width: usize) -> Vec<Line<'static>> {
    let mut lines: Vec<Vec<Span<'static>>> = Vec::new();
    let mut used = usize::MAX;
    for (label, value) in &snapshot.facts {
        let length = label.len() + 1 + value.len();
        match lines.last_mut() {
            Some(line) if used + GAP + length <= width => {
                line.push(Span::raw(" ".repeat(GAP)));
                used += GAP;
            }
            _ => {
                lines.push(Vec::new());
                used = 0;
            }
        }
        used += length;
        if let Some(line) = lines.last_mut() {
            line.push(Span::raw(format!("{label} ")));
            line.push(Span::styled(value.clone(), Style::new().add_modifier(Modifier::BOLD)));
        }
    }
    lines.into_iter().map(Line::from).collect()
}

fn draw_tabs(frame: &mut Frame<'_>, area: Rect, state: &Screen, snapshot: &Snapshot) {
    let names =
        state.tables().iter().enumerate().map(|(index, table)| format!("{} {}", index + 1, table.name));
    let shown = snapshot.rows.len();
    let mut about = match snapshot.total > shown {
        true => format!("first {shown} of {}", snapshot.total),
        false if shown == 1 => "1 row".to_owned(),
        false => format!("{shown} rows"),
    };
    if !snapshot.query.filter.is_empty() {
        about = format!("{about} with '{}'", snapshot.query.filter);
    }
    if snapshot.query.table != state.query.table {
        about = "waiting for an answer".to_owned();
    }
    let block = Block::new().borders(Borders::TOP).title(about).title_alignment(Alignment::Right);
    let tabs = Tabs::new(names).select(state.query.table).block(block);
    frame.render_widget(tabs.highlight_style(Style::new().add_modifier(Modifier::REVERSED)), area);
}

fn draw_rows(
    frame: &mut Frame<'_>,
    area: Rect,
    state: &Screen,
    table: &'static TableKind,
    snapshot: &Snapshot,
) {
    // That of the rows, which may not be the latest one yet.
    let query = &snapshot.query;
    let sorted_by = query.sorted_by(table);
    let mark = if query.is_descending(table) { "▼" } else { "▲" };
    let heading = |(index, column): (usize, &super::tables::TableColumn)| match index == sorted_by {
        true => format!("{}{mark}", column.heading),
        false => column.heading.to_owned(),
    };
    let headings: Vec<String> = table.columns.iter().enumerate().map(heading).collect();
    let visible = snapshot.rows.iter().skip(state.scroll).take(usize::from(area.height));
    let texts: Vec<Vec<String>> =
        visible.map(|row| table.columns.iter().map(|column| column.show(row)).collect()).collect();
    let width = |(index, heading): (usize, &String)| {
        let of_rows = texts.iter().map(|row| Span::raw(&row[index]).width()).max().unwrap_or(0);
        let most = if table.columns[index].unit.is_number() { usize::MAX } else { TEXT_MAX };
        Constraint::Length(of_rows.min(most).max(Span::raw(heading).width()) as u16)
    };
    let widths: Vec<Constraint> = headings.iter().enumerate().map(width).collect();
    let row = |texts: &[String]| {
        let cells = texts.iter().zip(table.columns).map(|(text, column)| {
            let alignment = if column.unit.is_number() { Alignment::Right } else { Alignment::Left };
            Cell::from(Line::from(text.clone()).alignment(alignment))
        });
        Row::new(cells.collect::<Vec<_>>())
    };
    let header = row(&headings).style(Style::new().add_modifier(Modifier::BOLD));
    let rows: Vec<Row<'_>> = texts.iter().map(|texts| row(texts)).collect();
    frame.render_widget(Table::new(rows, widths).header(header).column_spacing(2), area);
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;

    use super::super::snapshot::{Query, Reading};
    use super::super::tables::ServerKind;
    use super::*;

    fn state() -> Screen {
        let mut state = Screen::new("http://127.0.0.1:15672".to_owned(), Duration::from_secs(2));
        state.handle_sample(Ok(Snapshot {
            at: Instant::now(),
            kind: ServerKind::Broker,
            title: "Leveret 1.2.3, broker, leveret@here".to_owned(),
            facts: vec![("Ready", "1,234".to_owned()), ("Memory", "1.0 MiB of 2.0 GiB".to_owned())],
            alarms: vec!["memory alarm on a: publishers are blocked".to_owned()],
            rates: vec![("Publish", Reading::PerSecond(12_345.0)), ("Confirm", Reading::PerSecond(0.5))],
            query: Query::default(),
            rows: vec![
                json!({"vhost": "/", "name": "orders", "messages_ready": 1234}),
                json!({"name": "b\n"}),
            ],
            total: 5000,
        }));
        state
    }

    fn drawn(state: &Screen, width: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, 20)).unwrap();
        terminal.draw(|frame| draw(frame, state)).unwrap();
        super::super::lines(terminal.backend().buffer())
    }

    #[test]
    fn all_that_is_known_is_on_the_screen() {
        let lines = drawn(&state(), 120);
        let text = lines.join("\n");
        assert!(
            lines[0].starts_with("http://127.0.0.1:15672  Leveret 1.2.3, broker, leveret@here"),
            "{text}"
        );
        assert!(lines[0].ends_with("every 2 s"), "{text}");
        assert_eq!(lines[1], "memory alarm on a: publishers are blocked");
        assert!(lines[2].starts_with("Publish              12,345/s"), "{text}");
        assert_eq!(lines[4], "Ready 1,234   Memory 1.0 MiB of 2.0 GiB");
        assert!(lines[5].ends_with("first 2 of 5000"), "{text}");
        assert!(lines[6].starts_with(" 1 Queues │ 2 Connections"), "{text}");
        assert!(lines[7].contains("ready▼"), "{text}");
        assert!(lines[8].starts_with("/      orders") && lines[8].contains("1,234"), "{text}");
        assert!(lines[9].contains("b\\n"), "{text}");
        assert!(lines[19].starts_with("q quit"), "{text}");
    }

    #[test]
    fn facts_go_on_in_the_next_line_where_they_do_not_fit() {
        let lines = drawn(&state(), 24);
        assert!(
            lines.contains(&"Ready 1,234".to_owned())
                && lines.contains(&"Memory 1.0 MiB of 2.0 Gi".to_owned()),
            "{lines:?}"
        );
    }

    #[test]
    fn a_terminal_of_any_size_is_drawn_on() {
        for (width, height) in [(1, 1), (10, 3), (300, 100)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            terminal.draw(|frame| draw(frame, &state())).unwrap();
        }
    }
}
