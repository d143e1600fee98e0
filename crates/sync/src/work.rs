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
//!
//! Work that is better done once for a whole turn is [deferred](defer) to its end.
//!
//! A turn that exceeds its budget because its work cannot be divided is [relieved](on_overrun).

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};

/// The budget of a turn, in nanoseconds: long enough that the cost of switching tasks (some microseconds) is
/// negligible, and short enough that a hundred busy connections on two cores take turns within 25 ms.
pub const TURN: u32 = 500_000;

/// Loom's macro does not know constant values.
macro_rules! thread_cells {
    ($($(#[$attribute:meta])* static $name:ident: $type:ty = $value:expr;)*) => {
        #[cfg(not(feature = "loom"))]
        thread_local! { $($(#[$attribute])* static $name: $type = const { $value };)* }
        #[cfg(feature = "loom")]
        loom::thread_local! { $($(#[$attribute])* static $name: $type = $value;)* }
    };
}

thread_cells! {
    /// Nanoseconds left of this thread's turn; negative once it is over.
    static LEFT: Cell<i64> = Cell::new(NO_TURN);
    /// Address of the turn's owner; 0 outside of a turn.
    static OWNER: Cell<usize> = Cell::new(0);
    /// Another task was woken in this turn.
    static HAS_WOKEN: Cell<bool> = Cell::new(false);
    /// The work to do before the turn ends.
    static DEFERRED: RefCell<Vec<Arc<dyn Deferred>>> = RefCell::new(Vec::new());
}

/// Work that is [deferred](defer) to the end of a turn.
pub trait Deferred: Send + Sync {
    /// Does the work, without locks held. Work that waits for a disk goes through `blocking`; without it, another thread
    /// does that work.
    fn run(&self, blocking: Option<Blocking<'_>>);
}

/// Runs a function that may block the thread, once, while other tasks of the thread run elsewhere.
pub type Blocking<'a> = &'a dyn Fn(&mut dyn FnMut());

/// The value outside of a turn, which no charge can use up.
const NO_TURN: i64 = i64::MAX;

/// A turn of this thread, which lasts until this value is dropped.
#[derive(Debug)]
pub struct Turn {
    /// Keeps the value on its thread.
    _thread: PhantomData<*const ()>,
}

impl Turn {
    /// Starts a turn of [`TURN`] on this thread.
    #[must_use]
    pub fn begin() -> Self {
        LEFT.with(|left| left.set(i64::from(TURN)));
        HAS_WOKEN.with(|woken| woken.set(false));
        Self { _thread: PhantomData }
    }

    /// [Begins](Self::begin) the turn of this owner, see [`is_turn_of`].
    #[must_use]
    pub fn begin_for<T>(owner: &T) -> Self {
        OWNER.with(|of| of.set(std::ptr::from_ref(owner).addr()));
        Self::begin()
    }

    /// Nanoseconds charged since the turn began.
    pub fn spent(&self) -> u64 {
        (i64::from(TURN) - left()).unsigned_abs()
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        run_deferred(None);
        LEFT.with(|left| left.set(NO_TURN));
        OWNER.with(|of| of.set(0));
    }
}

/// Nanoseconds left of this thread's turn.
fn left() -> i64 {
    LEFT.with(Cell::get)
}

/// Whether this thread is in the turn of this owner.
pub fn is_turn_of<T>(owner: &T) -> bool {
    OWNER.with(Cell::get) == std::ptr::from_ref(owner).addr()
}

/// Records that this thread wakes another task, as [`AtomicWaker`](crate::AtomicWaker) does.
pub fn wakes_another() {
    HAS_WOKEN.with(|woken| woken.set(true));
}

/// Whether another task was woken in this turn, and may wait for this thread.
pub fn has_woken_another() -> bool {
    HAS_WOKEN.with(Cell::get)
}

/// Defers work until this thread's turn has nothing else to do, or ends. Work deferred twice runs once. Returns `false`
/// outside of a turn, where nothing is deferred.
#[must_use]
pub fn defer(work: &Arc<dyn Deferred>) -> bool {
    if left() == NO_TURN {
        return false;
    }
    DEFERRED.with(|deferred| {
        let mut deferred = deferred.borrow_mut();
        if !deferred.iter().any(|other| Arc::ptr_eq(other, work)) {
            deferred.push(Arc::clone(work));
        }
    });
    true
}

/// Runs the work deferred in this turn so far; returns whether there was any. The owner of the turn calls it when it has
/// nothing else to do, and then checks for its results. The end of a turn runs the rest.
pub fn run_deferred(blocking: Option<Blocking<'_>>) -> bool {
    let mut any = false;
    while let Some(next) = DEFERRED.with(|deferred| deferred.borrow_mut().pop()) {
        next.run(blocking);
        any = true;
    }
    any
}

/// Registers `relieve`, which is called within a turn each time the turn has used up its budget once more. Charge long work
/// before doing it. Only the first call has an effect.
pub fn on_overrun(relieve: fn()) {
    // The process sets it once, right after it has started its threads.
    let _ = RELIEVE.set(relieve);
}

/// Wakes another thread for the tasks that this one delays.
static RELIEVE: OnceLock<fn()> = OnceLock::new();

/// Charges work that costs `each` nanoseconds, `count` times.
#[inline]
pub fn charge(each: u32, count: usize) {
    let cost = i64::from(each).saturating_mul(i64::try_from(count).unwrap_or(i64::MAX));
    LEFT.with(|left| {
        let before = left.get();
        if before == NO_TURN {
            return;
        }
        let after = before.saturating_sub(cost);
        left.set(after);
        if after <= -i64::from(TURN) {
            overrun(before, after);
        }
    });
}

/// Called after a charge to a turn that has already cost twice its budget.
#[cold]
fn overrun(before: i64, after: i64) {
    let budgets = |left: i64| left.min(0) / i64::from(TURN);
    if budgets(before) != budgets(after)
        && let Some(relieve) = RELIEVE.get()
    {
        relieve();
    }
}

/// Charges the copying of bytes; `each` is in picoseconds per byte.
#[inline]
pub fn charge_bytes(each: u32, bytes: usize) {
    charge(1, (bytes as u64).saturating_mul(u64::from(each)) as usize / 1000);
}

/// The share of `whole` that fits the rest of this thread's turn: all of it outside of a turn.
pub fn share_left(whole: usize) -> usize {
    let left = left().clamp(0, i64::from(TURN)) as u64;
    (whole as u64 * left / u64::from(TURN)) as usize
}

/// Whether so little of this thread's turn is left that another read from a socket is not worth its system
/// call.
pub fn is_turn_nearly_over() -> bool {
    left() < i64::from(TURN / WORTH_A_READ)
}

/// The divisor of [`TURN`] that gives the part worth a system call of its own.
const WORTH_A_READ: u32 = 4;

/// Whether this thread's turn has used up its budget.
#[inline]
pub fn is_turn_over() -> bool {
    left() <= 0
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[derive(Default)]
    struct Counted(AtomicU32);

    impl Deferred for Counted {
        fn run(&self, blocking: Option<Blocking<'_>>) {
            self.0.fetch_add(if blocking.is_some() { 10 } else { 1 }, Ordering::Relaxed);
        }
    }

    #[test]
    fn deferred_work_runs_once_and_at_the_latest_when_its_turn_ends() {
        let counted = Arc::new(Counted::default());
        let (work, count): (Arc<dyn Deferred>, _) = (counted.clone(), || counted.0.load(Ordering::Relaxed));
        assert!(!defer(&work), "outside of a turn");
        let turn = Turn::begin();
        assert!(defer(&work) && defer(&work));
        assert_eq!(count(), 0);
        let run = || run_deferred(Some(&|work| work()));
        assert!(run() && !run());
        assert_eq!(count(), 10);
        assert!(defer(&work));
        drop(turn);
        assert_eq!(count(), 11);
    }

    #[test]
    fn a_turn_is_relieved_each_time_it_uses_up_its_budget_again() {
        thread_local! { static RELIEVED: Cell<u32> = const { Cell::new(0) }; }
        on_overrun(|| RELIEVED.set(RELIEVED.get() + 1));
        let after = |each, count| {
            charge(each, count);
            RELIEVED.replace(0)
        };
        assert_eq!(after(u32::MAX, 1), 0, "outside of a turn");
        let turn = Turn::begin();
        assert_eq!([after(TURN, 1), after(TURN - 1, 1), after(1, 1), after(1, 1)], [0, 0, 1, 0]);
        assert_eq!([after(TURN, 10), after(TURN - 2, 1), after(1, 1)], [1, 0, 1]);
        drop(turn);
        let _turn = Turn::begin();
        assert_eq!([after(TURN, 1), after(TURN, 1)], [0, 1]);
    }

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
