//! The client's threads that run engine calls.
//!
//! A call that its caller has abandoned may keep its thread for as long as the engine likes (Mooncake: 60 s). Such a
//! thread no longer counts: another one takes its place, and it ends when its engine call does.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, OnceLock, PoisonError},
    thread,
    time::{Duration, Instant},
};
use tensorlease_memory::lock;

/// A thread without work for this long ends; the next job starts another.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// A thread without work for this long tidies up, once.
const IDLE_TIDY: Duration = Duration::from_secs(1);

/// One engine call.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// Called by a thread that has had no work for a while.
pub(crate) type Tidy = Box<dyn Fn() + Send + Sync>;

/// Runs jobs on at most `workers` threads at once, first come first served.
#[derive(Clone)]
pub(crate) struct Workers {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
    workers: usize,
    /// What there is to do once nothing else is.
    tidy: OnceLock<Tidy>,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Threads that take jobs, abandoned ones not counted.
    threads: usize,
    idle: usize,
    /// Threads held by engine calls whose callers have given up.
    abandoned: usize,
    closed: bool,
}

impl Workers {
    pub(crate) fn new(workers: usize) -> Self {
        assert!(0 < workers, "options are checked before");
        Self {
            shared: Arc::new(Shared {
                state: Mutex::default(),
                work: Condvar::new(),
                workers,
                tidy: OnceLock::new(),
            }),
        }
    }

    /// From now on `tidy` is called when there has been no job for a second. The first one given counts.
    pub(crate) fn when_idle(&self, tidy: Tidy) {
        self.shared.tidy.get_or_init(|| tidy);
    }

    /// How many run at once.
    pub(crate) fn count(&self) -> usize {
        self.shared.workers
    }

    /// Threads held by abandoned calls.
    pub(crate) fn abandoned(&self) -> usize {
        lock(&self.shared.state).abandoned
    }

    /// Queues one job. After `close` the job is dropped, which its owner sees as a call that ended.
    pub(crate) fn submit(&self, job: Job) {
        let mut state = lock(&self.shared.state);
        if state.closed {
            drop(state);
            return;
        }
        state.jobs.push_back(job);
        if state.idle < state.jobs.len() && state.threads < self.shared.workers {
            self.start_thread(&mut state);
        }
        drop(state);
        self.shared.work.notify_one();
    }

    /// `count` running jobs lost their caller: their threads are replaced.
    pub(crate) fn abandon(&self, count: usize) {
        let mut state = lock(&self.shared.state);
        state.abandoned += count;
        state.threads = state
            .threads
            .checked_sub(count)
            .expect("only running threads are abandoned");
        while state.threads < self.shared.workers && state.idle < state.jobs.len() {
            self.start_thread(&mut state);
        }
    }

    /// An abandoned job's engine call has returned; its thread ends after the job unless there is room for it again.
    pub(crate) fn returned(&self) {
        let mut state = lock(&self.shared.state);
        state.abandoned = state.abandoned.checked_sub(1).expect("returned once per abandoned job");
        state.threads += 1;
    }

    /// No more jobs; queued ones are dropped. Waits for running ones until `deadline`. Says whether all ended.
    pub(crate) fn close(&self, deadline: Instant) -> bool {
        let mut state = lock(&self.shared.state);
        state.closed = true;
        let dropped = std::mem::take(&mut state.jobs);
        drop(state);
        drop(dropped);
        self.shared.work.notify_all();
        let mut state = lock(&self.shared.state);
        while 0 < state.threads + state.abandoned {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self
                .shared
                .work
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        true
    }

    fn start_thread(&self, state: &mut State) {
        let shared = Arc::clone(&self.shared);
        let started = thread::Builder::new()
            .name("tensorlease-reader".to_owned())
            .spawn(move || shared.serve());
        // Without a new thread the job waits for one that runs already; with none at all its caller's deadline ends it.
        match started {
            Ok(_) => state.threads += 1,
            Err(error) => log::warn!("cannot start a worker thread: {error}"),
        }
    }
}

impl Shared {
    fn serve(&self) {
        let mut state = lock(&self.state);
        let mut tidied = self.tidy.get().is_none();
        loop {
            if self.workers < state.threads {
                break;
            }
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                // A job catches its engine's panics itself; this keeps the count of threads right whatever else happens.
                run(job, "a worker job");
                tidied = self.tidy.get().is_none();
                state = lock(&self.state);
                continue;
            }
            if state.closed {
                break;
            }
            state.idle += 1;
            let patience = if tidied { IDLE_MAX } else { IDLE_TIDY };
            let (guard, waited) = self
                .work
                .wait_timeout(state, patience)
                .unwrap_or_else(PoisonError::into_inner);
            state = guard;
            state.idle -= 1;
            if !waited.timed_out() || !state.jobs.is_empty() {
                continue;
            }
            match self.tidy.get().filter(|_| !tidied) {
                None => break,
                Some(tidy) => {
                    tidied = true;
                    drop(state);
                    run(tidy, "tidying up");
                    state = lock(&self.state);
                }
            }
        }
        state.threads -= 1;
        drop(state);
        self.work.notify_all();
    }
}

/// Nothing that goes wrong here may end the thread uncounted.
fn run(work: impl FnOnce(), what: &str) {
    if catch_unwind(AssertUnwindSafe(work)).is_err() {
        log::error!("{what} panicked; this is a defect of tensorlease");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_worker_without_work_tidies_up_once_and_takes_jobs_again() {
        let workers = Workers::new(1);
        let (tidy, tidied) = mpsc::channel();
        workers.when_idle(Box::new(move || tidy.send(()).unwrap()));
        for _ in 0..2 {
            let (done, ran) = mpsc::channel();
            workers.submit(Box::new(move || done.send(()).unwrap()));
            ran.recv_timeout(Duration::from_secs(5)).unwrap();
            tidied.recv_timeout(Duration::from_secs(5)).unwrap();
            let again = tidied.recv_timeout(IDLE_TIDY + IDLE_TIDY / 2);
            assert_eq!(again, Err(mpsc::RecvTimeoutError::Timeout), "once is enough");
        }
        assert!(workers.close(Instant::now() + Duration::from_secs(5)));
    }

    #[test]
    fn jobs_run_on_at_most_so_many_threads() {
        let workers = Workers::new(2);
        let (sender, receiver) = mpsc::channel();
        let running = Arc::new(Mutex::new((0, 0)));
        for _ in 0..20 {
            let (sender, running) = (sender.clone(), Arc::clone(&running));
            workers.submit(Box::new(move || {
                {
                    let mut counts = lock(&running);
                    counts.0 += 1;
                    counts.1 = counts.1.max(counts.0);
                }
                thread::sleep(Duration::from_millis(2));
                lock(&running).0 -= 1;
                sender.send(()).unwrap();
            }));
        }
        for _ in 0..20 {
            receiver.recv_timeout(Duration::from_secs(10)).unwrap();
        }
        assert_eq!(lock(&running).1, 2);
        assert!(workers.close(Instant::now() + Duration::from_secs(5)));
    }

    #[test]
    fn an_abandoned_call_gives_its_worker_slot_back() {
        let workers = Workers::new(1);
        let (release, blocked) = mpsc::channel::<()>();
        let (started, has_started) = mpsc::channel();
        let inner = workers.clone();
        workers.submit(Box::new(move || {
            started.send(()).unwrap();
            blocked.recv().unwrap();
            inner.returned();
        }));
        has_started.recv_timeout(Duration::from_secs(5)).unwrap();
        workers.abandon(1);
        assert_eq!(workers.abandoned(), 1);
        let (sender, receiver) = mpsc::channel();
        workers.submit(Box::new(move || sender.send(7).unwrap()));
        assert_eq!(receiver.recv_timeout(Duration::from_secs(5)), Ok(7));
        release.send(()).unwrap();
        assert!(workers.close(Instant::now() + Duration::from_secs(5)));
        assert_eq!(workers.abandoned(), 0);
    }
}
