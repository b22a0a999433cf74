//! Records of the Rust side on their way to `logging.getLogger("tensorlease")`.
//!
//! Worker threads must never wait for the GIL, so records go into a bounded queue, and each call from Python passes on
//! what is there when it ends. When the queue is full the oldest record is dropped and counted.
use crossbeam_queue::ArrayQueue;
use log::{Level, LevelFilter, Log, Metadata};
use pyo3::{prelude::*, sync::PyOnceLock};
use std::sync::{
    LazyLock,
    atomic::{AtomicU64, Ordering},
};

/// How the crates of this project, and this one, are named in records.
const OURS: [&str; 2] = ["tensorlease", env!("CARGO_CRATE_NAME")];
/// Records that wait for Python at most.
const RECORDS_MAX: usize = 1024;

static QUEUE: LazyLock<Queue> = LazyLock::new(|| Queue {
    records: ArrayQueue::new(RECORDS_MAX),
    dropped: AtomicU64::new(0),
});
static LOGGER: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

struct Record {
    level: Level,
    message: String,
}

struct Queue {
    records: ArrayQueue<Record>,
    dropped: AtomicU64,
}

impl Log for Queue {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let ours = OURS.iter().any(|name| metadata.target().starts_with(name));
        metadata.level() <= log::max_level() && ours
    }
    fn log(&self, record: &log::Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let record = Record {
            level: record.level(),
            message: record.args().to_string(),
        };
        if self.records.force_push(record).is_some() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
    fn flush(&self) {}
}

/// Makes the queue the logger of this library, once per process.
pub(crate) fn install() {
    // Err: installed by an earlier import of the module in this process.
    if log::set_logger(&*QUEUE).is_ok() {
        log::set_max_level(LevelFilter::Info);
    }
}

/// Records dropped so far because Python fetched them too slowly.
#[pyfunction]
pub(crate) fn log_records_dropped() -> u64 {
    QUEUE.dropped.load(Ordering::Relaxed)
}

/// Tells the Rust side the level of the Python logger, so that records nobody wants are not even formatted.
#[pyfunction]
pub(crate) fn set_log_level(level: i64) {
    log::set_max_level(match level {
        ..=9 => LevelFilter::Trace,
        10..=19 => LevelFilter::Debug,
        20..=29 => LevelFilter::Info,
        30..=39 => LevelFilter::Warn,
        40..=50 => LevelFilter::Error,
        _ => LevelFilter::Off,
    });
}

/// Passes waiting records on to Python's logging. A handler that raises is reported the way Python reports errors
/// nobody can catch.
pub(crate) fn drain(py: Python<'_>) {
    // Taken out first: a handler may call the store, which drains again.
    for _ in 0..RECORDS_MAX {
        let Some(record) = QUEUE.records.pop() else { return };
        let level = match record.level {
            Level::Error => 40,
            Level::Warn => 30,
            Level::Info => 20,
            Level::Debug => 10,
            Level::Trace => 5,
        };
        let logged = LOGGER
            .get_or_try_init(py, || {
                py.import("logging")?
                    .call_method1("getLogger", ("tensorlease",))
                    .map(Bound::unbind)
            })
            .and_then(|logger| logger.bind(py).call_method1("log", (level, "%s", record.message)));
        if let Err(error) = logged {
            error.write_unraisable(py, None);
        }
    }
}
