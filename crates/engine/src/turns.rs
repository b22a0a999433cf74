//! Few calls at a time where more would be in each other's way.
use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Lets so many calls of an engine run at once, in the order in which they came. While one of them hangs, or waits for a slow network, nobody
/// waits: that is worth more than the speed that is lost.
#[derive(Debug)]
pub struct Turns {
    at_once: usize,
    call_max: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Number and begin of each turn that runs, the oldest first.
    running: Vec<(u64, Instant)>,
    /// Numbers of those that wait, in the order in which they came.
    waiting: VecDeque<u64>,
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
            changed: Condvar::new(),
        }
    }

    /// Waits until all that came before have begun and fewer than `at_once` run, or one has run for `call_max`.
    pub fn take(&self) -> Turn<'_> {
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        state.waiting.push_back(number);
        while let Some(left) = self.wait_of(&state, number) {
            state = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        state.waiting.retain(|waiting| *waiting != number);
        state.running.push((number, Instant::now()));
        self.changed.notify_all();
        Turn { turns: self, number }
    }

    /// How long until the oldest turn counts as one that hangs; `None`: this number may begin.
    fn wait_of(&self, state: &State, number: u64) -> Option<Duration> {
        if state.waiting.front() == Some(&number) && state.running.len() < self.at_once {
            return None;
        }
        let running_for = state
            .running
            .first()
            .map_or(Duration::ZERO, |(_, begun)| begun.elapsed());
        let left = self.call_max.saturating_sub(running_for);
        (!left.is_zero()).then_some(left)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.state().running.retain(|(number, _)| *number != self.number);
        self.turns.changed.notify_all();
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
    fn while_a_turn_hangs_nobody_waits() {
        let turns = Turns::new(1, CALL_MAX);
        let hanging = turns.take();
        let begun = Instant::now();
        let first = turns.take();
        assert!(CALL_MAX / 2 < begun.elapsed());
        // These turns are young, and many.
        let begun = Instant::now();
        let more: Vec<_> = (0..10).map(|_| turns.take()).collect();
        assert!(begun.elapsed() < CALL_MAX / 2);
        drop(hanging);
        drop((first, more));
        assert!(turns.state().running.is_empty());
    }

    #[test]
    fn turns_are_taken_in_the_order_in_which_they_were_asked_for() {
        const ASKING: usize = 8;
        let turns = Turns::new(1, Duration::from_secs(60));
        let order = Mutex::new(Vec::new());
        let (turns, order) = (&turns, &order);
        thread::scope(|scope| {
            let held = turns.take();
            for number in 0..ASKING {
                scope.spawn(move || {
                    let _turn = turns.take();
                    order.lock().unwrap().push(number);
                });
                while turns.state().waiting.len() <= number {
                    thread::yield_now();
                }
            }
            drop(held);
        });
        assert_eq!(*order.lock().unwrap(), (0..ASKING).collect::<Vec<_>>());
    }
}
