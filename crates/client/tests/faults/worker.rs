//! A process that runs one program after the other: what kills it, or makes it hang, is told apart by the seed.
//!
//! It reads a seed a line and answers each with `bad` lines (differences), then one `end` line with its numbers.

use crate::{
    noise,
    program::Program,
    run::Findings,
    tally::Tally,
    trial::{self, Watched},
};
use std::{
    io::{self, BufRead, Write},
    process,
    sync::{Arc, Condvar, Mutex, PoisonError, mpsc},
    thread,
    time::Duration,
};

/// A program that has not ended by then hangs. Its calls have bounds of their own, which are shorter.
const HANG: Duration = Duration::from_secs(60);
/// Exit status of a worker whose program hangs.
const HUNG: i32 = 3;

/// Serves until its input ends.
pub(crate) fn serve() {
    noise::listen();
    let (findings, watched) = (Arc::new(Findings::default()), Arc::new(Watched::default()));
    let watchdog = Watchdog::start(Arc::clone(&findings), Arc::clone(&watched));
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        let Ok(seed) = line.trim().parse() else { continue };
        let tally = Arc::new(Tally::default());
        watchdog.begin(seed);
        trial::run(&Program::of(seed), &tally, &findings, &watched);
        watchdog.end();
        findings.take().iter().for_each(|finding| say("bad", finding));
        findings.reset();
        say("end", &tally.line());
    }
}

/// One line of the answer; line breaks in the text are escaped.
fn say(word: &str, text: &str) {
    let text = text.replace('\\', "\\\\").replace('\n', "\\n");
    let mut out = io::stdout().lock();
    // Without its reader a worker has nobody to work for.
    if writeln!(out, "{word} {text}").and_then(|()| out.flush()).is_err() {
        process::exit(0);
    }
}

/// The text of a line that [`say`] wrote.
pub(crate) fn unescaped(text: &str) -> String {
    text.replace("\\n", "\n").replace("\\\\", "\\")
}

/// Ends the process, with what is known, when a program hangs.
struct Watchdog(Arc<(Mutex<Option<u64>>, Condvar)>);

impl Watchdog {
    fn start(findings: Arc<Findings>, watched: Arc<Watched>) -> Self {
        let state: Arc<(Mutex<Option<u64>>, Condvar)> = Arc::default();
        let at_work = Arc::clone(&state);
        thread::spawn(move || {
            wait_for_a_hang(&at_work);
            tell_and_exit(&findings, &watched);
        });
        Self(state)
    }

    fn begin(&self, seed: u64) {
        self.set(Some(seed));
    }

    fn end(&self) {
        self.set(None);
    }

    fn set(&self, seed: Option<u64>) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = seed;
        self.0.1.notify_all();
    }
}

/// Returns once one program has run for too long.
fn wait_for_a_hang(state: &(Mutex<Option<u64>>, Condvar)) {
    let mut seed = state.0.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let before = *seed;
        let (now, waited) = state.1.wait_timeout(seed, HANG).unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() && before.is_some() && before == *now {
            return;
        }
        seed = now;
    }
}

fn tell_and_exit(findings: &Findings, watched: &Watched) -> ! {
    say("bad", &format!("hangs for {} s", HANG.as_secs()));
    findings.take().iter().for_each(|finding| say("bad", finding));
    for (thread, doing) in findings.doing().iter().enumerate() {
        say("bad", &format!("thread {thread} is at {doing}"));
    }
    noise::take().iter().for_each(|line| say("bad", line));
    if let Some(store) = watched.store() {
        // The counters lie behind locks that may be what hangs.
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || sender.send(store.stats()));
        match receiver.recv_timeout(Duration::from_secs(2)) {
            Ok(stats) => {
                let held = stats.values.iter().filter(|(_, value)| 0.0 < *value);
                let held: Vec<String> = held.map(|(name, value)| format!("{name} {value}")).collect();
                say("bad", &format!("the store: {}", held.join(", ")));
            }
            Err(_) => say("bad", "the store does not even tell its counters"),
        }
    }
    process::exit(HUNG);
}
