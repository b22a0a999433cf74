//! What a process says beside its results: panics in any thread, and log lines of the store.

use crate::unruly::PANIC;
use std::{
    panic::{self, PanicHookInfo},
    sync::{Mutex, MutexGuard, PoisonError},
};

static HEARD: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// From now on panics and log lines are collected. A panic that is meant is passed over.
pub(crate) fn listen() {
    panic::set_hook(Box::new(hear_panic));
    if log::set_logger(&Listener).is_ok() {
        log::set_max_level(log::LevelFilter::Warn);
    }
}

/// What was heard so far concerns nobody.
pub(crate) fn forget() {
    heard().clear();
}

/// What was heard since the last time.
pub(crate) fn take() -> Vec<String> {
    std::mem::take(&mut *heard())
}

/// The same, without forgetting it.
pub(crate) fn heard_so_far() -> Vec<String> {
    heard().clone()
}

/// Lines that tell of a defect wherever they come up.
pub(crate) fn is_alarming(line: &str) -> bool {
    line.starts_with("panic") || line.starts_with("ERROR")
}

/// The engine was not closed within the bound of a close: what is quarantined stays so.
pub(crate) fn tells_of_an_open_engine(line: &str) -> bool {
    line.contains("has not closed in time")
}

fn heard() -> MutexGuard<'static, Vec<String>> {
    HEARD.lock().unwrap_or_else(PoisonError::into_inner)
}

fn hear_panic(info: &PanicHookInfo<'_>) {
    let payload = info.payload();
    let text = payload.downcast_ref::<&str>().copied();
    let said = text
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no text");
    if !said.contains(PANIC) {
        let thread = std::thread::current().name().unwrap_or("unnamed").to_owned();
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        heard().push(format!("panic in thread {thread} at {place}: {said}"));
    }
}

struct Listener;

impl log::Log for Listener {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Warn
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            heard().push(format!("{}: {}", record.level(), record.args()));
        }
    }

    fn flush(&self) {}
}
