//! From a URL to a store.

use crate::{
    Delivery, OpenError, Options, Patience,
    core::Core,
    options::parse_bytes,
    patience::Wait,
    url::{StoreUrl, config},
};
use std::{error::Error, sync::Arc};
use tensorlease_arena::{Budget, BudgetError, SlabKind};
pub(crate) use tensorlease_engine::chained as chain;
use tensorlease_engine::{Capabilities, Embedded, EmbeddedOptions, Engine, Registration, decorators};
use tensorlease_host::{ConnectError, HostEngine, SocketPath};
use tensorlease_memory::{ForkPolicy, GrowError, Growth, Pool, limits};

/// What an embedded store holds by default, as a part of the machine's memory.
const CAPACITY_PART: u64 = 4;
/// First slab of the copy cache: a store that copies a few small values needs no more.
const COPY_SLAB_BYTES_FIRST: u64 = 4 << 20;
const EMBEDDED_OPTIONS: &str = "capacity, registration, faults";
/// First slab of an arena whose memory is the host's: what this process does not use is for others.
const LENT_SLAB_BYTES_FIRST: u64 = 8 << 20;

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
            let place = place.map_err(|error| config(chain(&error)))?;
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
            decorators::from_spec(&spec, engine).map_err(|error| config(format!("faults={spec}: {}", chain(&error))))
        }
    }
}

/// The message says what to do: it needs nothing in front of it.
fn no_host(error: &ConnectError) -> OpenError {
    OpenError::Unavailable {
        message: chain(error),
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
pub(crate) fn core(
    engine: Arc<dyn Engine>,
    options: &Options,
    url: &str,
    patience: Patience<'_>,
) -> Result<Arc<Core>, OpenError> {
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
    let copies = Budget::new(copies.max(page), page).map_err(|error| config(format!("copy_cache_bytes: {error}")))?;
    let slab_bytes_first = copies.slab_bytes_first.min(COPY_SLAB_BYTES_FIRST);
    let copies = Budget {
        slab_bytes_first,
        ..copies
    };
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
    let core = Arc::new(Core::new(engine, options, url.to_owned(), arena, copies));
    let wait = patience.bounded(core.options.call_timeout);
    first_slabs(&core, &wait)?;
    core.measure_costs(&wait);
    announce(&core);
    Ok(core)
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
fn first_slabs(core: &Arc<Core>, wait: &Wait<'_>) -> Result<(), OpenError> {
    let budget = core.arena.budget();
    let lease_bytes = budget.lease_bytes();
    let first = budget.slab_bytes_first.min(lease_bytes);
    let prewarm = core.options.prewarm_bytes;
    // Memory that is shared with other processes is taken when it is needed; nothing has to be registered to find out whether it works.
    let on_demand = core.lends_slabs;
    let mut made = 0;
    while made < lease_bytes && ((made == 0 && !on_demand) || made < prewarm) {
        let left = lease_bytes - made;
        let missing = prewarm.saturating_sub(made).clamp(first.min(left), left);
        match first_slab(core, SlabKind::Lease, missing, wait)? {
            0 => break,
            len => made += len,
        }
    }
    if lease_bytes < prewarm {
        first_slab(core, SlabKind::Bounce, budget.bounce_bytes, wait)?;
    }
    Ok(())
}

/// Bytes of one more slab, made and registered; 0 where the budget allows none.
fn first_slab(core: &Arc<Core>, kind: SlabKind, missing: u64, wait: &Wait<'_>) -> Result<u64, OpenError> {
    let largest = 1;
    let grown = core.arena.grow(kind, missing, largest, core, || wait.slice());
    let error = match grown.map_err(|error| unavailable("the arena's first memory did not come", error))? {
        Growth::Made(len) => return Ok(len),
        Growth::NoRoom => return Ok(0),
        Growth::Refused(error) => error,
    };
    let what = match &*error {
        GrowError::Register { source, .. } => {
            let cause = chain(&**source);
            format!("the engine refused to register the arena's first memory: {cause}")
        }
        GrowError::Map { .. } => format!("no memory for the arena; lower max_bytes: {}", chain(&error)),
        other => format!("no memory for the arena: {}", chain(other)),
    };
    Err(OpenError::Unavailable {
        message: what,
        source: Some(Box::new(error)),
    })
}

/// What becomes of a read that names no delivery of its own.
fn path_of_reads(core: &Core) -> String {
    let registered = if core.registers() {
        "slabs registered once"
    } else {
        "no registration needed"
    };
    match core.options.delivery {
        Delivery::RegisterPerCall if core.registers() => {
            "each read registers its own memory (delivery=register-per-call)".to_owned()
        }
        Delivery::RegisterPerCall => {
            format!("each read takes memory of its own (delivery=register-per-call, {registered})")
        }
        Delivery::Copied => "reads are copied (delivery=copied)".to_owned(),
        Delivery::Auto if core.lends().is_some() => "reads are copied (the engine lends the memory for it)".to_owned(),
        Delivery::Auto | Delivery::Leased if core.arena.budget().lease_bytes() == 0 => {
            "reads are copied: max_bytes leaves nothing beside the bounce reserve".to_owned()
        }
        Delivery::Auto => format!("reads are leased from the arena ({registered}), small values copied"),
        Delivery::Leased => format!("reads are leased from the arena ({registered})"),
    }
}

/// Which way reads will take, and why: one line, since nobody can see it from outside.
fn announce(core: &Core) {
    let budget = core.arena.budget();
    let name = core.capabilities.name;
    let path = path_of_reads(core);
    let pool = core.lends().map_or_else(String::new, |staging| {
        let limits = staging.limits();
        format!(
            ", copies go through leases of the engine's own pool (up to {} bytes, batches of {} keys)",
            limits.bytes_max, limits.keys_max
        )
    });
    let remark = core
        .engine
        .remark()
        .map_or_else(String::new, |remark| format!(", {remark}"));
    log::info!(
        "{name} engine open: {} delivery, {path}{pool}{remark}, arena up to {} bytes (bounce reserve {}), {} readers",
        core.options.delivery.name(),
        budget.max_bytes,
        budget.bounce_bytes,
        core.readers.count()
    );
}

fn unavailable(what: &str, error: impl Error + Send + Sync + 'static) -> OpenError {
    OpenError::Unavailable {
        message: format!("{what}: {}", chain(&error)),
        source: Some(Box::new(error)),
    }
}
