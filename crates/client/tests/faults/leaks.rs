//! What must be gone when nobody holds a value and no call runs.

use crate::{host::Host, noise, program::Ending, run::Run, stack::Stack};
use std::{
    fs,
    sync::{Arc, atomic::Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};
use tensorlease::Store;

/// Long enough for anything that ends at all, also on a busy machine.
const SOON: Duration = Duration::from_secs(10);
/// What a store counts that must be nothing when it is idle.
const IDLE: [&str; 3] = ["running_calls", "abandoned_running_calls", "in_flight_bytes"];

/// Waits until there is no complaint; the last one where there always is.
pub(crate) fn eventually(complaint: impl Fn() -> Option<String>) -> Result<(), String> {
    let start = Instant::now();
    loop {
        match complaint() {
            None => return Ok(()),
            Some(complaint) if SOON < start.elapsed() => return Err(complaint),
            Some(_) => thread::sleep(Duration::from_millis(1)),
        }
    }
}

fn is_zero(store: &Store, names: &[&str]) -> Result<(), String> {
    eventually(|| not_zero(store, names))
}

fn not_zero(store: &Store, names: &[&str]) -> Option<String> {
    let stats = store.stats();
    let wrong = names.iter().find(|name| 0.0 < stats.get(name));
    wrong.map(|name| format!("{name} is {} and should be 0", stats.get(name)))
}

impl Run<'_> {
    /// The end of a program, from its last step to the last trace of its store.
    pub(crate) fn end(self) {
        let (findings, stack, tally) = (self.findings, self.stack, Arc::clone(&self.tally));
        let mut differences = vec![is_zero(&self.store, &IDLE), self.look_again()];
        let has_ended = stack.host.as_ref().is_some_and(Host::is_stopped);
        if !self.is_closing() && !has_ended {
            differences.push(self.check_engine());
        }
        if self.program.drops_first {
            self.holdings.drop_all();
            differences.push(self.is_empty());
        }
        self.count();
        let store = match self.program.ending {
            Ending::Close => self.close_and_keep(None, &mut differences),
            Ending::CloseInHaste => self.close_and_keep(Some(Duration::ZERO), &mut differences),
            Ending::Drop => None,
        };
        let hasty = self.hasty.load(SeqCst);
        let Self {
            store: last, holdings, ..
        } = self;
        drop(last);
        // Whatever was still to be written has been written now.
        let (complaints, _) = holdings.complaints();
        differences.extend(complaints.into_iter().map(Err));
        holdings.drop_all();
        if let Some(store) = store {
            differences.push(is_zero(&store, &IDLE));
            differences.push(is_gone(&store));
        }
        let engine = &stack.watching;
        differences.push(eventually(|| {
            let held = Arc::strong_count(engine);
            (1 < held).then(|| format!("the engine is still held {} times after its store is gone", held - 1))
        }));
        if !engine_is_open() {
            differences.push(eventually(|| holdings.still_held().pop()));
        }
        // A close that would not wait leaves to the engine what a running call uses.
        let left_behind = if hasty { Ok(()) } else { nothing_is_left_behind(stack) };
        differences.extend([left_behind, stack_is_bare(stack)]);
        for difference in differences {
            difference.unwrap_or_else(|difference| findings.add(format!("in the end: {difference}")));
        }
        tally.add("programs/all", 1);
    }

    fn close_and_keep(&self, within: Option<Duration>, differences: &mut Vec<Result<(), String>>) -> Option<Store> {
        differences.push(self.close(within));
        Some(self.store.clone())
    }

    /// Nobody holds a value: every block is back, and every slab can go.
    fn is_empty(&self) -> Result<(), String> {
        let stats = self.store.stats();
        if self.stack.watching.saw_late() {
            // What a put was given may be in quarantine, which is not over.
            return Ok(());
        }
        is_zero(&self.store, &["leased_bytes", "copy_cache_held_bytes"])?;
        if 0.0 < stats.get("quarantined_bytes") + stats.get("quarantines") {
            return Err("memory is in quarantine, though no transfer ended late".to_owned());
        }
        if !self.is_closing() {
            // A slab that a call has not waited for comes when it is made, also after a trim.
            eventually(|| {
                let _freed = self.store.trim();
                not_zero(&self.store, &["arena_bytes", "copy_cache_bytes", "pinned_bytes"])
            })?;
        }
        Ok(())
    }

    /// Adds what the store counted to the campaign's numbers.
    #[allow(
        clippy::cast_sign_loss,
        clippy::cast_possible_truncation,
        reason = "counters are whole and not negative"
    )]
    fn count(&self) {
        let stats = self.store.stats();
        for (name, count) in &stats.values {
            if !name.ends_with("_seconds") && !IDLE.contains(name) {
                self.tally.add(format!("store/{name}"), *count as u64);
            }
        }
        self.tally.add(format!("engines/{}", self.program.base.name()), 1);
        self.tally
            .add(format!("budgets/{:>8} bytes", self.program.options.max_bytes), 1);
        self.tally
            .add("engines/of those, pinned by the kernel", u64::from(self.stack.pinned));
        let fallbacks = stats.get("fallback_reads") + stats.get("fallback_writes");
        if self.program.options.strict && 0.0 < fallbacks {
            self.findings
                .add(format!("strict, and {fallbacks} values went another way"));
        }
    }
}

/// Had the engine no time to close? Then what is in quarantine stays there.
fn engine_is_open() -> bool {
    let heard = noise::heard_so_far();
    heard.iter().any(|line| noise::tells_of_an_open_engine(line))
}

/// Closed, and every value dropped.
fn is_gone(store: &Store) -> Result<(), String> {
    is_zero(store, &["leased_bytes", "copy_cache_held_bytes"])?;
    if engine_is_open() {
        Ok(())
    } else {
        is_zero(store, &["quarantined_bytes", "pinned_bytes"])
    }
}

/// No promise to the engine was broken, and nothing is registered or on loan.
fn stack_is_bare(stack: &Stack) -> Result<(), String> {
    let broken = stack.broken();
    if let Some(first) = broken.first() {
        return Err(format!(
            "{} promises to the engine were broken, the first: {first}",
            broken.len()
        ));
    }
    eventually(|| {
        let registered = stack.raw.stats().registered_bytes;
        (0 < registered).then(|| format!("{registered} bytes are still registered with the engine"))
    })?;
    eventually(|| {
        let alive = stack.lending.as_ref().map_or(0, |lending| lending.alive());
        (0 < alive).then(|| format!("{alive} loans were not given back"))
    })?;
    eventually(|| pinned_memory().map(|line| format!("the kernel still pins memory: {line}")))
}

/// No thread of a store or a daemon runs, and no more files are open than before.
pub(crate) fn process_is_bare(files_before: usize) -> Result<(), String> {
    eventually(|| threads_of_stores().map(|name| format!("the thread {name} still runs")))?;
    eventually(|| {
        let files = open_files();
        (files_before < files).then(|| format!("{} files were left open", files - files_before))
    })
}

fn nothing_is_left_behind(stack: &Stack) -> Result<(), String> {
    let left = stack.watching.left_behind().unwrap_or_default();
    let Some(first) = left.first() else { return Ok(()) };
    let many = left.len();
    Err(format!(
        "{many} registrations were left behind when the engine was closed, the first: {first:?}"
    ))
}

/// The name of one thread of this process that a store started.
fn threads_of_stores() -> Option<String> {
    let tasks = fs::read_dir("/proc/self/task").ok()?;
    let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).ok();
    let mut names = tasks.flatten().filter_map(name);
    names
        .find(|name| name.starts_with("tensorlease"))
        .map(|name| name.trim().to_owned())
}

/// The kernel's line about pinned memory of this process, where it is not zero.
fn pinned_memory() -> Option<String> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmPin:"))?;
    let is_zero = line.split_whitespace().nth(1) == Some("0");
    (!is_zero).then(|| line.to_owned())
}

/// Open files of this process: an engine that pins has one.
pub(crate) fn open_files() -> usize {
    fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}
