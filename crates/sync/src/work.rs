//! Limits the work that a thread does before others get their turn.
//!
//! A *turn* is one poll of a connection's task. Code that does work on behalf of a connection charges it
//! here, in nanoseconds that it takes on the machine on which the charges were measured (two cores at 2.5
//! GHz): a message routed, a queue appended to, a delivery written, bytes copied. Work is charged and not
//! timed, so that a turn ends at the same point regardless of other load on the machine, in tests as in
//! production.
//!
//! A loop whose length others control (frames of a client, queues of a route, consumers of a queue) checks
//! [`is_turn_over`] and leaves the rest to the connection's next turn. Outside of a turn, as on the threads
//! of the disk and in tests that call a session directly, a turn is never over.
//!
//! An example: a fanout exchange has 100,000 queues, and an append costs 100 ns. A message published there
//! reaches 5,000 queues in the first turn, when [`TURN`] is used up, and the other 95,000 in 19 more turns,
//! between which all other ready tasks run.

use std::cell::Cell;
use std::marker::PhantomData;

/// The budget of a turn, in nanoseconds: long enough that the cost of switching tasks (some microseconds) is
/// negligible, and short enough that a hundred busy connections on two cores take turns within 25 ms.
pub const TURN: u32 = 500_000;

thread_local! {
    /// The rest of this thread's turn, in nanoseconds; below zero once it is over.
    static LEFT: Cell<i64> = const { Cell::new(NO_TURN) };
}

/// The value outside of a turn, which no charge can use up.
const NO_TURN: i64 = i64::MAX;

/// The thread's turn, which lasts until this value is dropped.
#[derive(Debug)]
pub struct Turn {
    /// Keeps the value on its thread.
    _thread: PhantomData<*const ()>,
}

impl Turn {
    /// Begins a turn of [`TURN`] on this thread.
    #[must_use]
    pub fn begin() -> Self {
        LEFT.set(i64::from(TURN));
        Self { _thread: PhantomData }
    }

    /// Nanoseconds charged since the turn began.
    pub fn spent(&self) -> u64 {
        (i64::from(TURN) - LEFT.get()).unsigned_abs()
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        LEFT.set(NO_TURN);
    }
}

/// Charges work that costs `each` nanoseconds, `count` times.
#[inline]
pub fn charge(each: u32, count: usize) {
    let cost = i64::from(each).saturating_mul(i64::try_from(count).unwrap_or(i64::MAX));
    LEFT.set(match LEFT.get() {
        NO_TURN => NO_TURN,
        left => left.saturating_sub(cost),
    });
}

/// Charges the copying of bytes; `each` is in picoseconds per byte.
#[inline]
pub fn charge_bytes(each: u32, bytes: usize) {
    charge(1, (bytes as u64).saturating_mul(u64::from(each)) as usize / 1000);
}

/// The part of `whole` that corresponds to the rest of this thread's turn: all of it outside of a turn.
pub fn share_left(whole: usize) -> usize {
    let left = LEFT.get().clamp(0, i64::from(TURN)) as u64;
    (whole as u64 * left / u64::from(TURN)) as usize
}

/// Whether so little of this thread's turn is left that another read from a socket is not worth its system
/// call.
pub fn is_turn_nearly_over() -> bool {
    LEFT.get() < i64::from(TURN / WORTH_A_READ)
}

/// The divisor of [`TURN`] that gives the part worth a system call of its own.
const WORTH_A_READ: u32 = 4;

/// Whether this thread's turn has used up its budget.
#[inline]
pub fn is_turn_over() -> bool {
    LEFT.get() <= 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_over_when_its_work_is_done_and_never_outside_of_one() {
        charge(u32::MAX, usize::MAX);
        assert!(!is_turn_over());
        assert_eq!(share_left(100), 100);
        let turn = Turn::begin();
        charge(1000, TURN as usize / 1000 / 4);
        assert_eq!((share_left(100), turn.spent()), (75, u64::from(TURN) / 4));
        charge(TURN / 2, 1);
        assert!(!is_turn_nearly_over());
        charge(1, 1);
        assert!(is_turn_nearly_over() && !is_turn_over());
        charge(1, TURN as usize / 4 - 2);
        assert!(!is_turn_over());
        charge(1, 1);
        assert!(is_turn_over() && share_left(100) == 0);
        charge(u32::MAX, usize::MAX);
        charge(u32::MAX, usize::MAX);
        assert!(is_turn_over());
        drop(turn);
        assert!(!is_turn_over());
        let _turn = Turn::begin();
        charge_bytes(250, 4 * TURN as usize - 1);
        assert!(!is_turn_over());
        charge_bytes(250, 4);
        assert!(is_turn_over());
    }
}
