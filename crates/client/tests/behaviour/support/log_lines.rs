//! What was logged, by the thread that logged it: tests run side by side in one process.

use std::{
    sync::{Mutex, MutexGuard, Once, PoisonError},
    thread::{self, ThreadId},
};

static LINES: Mutex<Vec<(ThreadId, log::Level, String)>> = Mutex::new(Vec::new());
static INSTALLED: Once = Once::new();

struct Keeping;

fn lines() -> MutexGuard<'static, Vec<(ThreadId, log::Level, String)>> {
    LINES.lock().unwrap_or_else(PoisonError::into_inner)
}

impl log::Log for Keeping {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Info
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            lines().push((thread::current().id(), record.level(), record.args().to_string()));
        }
    }

    fn flush(&self) {}
}

/// Runs `work`; returns the warnings that this thread gave meanwhile.
pub(crate) fn warnings_of(work: impl FnOnce()) -> Vec<String> {
    lines_of(log::Level::Warn, work)
}

/// The same of what is said once about each store.
pub(crate) fn announcements_of(work: impl FnOnce()) -> Vec<String> {
    lines_of(log::Level::Info, work)
}

fn lines_of(wanted: log::Level, work: impl FnOnce()) -> Vec<String> {
    INSTALLED.call_once(|| {
        log::set_logger(&Keeping).expect("no other logger in this process");
        log::set_max_level(log::LevelFilter::Info);
    });
    let before = lines().len();
    work();
    let mine = |(thread, level, text): &(ThreadId, log::Level, String)| {
        (*thread == thread::current().id() && *level == wanted).then(|| text.clone())
    };
    lines()[before..].iter().filter_map(mine).collect()
}
