//! Few calls at a time where more would be in each other's way.
use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Lets so many calls of an engine run at once. One that takes too long hangs, or waits for a slow network: nobody waits for it any more.
#[derive(Debug)]
pub struct Turns {
    at_once: usize,
    call_max: Duration,
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
pub struct Turn<'a> {
    turns: &'a Turns,
    number: u64,
}

impl Turns {
    /// Lets `at_once` calls run, at least one, that take no longer than `call_max`.
    pub fn new(at_once: usize, call_max: Duration) -> Self {
        Self {
            at_once: at_once.max(1),
            call_max,
            state: Mutex::default(),
            ended: Condvar::new(),
        }
    }

    /// Waits for fewer than `at_once` turns that are younger than `call_max`, so at most that long for each that was there before.
    pub fn take(&self) -> Turn<'_> {
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
        let left = self.call_max.saturating_sub(begun.elapsed());
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

    const CALL_MAX: Duration = Duration::from_secs(2);

    #[test]
    fn no_more_turns_than_allowed_run_at_once() {
        let turns = Turns::new(2, CALL_MAX);
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
        let turns = Turns::new(1, CALL_MAX);
        let hanging = turns.take();
        let begun = Instant::now();
        drop(turns.take());
        assert!(CALL_MAX / 2 < begun.elapsed());
        let begun = Instant::now();
        drop(turns.take());
        assert!(begun.elapsed() < CALL_MAX / 2);
        drop(hanging);
        assert!(turns.state().running.is_empty());
    }
}
