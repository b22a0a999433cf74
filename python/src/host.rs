//! The daemon of a host, run in this process, and questions about one that runs elsewhere.
use crate::error::{IntoPython, config_error};
use crate::logging;
use crate::mooncake;
use crate::patience::seconds;
use pyo3::{prelude::*, types::PyDict};
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tensorlease::OpenError;
use tensorlease::engine::{Engine, chained};
use tensorlease_host::{
    Behind, ConnectError, Daemon, DaemonOptions, HostEngine, PlaceError, SocketPath, StartError, WELCOME_MAX,
};
use tensorlease_memory::{limits, process::end_at_once};

/// By default a daemon offers this part of the memory that the machine has left.
const OFFERED_PART: u64 = 2;
/// The part of what it offers that a daemon may lose to transfers that may still write.
const QUARANTINE_PART: u64 = 2;
/// What has the objects by default: the daemon itself.
const OWN_STORE: &str = "embedded://";
/// Mooncake closes within a second, unless a call on it hangs.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// A daemon that runs in threads of this process. They need the GIL only for the calls of an engine that lives in
/// Python.
#[pyclass(frozen, module = "tensorlease._core")]
pub struct HostDaemon {
    daemon: Daemon,
}

#[pymethods]
impl HostDaemon {
    /// Takes the lock and serves the socket. The defaults are this user's place, half of the memory that is left, and
    /// no end by itself. `engine`: the URL of what has the objects.
    #[staticmethod]
    #[pyo3(signature = (*, socket, max_bytes, idle_seconds, engine))]
    fn start(
        py: Python<'_>,
        socket: Option<PathBuf>,
        max_bytes: Option<u64>,
        idle_seconds: Option<f64>,
        engine: &str,
    ) -> PyResult<Self> {
        let max_bytes =
            max_bytes.unwrap_or_else(|| limits::available_bytes().map_or(1 << 30, |left| left / OFFERED_PART));
        let options = DaemonOptions {
            socket: place(py, socket)?,
            max_bytes,
            idle_end: idle_seconds.map(|idle| seconds(py, idle, "idle_seconds")).transpose()?,
        };
        let behind = py.detach(|| engine_behind(engine)).map_err(|error| {
            logging::drain(py);
            error.into_python(py)
        })?;
        let started = py.detach(|| match behind {
            None => Daemon::start(options),
            Some(engine) => Daemon::start_before(
                options,
                Behind {
                    engine,
                    quarantine_bytes: max_bytes / QUARANTINE_PART,
                    close_timeout: CLOSE_TIMEOUT,
                },
            ),
        });
        logging::drain(py);
        match started {
            Ok(daemon) => Ok(Self { daemon }),
            Err(error @ StartError::Memory { .. }) => Err(config_error(py, &chained(&error))),
            Err(error) => Err(unavailable(chained(&error)).into_python(py)),
        }
    }

    /// Waits until it has ended. False: it has not within `seconds`.
    fn wait(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        let timeout = crate::patience::seconds(py, seconds, "seconds")?;
        let ended = py.detach(|| self.daemon.wait(timeout));
        logging::drain(py);
        Ok(ended)
    }

    /// Ends it within two seconds, or within twelve where an engine is behind it. If the engine has not closed by then,
    /// this process ends with `status` and `last_words`. A call on an engine can't be interrupted, and Mooncake closes
    /// with the GIL held, so no line of Python would run before.
    fn stop_or_exit(&self, py: Python<'_>, status: i32, last_words: &str) {
        py.detach(|| {
            self.daemon.stop();
            if !self.daemon.has_closed() {
                let _unheard = writeln!(std::io::stdout(), "{last_words}");
                end_at_once(status);
            }
        });
        logging::drain(py);
    }

    /// Where it listens.
    #[getter]
    fn socket(&self) -> OsString {
        self.daemon.socket().as_path().into()
    }
}

impl Drop for HostDaemon {
    /// A daemon that was not stopped ends now. The GIL is released, because an engine in Python needs it to close.
    fn drop(&mut self) {
        let _ended = Python::try_attach(|py| py.detach(|| self.daemon.stop()));
    }
}

/// None: the daemon holds the objects itself.
fn engine_behind(url: &str) -> Result<Option<Arc<dyn Engine>>, OpenError> {
    let refused = |message: String| Err(OpenError::Config { message });
    if url == OWN_STORE {
        return Ok(None);
    }
    if mooncake::is_named_by(url) {
        return mooncake::open_behind_a_daemon(url).map(Some);
    }
    if url.starts_with(OWN_STORE) {
        return refused(format!(
            "engine={url:?}: a daemon's own store takes no options, max_bytes bounds it; write {OWN_STORE}"
        ));
    }
    if url.starts_with("host:") {
        return refused(format!(
            "engine={url:?} is a daemon; what stands behind one is {OWN_STORE} or mooncake://HOST:PORT"
        ));
    }
    refused(format!(
        "engine={url:?} is unknown; allowed are {OWN_STORE} and mooncake://HOST:PORT"
    ))
}

/// The path of a daemon's socket. None: of this user's daemon.
#[pyfunction]
#[pyo3(signature = (socket))]
pub(crate) fn host_socket(py: Python<'_>, socket: Option<PathBuf>) -> PyResult<OsString> {
    Ok(place(py, socket)?.as_path().into())
}

/// Makes the folder of a socket for this user alone, if there is none. Refuses a folder that others could write to.
#[pyfunction]
pub(crate) fn host_make_folder(py: Python<'_>, socket: PathBuf) -> PyResult<()> {
    let made = place(py, Some(socket))?.make_folder();
    made.map_err(|error| config_error(py, &chained(&error)))
}

/// Does a daemon listen there?
#[pyfunction]
pub(crate) fn host_listens(py: Python<'_>, socket: PathBuf) -> PyResult<bool> {
    let place = place(py, Some(socket))?;
    Ok(py.detach(|| place.is_listening()))
}

/// The process of the daemon that has the place, also where its socket was removed. None: there is none. 0: it could
/// not write its number.
#[pyfunction]
pub(crate) fn host_holder(py: Python<'_>, socket: PathBuf) -> PyResult<Option<u32>> {
    let place = place(py, Some(socket))?;
    let holder = py.detach(|| place.holder());
    Ok(holder.map(|holder| holder.process.unwrap_or_default()))
}

/// How long a daemon may take to welcome a client, seconds.
#[pyfunction]
pub(crate) fn host_silent_seconds() -> f64 {
    WELCOME_MAX.as_secs_f64()
}

/// Who holds what: the daemon's numbers, and under "clients" one dict for each client but this connection.
#[pyfunction]
pub(crate) fn host_report<'py>(py: Python<'py>, socket: PathBuf) -> PyResult<Bound<'py, PyDict>> {
    let place = place(py, Some(socket))?;
    let asked = py.detach(|| {
        let engine = HostEngine::connect(&place).map_err(|error: ConnectError| chained(&error))?;
        let mut report = engine.report().map_err(|fault| fault.message.into_owned())?;
        report.clients.retain(|row| row.session != engine.session());
        Ok(report)
    });
    let report = asked.map_err(|message| unavailable(message).into_python(py))?;
    let numbers = PyDict::new(py);
    numbers.set_item("pid", report.pid)?;
    numbers.set_item("engine", &report.engine)?;
    numbers.set_item("quarantined_bytes", report.quarantined_bytes)?;
    numbers.set_item("late_bytes", report.late_bytes)?;
    numbers.set_item("register_calls", report.register_calls)?;
    numbers.set_item("age_seconds", Duration::from_millis(report.age_ms).as_secs_f64())?;
    numbers.set_item("capacity_bytes", report.capacity_bytes)?;
    numbers.set_item("held_bytes", report.held_bytes)?;
    numbers.set_item("objects", report.counts.objects)?;
    numbers.set_item("object_bytes", report.counts.object_bytes)?;
    let mut clients = Vec::with_capacity(report.clients.len());
    for row in report.clients {
        let client = PyDict::new(py);
        client.set_item("session", row.session)?;
        client.set_item("pid", row.pid)?;
        client.set_item("age_seconds", Duration::from_millis(row.age_ms).as_secs_f64())?;
        client.set_item("cut_off", row.quarantined)?;
        client.set_item("arena_bytes", row.extent_bytes)?;
        client.set_item("pinned_bytes", row.pinned_bytes)?;
        client.set_item("pinned_objects", row.pinned_objects)?;
        client.set_item("in_flight_bytes", row.reserved_bytes + row.transfer_bytes)?;
        client.set_item("late_bytes", row.late_bytes)?;
        client.set_item("read_objects", row.read_objects)?;
        client.set_item("read_bytes", row.read_bytes)?;
        client.set_item("written_objects", row.written_objects)?;
        client.set_item("written_bytes", row.written_bytes)?;
        clients.push(client);
    }
    numbers.set_item("clients", clients)?;
    let mut namespaces = Vec::with_capacity(report.namespaces.len());
    for row in report.namespaces {
        let namespace = PyDict::new(py);
        namespace.set_item("namespace", row.namespace)?;
        namespace.set_item("objects", row.counts.objects)?;
        namespace.set_item("object_bytes", row.counts.object_bytes)?;
        namespaces.push(namespace);
    }
    numbers.set_item("namespaces", namespaces)?;
    Ok(numbers)
}

fn place(py: Python<'_>, socket: Option<PathBuf>) -> PyResult<SocketPath> {
    let place = match socket {
        Some(path) => SocketPath::new(path),
        None => SocketPath::of_this_user(),
    };
    place.map_err(|error: PlaceError| config_error(py, &chained(&error)))
}

fn unavailable(message: String) -> OpenError {
    OpenError::Unavailable { message, source: None }
}
