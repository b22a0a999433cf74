//! Many programs, in processes of their own; their numbers added up, their differences told.

use crate::{tally::Tally, worker::unescaped};
use std::{
    env,
    io::{self, BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

/// The argument that makes this program a worker.
pub(crate) const WORKER: &str = "--worker";
/// How long a campaign runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) programs: usize,
    pub(crate) time: Duration,
    pub(crate) workers: usize,
    /// A failing campaign ends after so many failing programs.
    pub(crate) failures: usize,
    /// Says so often how far it is.
    pub(crate) progress: Option<Duration>,
}

/// One failing program.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) seed: u64,
    pub(crate) differences: Vec<String>,
}

/// What a campaign found.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) tally: Tally,
    pub(crate) failures: Vec<Failure>,
    pub(crate) run: usize,
    pub(crate) took: Duration,
}

struct Campaign<'a> {
    seeds: &'a [u64],
    next: AtomicUsize,
    bounds: Bounds,
    start: Instant,
    tally: Tally,
    failures: Mutex<Vec<Failure>>,
    run: AtomicUsize,
}

/// Runs these seeds, as far as the bounds allow.
pub(crate) fn run(seeds: &[u64], bounds: Bounds) -> Outcome {
    let campaign = Campaign {
        seeds: &seeds[..seeds.len().min(bounds.programs)],
        next: AtomicUsize::new(0),
        bounds,
        start: Instant::now(),
        tally: Tally::default(),
        failures: Mutex::default(),
        run: AtomicUsize::new(0),
    };
    let shared = &campaign;
    thread::scope(|scope| {
        for _ in 0..bounds.workers {
            scope.spawn(|| shared.serve_worker());
        }
        if let Some(pause) = bounds.progress {
            scope.spawn(move || shared.tell_progress(pause));
        }
    });
    let mut failures = campaign.failures.into_inner().unwrap_or_else(PoisonError::into_inner);
    failures.sort_by_key(|failure| failure.seed);
    Outcome {
        tally: campaign.tally,
        failures,
        run: campaign.run.into_inner(),
        took: campaign.start.elapsed(),
    }
}

impl Campaign<'_> {
    fn next_seed(&self) -> Option<u64> {
        let over = self.bounds.time <= self.start.elapsed() || self.bounds.failures <= self.failed();
        if over {
            return None;
        }
        self.seeds.get(self.next.fetch_add(1, SeqCst)).copied()
    }

    fn failed(&self) -> usize {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Keeps one worker at work; one that ends is replaced.
    fn serve_worker(&self) {
        let mut worker = None;
        while let Some(seed) = self.next_seed() {
            let mut at_work = worker.take().unwrap_or_else(Worker::start);
            let (differences, survived) = at_work.run(seed, &self.tally);
            self.run.fetch_add(1, SeqCst);
            if !differences.is_empty() {
                self.fail(seed, differences);
            }
            if survived {
                worker = Some(at_work);
            }
        }
        drop(worker);
    }

    fn fail(&self, seed: u64, differences: Vec<String>) {
        println!("faults: seed {seed} failed");
        differences.iter().for_each(|difference| println!("  {difference}"));
        let failure = Failure { seed, differences };
        self.failures
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(failure);
    }

    fn tell_progress(&self, pause: Duration) {
        let mut told = Instant::now();
        while self.next.load(SeqCst) < self.seeds.len() && self.start.elapsed() < self.bounds.time {
            thread::sleep(Duration::from_millis(50));
            if self.bounds.failures <= self.failed() {
                return;
            }
            if pause <= told.elapsed() {
                told = Instant::now();
                let (run, failed) = (self.run.load(SeqCst), self.failed());
                println!(
                    "faults: {run} programs in {} s, {failed} failed",
                    self.start.elapsed().as_secs()
                );
            }
        }
    }
}

/// A process that runs programs, and the two ends of the talk with it.
struct Worker {
    process: Child,
    seeds: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    fn start() -> Self {
        let program = env::current_exe().expect("this program has a path");
        let mut process = Command::new(program)
            .arg(WORKER)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program can be started again");
        let answers = BufReader::new(process.stdout.take().expect("asked for"));
        Self {
            seeds: process.stdin.take(),
            process,
            answers,
        }
    }

    /// The differences of one program, and whether the process can run another one.
    fn run(&mut self, seed: u64, tally: &Tally) -> (Vec<String>, bool) {
        let mut differences = Vec::new();
        let asked = self
            .seeds
            .as_mut()
            .is_some_and(|seeds| writeln!(seeds, "{seed}").is_ok());
        let mut line = String::new();
        while asked && self.read_line(&mut line).is_ok_and(|read| 0 < read) {
            match line.trim_end_matches('\n').split_once(' ') {
                Some(("bad", text)) => differences.push(unescaped(text)),
                Some(("end", text)) => {
                    tally.add_line(&unescaped(text));
                    return (differences, true);
                }
                _ => differences.push(format!("a worker said: {line}")),
            }
        }
        let status = self
            .process
            .wait()
            .map_or_else(|error| error.to_string(), |status| status.to_string());
        differences.push(format!("its process ended: {status}"));
        (differences, false)
    }

    fn read_line(&mut self, line: &mut String) -> io::Result<usize> {
        line.clear();
        self.answers.read_line(line)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The end of its input ends a worker.
        drop(self.seeds.take());
        let _status = self.process.wait();
    }
}
