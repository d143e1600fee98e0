//! Lists with pages, filters, sorting and columns, as in RabbitMQ's management API.
//!
//! The items arrive unordered and are cheap to collect; only those on the page are rendered. Sorting by
//! anything but virtual host and name requires rendering all of them first.

use std::cmp::Ordering;

use broker::{Compatibility, Pattern};
use serde_json::{Map, Value, json};
use sync::pace::pace;

use super::call::{ApiAnswer, Call, Reply};
use super::error::ApiError;
use crate::pieces::Pieces;

/// Replies with a list, or with a page of it if the query asks for one. `key` is the virtual host and the name.
pub(super) fn list<T>(
    call: &Call,
    mut items: Vec<T>,
    key: impl Fn(&T) -> (&str, &str),
    show: impl Fn(&T) -> Value,
) -> ApiAnswer {
    let asked = Asked::of(call, items.len())?;
    let total = items.len();
    if let Some(filter) = &asked.filter {
        retain(&mut items, |item| call.check_awaited().and_then(|()| filter.lets_pass(key(item).1)))?;
    }
    let filtered = items.len();
    let range = asked.range(filtered)?;
    let order = |one: &T, other: &T| asked.direct(key(one).cmp(&key(other)));
    let body = match asked.sort {
        None => asked.write(
            call,
            take(&mut items, range.start, range.end, order).iter().map(&show),
            range.len(),
            total,
            filtered,
        )?,
        Some(sort) => {
            // Only the sort values are kept; the rendered items may be large and are dropped.
            let by = |item: &T| {
                pace(SHOWN);
                at_path(&show(item), sort).cloned().unwrap_or(Value::Null)
            };
            let keyed = items.iter().map(|item| call.check_awaited().map(|()| (by(item), item)));
            let mut keyed = keyed.collect::<Result<Vec<(Value, &T)>, _>>()?;
            keyed.sort_by(|(one, first), (other, second)| {
                asked.direct(compare(one, other)).then_with(|| key(first).cmp(&key(second)))
            });
            let shown = keyed[range.clone()].iter().map(|(_, item)| show(item));
            asked.write(call, shown, range.len(), total, filtered)?
        }
    };
    Ok(Reply::text(body))
}

/// The same as `list` for shared items that are already in order: the cost is that of the page alone.
pub(super) fn list_sorted<T>(
    call: &Call,
    items: &[T],
    key: impl Fn(&T) -> (&str, &str),
    show: impl Fn(&T) -> Value,
) -> ApiAnswer
where
    T: Clone,
{
    let asked = Asked::of(call, items.len())?;
    if asked.sort.is_some() || asked.filter.is_some() {
        return list(call, items.to_vec(), key, show);
    }
    let range = asked.range(items.len())?;
    let page: Vec<&T> = match asked.reverse {
        false => items[range].iter().collect(),
        true => items.iter().rev().skip(range.start).take(range.len()).collect(),
    };
    let (shown, total) = (page.len(), items.len());
    Ok(Reply::text(asked.write(call, page.into_iter().map(show), shown, total, total)?))
}

/// The list options in the query.
struct Asked<'c> {
    columns: Option<Vec<&'c str>>,
    page: Option<Page>,
    filter: Option<Filter>,
    /// Column other than virtual host and name to sort by.
    sort: Option<&'c str>,
    reverse: bool,
}

impl<'c> Asked<'c> {
    /// Reads the options of a list of this many items.
    fn of(call: &'c Call, items: usize) -> Result<Self, ApiError> {
        let columns: Option<Vec<_>> = call.query("columns").map(|columns| columns.split(',').collect());
        if columns.as_ref().is_some_and(|columns| columns.len() > MAX_COLUMNS) {
            return Err(ApiError::bad_request(format!("columns: {MAX_COLUMNS} are the most")));
        }
        Ok(Self {
            columns,
            page: Page::of(call)?,
            filter: filter(call, items)?,
            sort: call.query("sort").filter(|sort| !matches!(*sort, "" | "name" | "vhost")),
            reverse: call.asks("sort_reverse"),
        })
    }

    fn range(&self, filtered: usize) -> Result<std::ops::Range<usize>, ApiError> {
        self.page.map_or(Ok(0..filtered), |page| page.range(filtered))
    }

    fn direct(&self, order: Ordering) -> Ordering {
        if self.reverse { order.reverse() } else { order }
    }

    /// Writes the list, or a page and its counts. Only one rendered item is in memory at a time.
    fn write(
        &self,
        call: &Call,
        items: impl Iterator<Item = Value>,
        shown: usize,
        total: usize,
        filtered: usize,
    ) -> Result<Pieces, ApiError> {
        let mut out = Pieces::default();
        if let Some(page) = self.page {
            let head = json!({
                "filtered_count": filtered, "item_count": shown, "page": page.number,
                "page_count": page.count(filtered), "page_size": page.size, "total_count": total,
            });
            out.add(head.to_string().trim_end_matches('}').as_bytes());
            out.add(b",\"items\":");
        }
        out.add(b"[");
        let mut items = items.enumerate();
        loop {
            // Before the next item is rendered.
            call.check_awaited()?;
            let Some((at, item)) = items.next() else { break };
            if at > 0 {
                out.add(b",");
            }
            let item = match &self.columns {
                None => item,
                Some(columns) => select(&item, columns),
            };
            out.add_json(&item);
            pace(SHOWN);
        }
        out.add(b"]");
        if self.page.is_some() {
            out.add(b"}");
        }
        Ok(out)
    }
}

/// Keeps the items that pass, up to the first error.
fn retain<T>(items: &mut Vec<T>, passes: impl Fn(&T) -> Result<bool, ApiError>) -> Result<(), ApiError> {
    let mut outcome = Ok(());
    items.retain(|item| {
        outcome.is_ok()
            && passes(item).unwrap_or_else(|error| {
                outcome = Err(error);
                false
            })
    });
    outcome
}

/// Returns the items of a range in order, without sorting the others.
fn take<T>(items: &mut [T], start: usize, end: usize, order: impl Fn(&T, &T) -> Ordering) -> &[T] {
    if start >= end {
        return &[];
    }
    if start > 0 {
        items.select_nth_unstable_by(start, &order);
    }
    let rest = &mut items[start..];
    if end - start < rest.len() {
        rest.select_nth_unstable_by(end - start, &order);
    }
    let page = &mut rest[..end - start];
    page.sort_unstable_by(&order);
    page
}

#[derive(Debug, Clone, Copy)]
struct Page {
    number: usize,
    size: usize,
}

impl Page {
    fn of(call: &Call) -> Result<Option<Self>, ApiError> {
        let (number, size) = (call.query("page"), call.query("page_size"));
        let Some(number) = number else { return Ok(None) };
        let parse = |text: &str| text.parse::<usize>().ok();
        let page = parse(number).zip(size.map_or(Some(DEFAULT_PAGE_SIZE), parse));
        match page {
            Some((number, size @ 1..=MAX_PAGE_SIZE)) if number > 0 => Ok(Some(Self { number, size })),
            _ => Err(ApiError::invalid(
                "invalid_pagination_parameters",
                format!(
                    "Invalid pagination parameters: page number {number}, page size {}",
                    size.unwrap_or("undefined")
                ),
            )),
        }
    }

    fn count(self, items: usize) -> usize {
        items.div_ceil(self.size)
    }

    fn range(self, items: usize) -> Result<std::ops::Range<usize>, ApiError> {
        if self.number > self.count(items).max(1) {
            return Err(ApiError::invalid(
                "page_out_of_range",
                format!("Page out of range, page: {} page size: {}, len: {items}", self.number, self.size),
            ));
        }
        let start = (self.number - 1) * self.size;
        Ok(start..(start + self.size).min(items))
    }
}

enum Filter {
    Part(String),
    Pattern(Pattern),
    /// Not a regular expression, which nothing matches in RabbitMQ 4.
    Nothing,
}

impl Filter {
    fn lets_pass(&self, name: &str) -> Result<bool, ApiError> {
        match self {
            // Case-insensitive, as in RabbitMQ.
            Self::Part(part) => Ok(name.to_lowercase().contains(part)),
            Self::Pattern(pattern) => pattern.try_matches(name).map_err(|_| {
                ApiError::bad_request(
                    "name: this regular expression takes too many steps for so many names; one without look-around \
                     and back-references takes none",
                )
            }),
            Self::Nothing => Ok(false),
        }
    }
}

fn filter(call: &Call, items: usize) -> Result<Option<Filter>, ApiError> {
    let Some(name) = call.query("name").filter(|name| !name.is_empty()) else { return Ok(None) };
    if !call.asks("use_regex") {
        return Ok(Some(Filter::Part(name.to_lowercase())));
    }
    match (Pattern::new(&format!("(?i){name}")), call.compatibility()) {
        (Ok(pattern), _) => Ok(Some(Filter::Pattern(pattern.for_walk(items)))),
        (Err(_), Compatibility::V3_10) => Err(ApiError::bad_request("Pagination parameters are invalid")),
        (Err(_), Compatibility::V4) => Ok(Some(Filter::Nothing)),
    }
}

/// Keeps only the given columns, such as `name` or `message_stats.publish`.
pub(super) fn select(value: &Value, columns: &[&str]) -> Value {
    let mut selected = Map::new();
    for column in columns {
        let Some(found) = at_path(value, column) else { continue };
        let mut at = &mut selected;
        let mut parts = column.split('.').peekable();
        while let Some(part) = parts.next() {
            if parts.peek().is_none() {
                at.insert(part.to_owned(), found.clone());
                break;
            }
            let inner = at.entry(part).or_insert_with(|| Value::Object(Map::new()));
            let Value::Object(inner) = inner else { break };
            at = inner;
        }
    }
    Value::Object(selected)
}

fn at_path<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    path.split('.').try_fold(value, |value, part| value.get(part))
}

/// Missing values come first, then booleans, numbers and strings.
fn compare(one: &Value, other: &Value) -> Ordering {
    match (one, other) {
        (Value::Bool(one), Value::Bool(other)) => one.cmp(other),
        (Value::Number(one), Value::Number(other)) => {
            one.as_f64().unwrap_or_default().total_cmp(&other.as_f64().unwrap_or_default())
        }
        (Value::String(one), Value::String(other)) => one.cmp(other),
        (one, other) => rank(one).cmp(&rank(other)),
    }
}

fn rank(value: &Value) -> u8 {
    match value {
        Value::Null => 0,
        Value::Bool(_) => 1,
        Value::Number(_) => 2,
        Value::String(_) => 3,
        Value::Array(_) | Value::Object(_) => 4,
    }
}

const DEFAULT_PAGE_SIZE: usize = 100;

/// Columns of a query: several times as many as any object has.
const MAX_COLUMNS: usize = 256;

/// Nanoseconds for rendering an item.
const SHOWN: u32 = 4_000;

/// Rows of the largest page, as in RabbitMQ.
const MAX_PAGE_SIZE: usize = 500;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_equals_the_same_range_of_the_fully_sorted_list() {
        let all: Vec<u32> = (0..100).map(|n| n * 37 % 101).collect();
        let mut sorted = all.clone();
        sorted.sort_unstable();
        for (start, end) in [(0, 100), (0, 10), (10, 20), (95, 100), (99, 100), (40, 40)] {
            let mut items = all.clone();
            assert_eq!(take(&mut items, start, end, Ord::cmp), &sorted[start..end], "{start}..{end}");
        }
    }

    #[test]
    fn columns_keep_their_places() {
        let value = json!({"name": "q", "a": {"b": 1, "c": 2}, "x": 3});
        assert_eq!(select(&value, &["name", "a.b", "nope"]), json!({"name": "q", "a": {"b": 1}}));
    }

    #[test]
    fn missing_values_sort_first() {
        let mut values = [json!({"n": 2}), json!({}), json!({"n": 1}), json!({"n": "x"})];
        values.sort_by(|one, other| compare(&one["n"], &other["n"]));
        assert_eq!(values, [json!({}), json!({"n": 1}), json!({"n": 2}), json!({"n": "x"})]);
    }
}
