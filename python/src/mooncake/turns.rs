//! Few calls at a time where more would be in each other's way.
use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// A call that takes longer hangs with its peer, so that nobody waits for it any more.
const TURN_MAX: Duration = Duration::from_secs(2);

/// From this mean size of objects on calls over TCP are in each other's way, since all calls to a peer share its connections: 64 objects of 16 MiB
/// from another process took half as long again in four calls at a time as in one after the other.
const LARGE_BYTES_MIN: usize = 1 << 20;

/// Turns of the calls of large objects over TCP.
#[derive(Debug)]
pub(super) struct LargeCalls {
    reads: Turns,
    writes: Turns,
}

impl LargeCalls {
    /// `alone`: without a segment of its own. What goes into that is copied, by two calls quicker than by one.
    pub(super) fn new(alone: bool) -> Self {
        Self {
            reads: Turns::new(1),
            writes: Turns::new(if alone { 1 } else { 2 }),
        }
    }

    /// Is a call of so many objects and bytes one of them?
    pub(super) fn includes(objects: usize, bytes: usize) -> bool {
        LARGE_BYTES_MIN <= bytes / objects.max(1)
    }

    pub(super) fn read(&self) -> Turn<'_> {
        self.reads.take()
    }

    pub(super) fn write(&self) -> Turn<'_> {
        self.writes.take()
    }
}

/// Lets so many calls run at once, and those that hang aside.
#[derive(Debug)]
struct Turns {
    at_once: usize,
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Number and begin of each turn that runs, the oldest first.
    running: Vec<(u64, Instant)>,
    next: u64,
}

/// A call's turn; its drop ends it.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    number: u64,
}

impl Turns {
    fn new(at_once: usize) -> Self {
        Self {
            at_once,
            state: Mutex::default(),
            ended: Condvar::new(),
        }
    }

    /// Waits for fewer than `at_once` turns that are younger than `TURN_MAX`, so at most that long for each that was there before.
    fn take(&self) -> Turn<'_> {
        let mut state = self.state();
        while let Some(left) = self.full_for(&state) {
            state = self
                .ended
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        let number = state.next;
        state.next += 1;
        state.running.push((number, Instant::now()));
        Turn { turns: self, number }
    }

    /// How long until the oldest of the turns that count no longer does; `None`: there is room.
    fn full_for(&self, state: &State) -> Option<Duration> {
        let (_, begun) = state.running.iter().rev().nth(self.at_once - 1)?;
        let left = TURN_MAX.saturating_sub(begun.elapsed());
        (!left.is_zero()).then_some(left)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.state().running.retain(|(number, _)| *number != self.number);
        self.turns.ended.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        sync::atomic::{AtomicUsize, Ordering::Relaxed},
        thread,
    };

    #[test]
    fn no_more_turns_than_allowed_run_at_once() {
        let turns = Turns::new(2);
        let (running, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let _turn = turns.take();
                        most.fetch_max(running.fetch_add(1, Relaxed) + 1, Relaxed);
                        thread::sleep(Duration::from_micros(200));
                        running.fetch_sub(1, Relaxed);
                    }
                });
            }
        });
        assert_eq!(most.load(Relaxed), 2);
        assert!(turns.state().running.is_empty());
    }

    #[test]
    fn a_turn_that_hangs_is_waited_for_once() {
        let turns = Turns::new(1);
        let hanging = turns.take();
        let begun = Instant::now();
        drop(turns.take());
        assert!(TURN_MAX / 2 < begun.elapsed());
        let begun = Instant::now();
        drop(turns.take());
        assert!(begun.elapsed() < TURN_MAX / 2);
        drop(hanging);
        assert!(turns.state().running.is_empty());
    }
}
