//! From settings to a client of the cluster.
use super::settings::{Pin, Protocol, Settings};
use pyo3::{
    exceptions::{PyImportError, PyModuleNotFoundError},
    prelude::*,
};
use std::{
    io::{ErrorKind, Read, Write},
    net::{IpAddr, TcpStream, ToSocketAddrs},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::{Duration, Instant},
};
use tensorlease::OpenError;
use tensorlease_memory::limits;

/// Variables that Mooncake reads when a client is made, and what they must say unless somebody has set them. The
/// default queue of the TCP transport wedges a peer for a minute once some 2,052 keys wait (Mooncake #3710), and 20
/// tries of a set-up freeze Python for 90 s.
const VARIABLES: [(&str, &str); 2] = [
    ("MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER", "65535"),
    ("MC_STORE_CLIENT_SETUP_RETRIES", "1"),
];
/// First byte of every message of the master's protocol.
const MAGIC: u8 = 0x15;
/// The head of a request for function 0, whole.
const NO_SUCH_FUNCTION: [u8; 20] = {
    let mut request = [0; 20];
    request[0] = MAGIC;
    request
};
/// A master that is there answers within microseconds; a time of 0 would mean for ever.
const ANSWER_MIN: Duration = Duration::from_millis(100);
const INSTALL: &str = "pip install mooncake-transfer-engine (or mooncake-transfer-engine-non-cuda)";
const LIBRARIES: &str = "install the native libraries it names (Debian: libibverbs1 librdmacm1 libnuma1 libcurl4)";

/// The process that a client was made in last; 0: none. A forked child inherits the number, and not the threads that
/// Mooncake's set-up waits for.
static MADE_IN: AtomicU32 = AtomicU32::new(0);

/// A client of the cluster.
pub(super) struct Connected {
    /// `MooncakeDistributedStore`, set up.
    pub(super) store: Py<PyAny>,
    /// `ReplicateConfig` of everything that is written.
    pub(super) replication: Py<PyAny>,
    /// The module `mooncake.store`.
    pub(super) module: Py<PyAny>,
}

/// Tries the master's address first, without the GIL: Mooncake's own set-up would hold it all the while.
pub(super) fn connect(settings: &Settings) -> Result<Connected, OpenError> {
    let this = std::process::id();
    if ![0, this].contains(&MADE_IN.load(Relaxed)) {
        let message = "this process was forked from one that uses Mooncake, and Mooncake does not survive a fork; start it another way, for example \
                       with multiprocessing's spawn";
        return Err(unavailable(message.to_owned(), None));
    }
    let own_address = reach(&settings.master, settings.connect_timeout)?;
    let hostname = settings
        .local_hostname
        .clone()
        .unwrap_or_else(|| own_address.to_string());
    MADE_IN.store(this, Relaxed);
    let attached = Python::try_attach(|py| set_up(py, settings, &hostname));
    attached.unwrap_or_else(|| Err(unavailable("Python is ending".to_owned(), None)))
}

/// Asks for a function that no master has, and lets go; the address by which this machine reaches the master. A process
/// that listens and does not answer would freeze Python in Mooncake's set-up for 30 s.
fn reach(master: &str, timeout: Duration) -> Result<IpAddr, OpenError> {
    let refused = |error: std::io::Error| {
        let message =
            format!("no Mooncake master at {master} ({error}); start mooncake_master there, or mend the address");
        unavailable(message, Some(Box::new(error)))
    };
    let deadline = Instant::now() + timeout;
    let mut last = std::io::Error::from(ErrorKind::AddrNotAvailable);
    for address in master.to_socket_addrs().map_err(refused)? {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        match TcpStream::connect_timeout(&address, left).and_then(|stream| answers(stream, deadline)) {
            Ok(own) => return Ok(own),
            Err(error) => last = error,
        }
    }
    Err(refused(last))
}

/// Any message of its protocol will do. Silence until `deadline`, and every other answer, is an error.
fn answers(mut stream: TcpStream, deadline: Instant) -> std::io::Result<IpAddr> {
    let left = deadline.saturating_duration_since(Instant::now());
    stream.set_read_timeout(Some(left.max(ANSWER_MIN)))?;
    stream.write_all(&NO_SUCH_FUNCTION)?;
    let mut first = [0];
    match stream.read(&mut first) {
        Ok(1) if first == [MAGIC] => Ok(stream.local_addr()?.ip()),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Err(std::io::Error::new(
            ErrorKind::TimedOut,
            "something listens there and does not answer",
        )),
        _ => Err(std::io::Error::new(
            ErrorKind::InvalidData,
            "what listens there is no Mooncake master",
        )),
    }
}

fn set_up(py: Python<'_>, settings: &Settings, hostname: &str) -> Result<Connected, OpenError> {
    let module = py.import("mooncake.store").map_err(|error| missing(py, error))?;
    let failed = |error: PyErr| {
        let message = format!("Mooncake's Python module could not be used: {error}");
        unavailable(message, Some(Box::new(error)))
    };
    set_variables(py).map_err(failed)?;
    let store = module.call_method0("MooncakeDistributedStore").map_err(failed)?;
    let protocol = match settings.protocol {
        Protocol::Tcp => "tcp",
        Protocol::Rdma => "rdma",
    };
    let arguments = (
        hostname,
        &settings.metadata,
        settings.segment_bytes,
        settings.local_buffer_bytes,
        protocol,
        &settings.device,
        &settings.master,
    );
    let code: i64 = store
        .call_method1("setup", arguments)
        .and_then(|code| code.extract())
        .map_err(failed)?;
    if code != 0 {
        return Err(unavailable(refused_set_up(code, settings, protocol, hostname), None));
    }
    let replication = replication(&module, settings.pin).map_err(failed)?;
    Ok(Connected {
        store: store.unbind(),
        replication: replication.unbind(),
        module: module.into_any().unbind(),
    })
}

fn missing(py: Python<'_>, error: PyErr) -> OpenError {
    let absent = error.is_instance_of::<PyModuleNotFoundError>(py);
    let message = if absent || !error.is_instance_of::<PyImportError>(py) {
        format!("Mooncake's Python module can't be imported ({error}); {INSTALL}")
    } else {
        format!("Mooncake's Python module does not load ({error}); {LIBRARIES}")
    };
    unavailable(message, Some(Box::new(error)))
}

fn refused_set_up(code: i64, settings: &Settings, protocol: &str, hostname: &str) -> String {
    let needed = settings.segment_bytes.saturating_add(settings.local_buffer_bytes);
    if settings.protocol == Protocol::Rdma
        && let Some(limit) = limits::memlock_bytes().filter(|limit| *limit < needed)
    {
        return format!(
            "Mooncake's set-up failed with code {code}: locked memory is limited to {limit} bytes (ulimit -l) and this process lacks CAP_IPC_LOCK; \
             segment and local_buffer need {needed} bytes: raise the limit, or lower them"
        );
    }
    format!(
        "Mooncake's set-up failed with code {code} (master {}, metadata {}, protocol {protocol}, device {:?}, local_hostname {hostname}, \
         segment {}, local_buffer {}); see what it wrote to stderr: a wrong metadata address, an unknown device, locked memory too low \
         ({}) and a segment that the machine can't hold end like this",
        settings.master,
        settings.metadata,
        settings.device,
        settings.segment_bytes,
        settings.local_buffer_bytes,
        locked_memory()
    )
}

/// How much of it this process may have, in words.
fn locked_memory() -> String {
    match limits::memlock_bytes() {
        Some(limit) => format!("locked memory is limited to {limit} bytes: ulimit -l"),
        None => "locked memory is not limited here".to_owned(),
    }
}

/// Mooncake's -600 to a registration says nothing of why.
pub(super) fn refused_registration(registered: u64) -> String {
    let what_to_do = match limits::memlock_bytes() {
        Some(_) => "raise that limit, or lower max_bytes",
        None => "see what Mooncake wrote to stderr, or lower max_bytes",
    };
    let limit = locked_memory();
    format!("Mooncake refused to register the memory ({limit}; {registered} bytes are registered): {what_to_do}")
}

fn set_variables(py: Python<'_>) -> PyResult<()> {
    let environment = py.import("os")?.getattr("environ")?;
    for variable in VARIABLES {
        environment.call_method1("setdefault", variable)?;
    }
    Ok(())
}

fn replication<'py>(module: &Bound<'py, PyModule>, pin: Pin) -> PyResult<Bound<'py, PyAny>> {
    let replication = module.call_method0("ReplicateConfig")?;
    match pin {
        Pin::Hard => replication.setattr("with_hard_pin", true)?,
        Pin::Soft => replication.setattr("with_soft_pin", true)?,
        Pin::None => {}
    }
    Ok(replication)
}

fn unavailable(message: String, source: Option<Box<dyn std::error::Error + Send + Sync>>) -> OpenError {
    OpenError::Unavailable { message, source }
}
