//! What a `mooncake://` URL says.
use std::time::Duration;
use tensorlease::{OpenError, StoreUrl, parse_bytes};
use tensorlease_memory::limits;

const OPTIONS: &str = "protocol, device, metadata, local_hostname, segment, local_buffer, pin, pool, share, force, connect_timeout, faults";
/// The default, then how addresses of metadata servers begin.
const METADATA: [&str; 5] = ["P2PHANDSHAKE", "http://", "https://", "etcd://", "redis://"];
const LOCAL_BUFFER_BYTES: u64 = 256 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Mooncake takes no smaller local buffer, and no smaller segment, but 0.
const LOCAL_BUFFER_BYTES_MIN: u64 = 1 << 10;
const SEGMENT_BYTES_MIN: u64 = 16 << 20;

/// Transport between the processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Tcp,
    Rdma,
}

/// Whether Mooncake may evict what this process writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pin {
    Hard,
    Soft,
    None,
}

/// Part of the local buffer that one reader may lease, with `pool=store`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Share {
    /// Half of an equal split: the rest is left to Mooncake's own staging.
    Half,
    /// An equal split: a quarter of the buffer with four readers.
    Quarter,
    /// All of it, to see how a reader starves itself.
    Full,
}

impl Share {
    /// Bytes of it, of a local buffer of `bytes` that `readers` share.
    pub(super) fn of(self, bytes: u64, readers: u32) -> u64 {
        match self {
            Self::Half => bytes / (2 * u64::from(readers)),
            Self::Quarter => bytes / u64::from(readers),
            Self::Full => bytes,
        }
    }
}

/// A `mooncake://` URL, checked.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// `host:port` of the master.
    pub(super) master: String,
    pub(super) protocol: Protocol,
    pub(super) device: String,
    pub(super) metadata: String,
    pub(super) local_hostname: Option<String>,
    pub(super) segment_bytes: u64,
    pub(super) local_buffer_bytes: u64,
    pub(super) pin: Pin,
    /// `pool=store`.
    pub(super) store_pool: Option<Share>,
    /// The pool also where registration costs nothing.
    pub(super) force: bool,
    pub(super) connect_timeout: Duration,
    pub(super) faults: Option<String>,
}

impl Settings {
    pub(super) fn from_url(mut url: StoreUrl) -> Result<Self, OpenError> {
        let port = url.host.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
        if !matches!(port, Some(Ok(1..))) || url.host.starts_with(':') {
            return Err(config(format!(
                "mooncake://{}: name the master as HOST:PORT, for example mooncake://127.0.0.1:50051",
                url.host
            )));
        }
        let protocol = choice(
            &mut url,
            "protocol",
            &[("tcp", Protocol::Tcp), ("rdma", Protocol::Rdma)],
        )?;
        let pins = [("hard", Pin::Hard), ("soft", Pin::Soft), ("none", Pin::None)];
        let shares = [
            ("half", Share::Half),
            ("quarter", Share::Quarter),
            ("full", Share::Full),
        ];
        let store = choice(&mut url, "pool", &[("own", false), ("store", true)])?;
        let share = url.take("share");
        let forced = url.take("force");
        if !store && (share.is_some() || forced.is_some()) {
            return Err(config(
                "share and force belong to pool=store; write pool=store, or leave them out".to_owned(),
            ));
        }
        let settings = Self {
            master: url.host.clone(),
            protocol,
            device: url.take("device").unwrap_or_default(),
            metadata: metadata(&mut url)?,
            local_hostname: url.take("local_hostname"),
            segment_bytes: size(&mut url, "segment", 0, SEGMENT_BYTES_MIN)?,
            local_buffer_bytes: size(&mut url, "local_buffer", LOCAL_BUFFER_BYTES, LOCAL_BUFFER_BYTES_MIN)?,
            pin: choice(&mut url, "pin", &pins)?,
            store_pool: store.then(|| one_of("share", share, &shares)).transpose()?,
            force: one_of("force", forced, &[("0", false), ("1", true)])?,
            connect_timeout: timeout(&mut url)?,
            faults: url.take("faults"),
        };
        if store && settings.local_buffer_bytes == 0 {
            return Err(config(
                "pool=store leases from the local buffer; give local_buffer more than 0".to_owned(),
            ));
        }
        url.finish(OPTIONS)?;
        check_memory(&settings)?;
        Ok(settings)
    }
}

/// Mooncake takes any other text for the address of an etcd server, and freezes Python for 10 s on it.
fn metadata(url: &mut StoreUrl) -> Result<String, OpenError> {
    let metadata = url.take("metadata").unwrap_or_else(|| METADATA[0].to_owned());
    let known = metadata == METADATA[0] || METADATA[1..].iter().any(|scheme| metadata.starts_with(scheme));
    if known {
        return Ok(metadata);
    }
    Err(config(format!(
        "metadata={metadata:?} is unknown; allowed are {} and addresses that start with {}",
        METADATA[0],
        METADATA[1..].join(", ")
    )))
}

/// More than the machine has ends in Mooncake as an exception without a name.
fn check_memory(settings: &Settings) -> Result<(), OpenError> {
    let Some(available) = limits::available_bytes() else {
        return Ok(());
    };
    let asked = [
        ("segment", settings.segment_bytes),
        ("local_buffer", settings.local_buffer_bytes),
    ];
    match asked.into_iter().find(|(_, bytes)| available < *bytes) {
        Some((name, bytes)) => Err(config(format!(
            "{name}={bytes} is more than the {available} bytes that this machine (or its cgroup) has left; lower it"
        ))),
        None => Ok(()),
    }
}

/// An option out of names; the first is the default.
fn choice<T: Copy>(url: &mut StoreUrl, option: &str, allowed: &[(&str, T)]) -> Result<T, OpenError> {
    let text = url.take(option);
    one_of(option, text, allowed)
}

fn one_of<T: Copy>(option: &str, text: Option<String>, allowed: &[(&str, T)]) -> Result<T, OpenError> {
    let Some(text) = text else { return Ok(allowed[0].1) };
    let found = allowed.iter().find(|(name, _)| *name == text);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<&str> = allowed.iter().map(|(name, _)| *name).collect();
        config(format!(
            "{option}={text:?} is unknown; allowed are {}",
            names.join(", ")
        ))
    })
}

fn size(url: &mut StoreUrl, option: &str, default: u64, least: u64) -> Result<u64, OpenError> {
    let Some(text) = url.take(option) else {
        return Ok(default);
    };
    let bytes = parse_bytes(&text).map_err(|error| config(format!("{option}: {error}")))?;
    if 0 < bytes && bytes < least {
        return Err(config(format!(
            "{option}={bytes} is too small; give 0, or {least} bytes and more"
        )));
    }
    Ok(bytes)
}

fn timeout(url: &mut StoreUrl) -> Result<Duration, OpenError> {
    let Some(text) = url.take("connect_timeout") else {
        return Ok(CONNECT_TIMEOUT);
    };
    let seconds = text.parse::<f64>().ok().filter(|seconds| 0.0 < *seconds);
    seconds
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| config(format!("connect_timeout={text:?}: give seconds, more than 0")))
}

pub(super) fn config(message: String) -> OpenError {
    OpenError::Config { message }
}
