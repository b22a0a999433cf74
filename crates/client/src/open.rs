//! From a URL to a store.

use crate::{
    Delivery, OpenError, Options, Patience,
    accounts::Accounts,
    calls::Calls,
    held::{Memory, Registrations},
    life::Life,
    options::parse_bytes,
    parts::Parts,
    patience::Wait,
    per_call,
    url::{StoreUrl, config},
};
use std::{
    error::Error,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};
use tensorlease_arena::{Budget, BudgetError, SlabKind};
use tensorlease_engine::{Capabilities, Embedded, EmbeddedOptions, Engine, Registration, chained, decorators};
use tensorlease_host::{ConnectError, HostEngine, SocketPath};
use tensorlease_memory::{CopyMode, ForkPolicy, GrowError, Growth, Mapping, MappingKind, Pool, copy, limits};

/// What an embedded store holds by default, as a part of the machine's memory.
const CAPACITY_PART: u64 = 4;
/// First slab of the copy cache: a store that copies a few small values needs no more.
const COPY_SLAB_BYTES_FIRST: u64 = 4 << 20;
const EMBEDDED_OPTIONS: &str = "capacity, registration, faults";
/// First slab of an arena whose memory is the host's: what this process does not use is for others.
const LENT_SLAB_BYTES_FIRST: u64 = 8 << 20;
/// A probe of what memory costs: large enough that fixed costs don't dominate, small enough to take a few milliseconds.
const PROBE_BYTES: usize = 4 << 20;
/// Probes of each kind.
const PROBES: usize = 3;

/// The engine that a URL names.
pub(crate) fn engine(text: &str) -> Result<Arc<dyn Engine>, OpenError> {
    let mut url = StoreUrl::parse(text)?;
    match url.scheme.as_str() {
        "embedded" => {
            if !url.host.is_empty() {
                return Err(config(format!(
                    "embedded:// takes no host or path, found {:?}; its objects live in this process",
                    url.host
                )));
            }
            let options = embedded_options(&mut url)?;
            let faults = url.take("faults");
            url.finish(EMBEDDED_OPTIONS)?;
            let embedded =
                Embedded::new(&options).map_err(|error| unavailable("the embedded engine did not open", error))?;
            with_faults(faults, Arc::new(embedded))
        }
        "host" => {
            let place = if url.host.is_empty() {
                SocketPath::of_this_user()
            } else {
                SocketPath::new(&url.host)
            };
            let place = place.map_err(|error| config(chained(&error)))?;
            let faults = url.take("faults");
            url.finish("faults")?;
            let host = HostEngine::connect(&place).map_err(|error| no_host(&error))?;
            with_faults(faults, Arc::new(host))
        }
        "mooncake" => Err(config(
            "mooncake:// runs on Mooncake's Python module; open it with the Python package tensorlease".to_owned(),
        )),
        other => Err(config(format!(
            "unknown engine {other:?} in {text:?}; known are embedded://, host:// and mooncake://"
        ))),
    }
}

fn with_faults(faults: Option<String>, engine: Arc<dyn Engine>) -> Result<Arc<dyn Engine>, OpenError> {
    match faults {
        None => Ok(engine),
        Some(spec) => {
            decorators::from_spec(&spec, engine).map_err(|error| config(format!("faults={spec}: {}", chained(&error))))
        }
    }
}

/// The message says what to do: it needs nothing in front of it.
fn no_host(error: &ConnectError) -> OpenError {
    OpenError::Unavailable {
        message: chained(error),
        source: None,
    }
}

fn embedded_options(url: &mut StoreUrl) -> Result<EmbeddedOptions, OpenError> {
    let total = limits::total_bytes();
    let capacity_bytes = match url.take("capacity") {
        Some(text) => parse_bytes(&text).map_err(|error| config(format!("capacity: {error}")))?,
        None => total.map_or(1 << 30, |total| total / CAPACITY_PART),
    };
    if capacity_bytes < limits::page_bytes() as u64 {
        return Err(config(format!(
            "capacity={capacity_bytes} is less than a page of {} bytes",
            limits::page_bytes()
        )));
    }
    if total.is_some_and(|total| total < capacity_bytes) {
        let total = total.unwrap_or(0);
        return Err(config(format!(
            "capacity={capacity_bytes} is more than this machine's (or its cgroup's) {total} bytes"
        )));
    }
    let pinned = match url.take("registration").as_deref() {
        None | Some("none") => false,
        Some("pinned") => true,
        Some(other) => {
            return Err(config(format!(
                "registration={other:?} is unknown; allowed are none and pinned"
            )));
        }
    };
    Ok(EmbeddedOptions { capacity_bytes, pinned })
}

/// Pools, first slab, costs: a store that can read and write.
pub(crate) fn parts(
    engine: Arc<dyn Engine>,
    options: &Options,
    url: &str,
    patience: Patience<'_>,
) -> Result<Arc<Parts>, OpenError> {
    options.check()?;
    let mut budget = budget(options, engine.capabilities())?;
    let lent = engine.slabs();
    if lent.is_some() && options.fork == Some(ForkPolicy::Inherit) {
        return Err(config(format!(
            "fork=\"inherit\" is not possible on {}://: its memory is shared with other processes, which would go on to change it under a forked \
             child; leave fork out, and start processes that read tensors of this one by \"spawn\" (a torch DataLoader: \
             multiprocessing_context=\"spawn\")",
            engine.capabilities().name
        )));
    }
    check_memory(options, lent.is_some())?;
    if lent.is_some() {
        budget.slab_bytes_first = budget.slab_bytes_first.min(LENT_SLAB_BYTES_FIRST);
    }
    let copies = options.copy_cache_bytes.unwrap_or(options.max_bytes / 2);
    let page = limits::page_bytes() as u64;
    let mut copies =
        Budget::new(copies.max(page), page).map_err(|error| config(format!("copy_cache_bytes: {error}")))?;
    copies.slab_bytes_first = copies.slab_bytes_first.min(COPY_SLAB_BYTES_FIRST);
    let arena = match lent {
        Some(source) => Pool::with_source("arena", budget, source),
        None => Pool::new("arena", budget, options.fork.unwrap_or(ForkPolicy::Inherit)),
    };
    // Never left out of a child: copies are ordinary memory, as their users expect.
    let copies = Pool::new("copy cache", copies.without_bounce(), ForkPolicy::Inherit);
    let mut options = options.clone();
    // Without an end of its own `run1` would be the beginning of `run10`, and clearing one would empty both.
    if !options.namespace.is_empty() && !options.namespace.ends_with('/') {
        options.namespace.push('/');
    }
    let (accounts, life) = (Arc::new(Accounts::default()), Arc::new(Life::begin()));
    let calls = Arc::new(Calls::new(engine, options.readers as usize, Arc::clone(&accounts)));
    let quarantine_bytes_max = options.quarantine_bytes.unwrap_or(options.max_bytes);
    let parts = Arc::new(Parts {
        memory: Memory::new((arena, copies), quarantine_bytes_max, &calls, &accounts, &life),
        calls,
        accounts,
        life,
        options,
        url: url.to_owned(),
    });
    let wait = patience.bounded(parts.options.call_timeout);
    first_slabs(&parts, &wait)?;
    measure_costs(&parts, &wait);
    announce(&parts);
    Ok(parts)
}

/// The budget's defaults, with slabs and bounce reserve that fit in one registration each: only a slab for one larger object
/// is made of several.
fn budget(options: &Options, capabilities: &Capabilities) -> Result<Budget, OpenError> {
    let named = |error: &BudgetError| config(format!("max_bytes={}: {error}", options.max_bytes));
    let page = limits::page_bytes() as u64;
    let mut budget = Budget::new(options.max_bytes, page).map_err(|error| named(&error))?;
    if capabilities.registration == Registration::Required {
        let most = (capabilities.registration_bytes_max / page).max(1).saturating_mul(page);
        budget.slab_bytes_first = budget.slab_bytes_first.min(most);
        budget.slab_bytes_max = budget.slab_bytes_max.min(most);
        budget.bounce_bytes = budget.bounce_bytes.min(most);
        if let Some(bounce) = options.bounce_bytes.filter(|bounce| most < *bounce) {
            let name = capabilities.name;
            return Err(config(format!(
                "bounce_bytes={bounce} is more than the {most} bytes that the {name} engine registers at once; lower it"
            )));
        }
    }
    match options.bounce_bytes {
        None => Ok(budget),
        Some(bounce) => budget
            .with_bounce(bounce)
            .map_err(|error| config(format!("bounce_bytes={bounce}: {error}"))),
    }
}

/// Before anything is populated: a budget that the machine can't hold would end in the OOM killer, not in an error. Memory that the engine lends is
/// the engine's to check: what is held of it already is missing from what the machine has left.
fn check_memory(options: &Options, lent: bool) -> Result<(), OpenError> {
    let Some(available) = limits::available_bytes() else {
        return Ok(());
    };
    let asked = [
        ("max_bytes", if lent { 0 } else { options.max_bytes }),
        ("copy_cache_bytes", options.copy_cache_bytes.unwrap_or(0)),
    ];
    match asked.into_iter().find(|(_, bytes)| available < *bytes) {
        Some((name, bytes)) => Err(config(format!(
            "{name}={bytes} is more than the {available} bytes that this machine (or its cgroup) has left; lower it"
        ))),
        None => Ok(()),
    }
}

/// The first slab shows at open whether the engine registers memory at all; `prewarm` makes the later ones too, and the bounce reserve where
/// it asks for more than they hold.
fn first_slabs(parts: &Parts, wait: &Wait<'_>) -> Result<(), OpenError> {
    let budget = parts.memory.budget();
    let lease_bytes = budget.lease_bytes();
    let first = budget.slab_bytes_first.min(lease_bytes);
    let prewarm = parts.options.prewarm_bytes;
    // Memory that is shared with other processes is taken when it is needed; nothing has to be registered to find out whether it works.
    let on_demand = parts.memory.lends_slabs();
    let mut made = 0;
    while made < lease_bytes && ((made == 0 && !on_demand) || made < prewarm) {
        let left = lease_bytes - made;
        let missing = prewarm.saturating_sub(made).clamp(first.min(left), left);
        match first_slab(parts, SlabKind::Lease, missing, wait)? {
            0 => break,
            len => made += len,
        }
    }
    if lease_bytes < prewarm {
        first_slab(parts, SlabKind::Bounce, budget.bounce_bytes, wait)?;
    }
    Ok(())
}

/// Bytes of one more slab, made and registered; 0 where the budget allows none.
fn first_slab(parts: &Parts, kind: SlabKind, missing: u64, wait: &Wait<'_>) -> Result<u64, OpenError> {
    let grown = parts.memory.grow(kind, missing, || wait.slice());
    let error = match grown.map_err(|error| unavailable("the arena's first memory did not come", error))? {
        Growth::Made(len) => return Ok(len),
        Growth::NoRoom => return Ok(0),
        Growth::Refused(error) => error,
    };
    let what = match &*error {
        GrowError::Register { source, .. } => {
            let cause = chained(&**source);
            format!("the engine refused to register the arena's first memory: {cause}")
        }
        GrowError::Map { .. } => format!("no memory for the arena; lower max_bytes: {}", chained(&error)),
        other => format!("no memory for the arena: {}", chained(other)),
    };
    Err(OpenError::Unavailable {
        message: what,
        source: Some(Box::new(error)),
    })
}

/// Measures what a copy and a registration cost. Copies are the way to go where an engine refuses the probe, and where it has slabs of its own: such
/// an engine reaches no other memory without a copy, whatever registering it costs.
fn measure_costs(parts: &Arc<Parts>, wait: &Wait<'_>) {
    let claims = parts.calls.claims();
    let measurable = parts.calls.registers() && PROBE_BYTES as u64 <= claims.registration_bytes_max;
    if parts.memory.lends_slabs() || !measurable {
        return;
    }
    // On a thread of its own, like every registration that an open waits for: the engine may take its time, or hang.
    let (at_work, (sender, measured)) = (Arc::clone(parts), mpsc::channel::<()>());
    let measure = move || {
        measure(&at_work);
        drop(sender);
    };
    let thread = thread::Builder::new().name("tensorlease-costs".to_owned());
    if let Err(error) = thread.spawn(measure) {
        log::debug!("what a copy and a registration cost is not measured: {error}");
        return;
    }
    while let Ok(slice) = wait.slice() {
        if measured.recv_timeout(slice) != Err(mpsc::RecvTimeoutError::Timeout) {
            return;
        }
    }
}

fn measure(parts: &Parts) {
    // The best of several: one probe that the scheduler interrupts must not decide for the store's whole life.
    let best = |probe: &dyn Fn() -> Option<Duration>| (0..PROBES).filter_map(|_| probe()).min();
    let registrations = parts.memory.registrations();
    if let (Some(copied), Some(registered)) = (best(&time_copy), best(&|| time_registration(registrations))) {
        parts.accounts.note_copy_is_cheaper(copied <= registered);
        log::debug!("4 MiB of fresh memory: copy {copied:?}, registration {registered:?}");
    }
}

fn time_copy() -> Option<Duration> {
    let source = Mapping::new(MappingKind::Anonymous, PROBE_BYTES).ok()?;
    source.populate().ok()?;
    let start = Instant::now();
    let fresh = Mapping::new(MappingKind::Anonymous, PROBE_BYTES).ok()?;
    fresh.prefault(0..PROBE_BYTES);
    copy(
        source.source(0..PROBE_BYTES),
        &fresh.target(0..PROBE_BYTES),
        CopyMode::Cached,
    );
    drop(fresh);
    Some(start.elapsed())
}

fn time_registration(registrations: &Registrations) -> Option<Duration> {
    let start = Instant::now();
    let fresh = Mapping::new(MappingKind::Anonymous, PROBE_BYTES).ok()?;
    registrations.register(fresh.region()).ok()?;
    registrations.unregister(fresh.region());
    drop(fresh);
    Some(start.elapsed())
}

/// What becomes of a read that names no delivery of its own.
fn path_of_reads(parts: &Parts) -> String {
    let registered = if parts.calls.registers() {
        "slabs registered once"
    } else {
        "no registration needed"
    };
    if let Some(path) = per_call::path_of_reads(parts) {
        return path.to_owned();
    }
    match parts.options.delivery {
        Delivery::Copied => "reads are copied (delivery=copied)".to_owned(),
        Delivery::Auto | Delivery::Leased if parts.memory.budget().lease_bytes() == 0 => {
            "reads are copied: max_bytes leaves nothing beside the bounce reserve".to_owned()
        }
        Delivery::Auto => format!("reads are leased from the arena ({registered}), small values copied"),
        // What `per_call` does has been told above.
        Delivery::Leased | Delivery::RegisterPerCall => format!("reads are leased from the arena ({registered})"),
    }
}

/// Which way reads will take, and why: one line, since it can't be seen from outside.
fn announce(parts: &Parts) {
    let budget = parts.memory.budget();
    let name = parts.calls.claims().name;
    let path = path_of_reads(parts);
    let pool = per_call::remark(parts);
    let remark = parts
        .calls
        .engine()
        .remark()
        .map_or_else(String::new, |remark| format!(", {remark}"));
    log::info!(
        "{name} engine open: {} delivery, {path}{pool}{remark}, arena up to {} bytes (bounce reserve {}), {} readers",
        parts.options.delivery.name(),
        budget.max_bytes,
        budget.bounce_bytes,
        parts.calls.workers().count()
    );
}

fn unavailable(what: &str, error: impl Error + Send + Sync + 'static) -> OpenError {
    OpenError::Unavailable {
        message: format!("{what}: {}", chained(&error)),
        source: Some(Box::new(error)),
    }
}
