//! The tables of `leveret ctl migrate`.

use serde_json::{Value, json};
use server::MoveDirection;

use crate::Failure;
use crate::ctl::output::{Column, Output};

/// The counts of a queue at the end.
fn verdict(queue: &Value, way: MoveDirection) -> &'static str {
    let count = |key: &str| queue[key].as_u64();
    let (moved, twice) = (count("moved").unwrap_or(0), count("maybe_twice").unwrap_or(0));
    let received = match way {
        MoveDirection::Out => count("there"),
        MoveDirection::In => {
            Some(count("messages_ready").unwrap_or(0) + count("messages_unacknowledged").unwrap_or(0))
        }
    };
    match (count("before"), received) {
        (Some(before), Some(received)) if received < before + moved => "fewer",
        (Some(before), Some(received)) if received > before + moved + twice => "more",
        (Some(_), Some(_)) => "same",
        // A queue that nothing has moved from need not be there.
        _ if moved == 0 => "same",
        _ => "unknown",
    }
}

/// Prints the counts of each queue, and fails if they differ from what was moved.
pub(super) fn compare(status: &Value, way: MoveDirection, output: &Output) -> Result<(), Failure> {
    let mut rows: Vec<Value> = status["queues"].as_array().cloned().unwrap_or_default();
    let mut differing = 0;
    for row in &mut rows {
        let verdict = verdict(row, way);
        differing += usize::from(verdict != "same");
        row["counts"] = json!(verdict);
        if way == MoveDirection::In {
            row["left"] = row["there"].clone();
        }
    }
    let keys: &[&str] = match way {
        MoveDirection::Out => &["vhost", "name", "moved", "before", "there", "maybe_twice", "counts"],
        MoveDirection::In => &["vhost", "name", "moved", "before", "messages_ready", "left", "counts"],
    };
    output.rows(&columns(keys), false, rows)?;
    if differing > 0 {
        return Err(Failure::Run(format!(
            "{differing} queues have other counts than what was moved: messages there may have been consumed, have expired, or \
             have been dropped by a limit"
        )));
    }
    Ok(())
}

/// Prints the queues whose messages do not move.
pub(super) fn troubles(status: &Value, output: &Output) -> Result<(), Failure> {
    let queues = status["queues"].as_array().into_iter().flatten();
    let rows: Vec<_> = queues.filter(|queue| queue["trouble"].is_string()).cloned().collect();
    output.rows(&columns(&["vhost", "name", "state", "messages_ready", "trouble"]), false, rows)
}

/// The columns of these members of the API's objects.
pub(super) fn columns(keys: &[&str]) -> Vec<Column> {
    let column = |key: &&str| {
        let heading = HEADINGS.iter().find(|(member, _)| member == key).map_or(*key, |(_, heading)| heading);
        Column::headed(heading, key)
    };
    keys.iter().map(column).collect()
}

/// Headings that differ from the member of the API.
const HEADINGS: [(&str, &str); 3] =
    [("trouble", "error"), ("there", "target"), ("maybe_twice", "possible_duplicates")];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_compared_with_the_moved_messages() {
        let queue = |before: u64, moved: u64, twice: u64, there: u64| {
            let queue = json!({"before": before, "moved": moved, "maybe_twice": twice, "there": there});
            verdict(&queue, MoveDirection::Out)
        };
        assert_eq!(queue(1, 5, 0, 6), "same");
        assert_eq!((queue(1, 5, 0, 5), queue(1, 5, 0, 7)), ("fewer", "more"));
        assert_eq!((queue(1, 5, 2, 8), queue(1, 5, 2, 9)), ("same", "more"));
        assert_eq!(verdict(&json!({"moved": 1, "before": 0, "there": null}), MoveDirection::Out), "unknown");
        let here =
            json!({"before": 0, "moved": 3, "messages_ready": 2, "messages_unacknowledged": 1, "there": 0});
        assert_eq!(verdict(&here, MoveDirection::In), "same");
    }
}
