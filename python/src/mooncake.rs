//! Mooncake Store as an engine, through its Python module: batched calls from the client's reader threads.
//!
//! Every call lets go of the GIL inside Mooncake, but for the set-up and the closing, which hold it: the address of the
//! master is tried before, so that an absent master freezes nobody. A transfer can't be cancelled and can last 60 s; it
//! then fails and may still write.
mod calls;
mod codes;
mod connect;
mod engine;
mod loans;
mod own_segment;
mod reading;
mod settings;
mod turns;
mod writing;

use engine::Mooncake;
use pyo3::{prelude::*, types::PyWeakrefReference};
use settings::Settings;
use std::{sync::Arc, time::Instant};
use tensorlease::{OpenError, Options, StoreUrl, engine::Engine, engine::decorators};

/// Does a URL name Mooncake?
pub(crate) fn is_named_by(url: &str) -> bool {
    url.starts_with("mooncake://")
}

/// Connects to the cluster that `url` names. Called without the GIL; takes it for the set-up.
pub(crate) fn open(url: &str, options: &Options) -> Result<Arc<dyn Engine>, OpenError> {
    open_with_client(url, options).map(|(engine, _)| engine)
}

/// The same for the daemon of a host, which stages nothing: clients lease from its arena, and the engine writes there.
pub(crate) fn open_behind_a_daemon(url: &str) -> Result<Arc<dyn Engine>, OpenError> {
    if Settings::from_url(StoreUrl::parse(url)?)?.store_pool.is_some() {
        let message =
            "pool=store does not go with a daemon, whose own arena is the pool; leave pool, share and force out";
        return Err(settings::config(message.to_owned()));
    }
    open(url, &Options::default())
}

/// An engine, and a weak reference to Mooncake's client object.
pub(crate) type Opened = (Arc<dyn Engine>, Option<Py<PyWeakrefReference>>);

/// The same, and Mooncake's own client object, for code that calls it itself. The engine alone keeps that object alive.
pub(crate) fn open_with_client(url: &str, options: &Options) -> Result<Opened, OpenError> {
    options.check()?;
    let settings = Settings::from_url(StoreUrl::parse(url)?)?;
    let started = Instant::now();
    let mooncake = Mooncake::connect(&settings, options)?;
    log::debug!("connected to Mooncake in {:?}", started.elapsed());
    let client = mooncake.client();
    let engine: Arc<dyn Engine> = Arc::new(mooncake);
    let Some(spec) = settings.faults else {
        return Ok((engine, client));
    };
    let failing = decorators::from_spec(&spec, Arc::clone(&engine)).map_err(|error| {
        close_quietly(&*engine);
        settings::config(format!("faults={spec}: {error}"))
    })?;
    Ok((failing, client))
}

/// Closes an engine whose store did not open.
pub(crate) fn close_quietly(engine: &dyn Engine) {
    if let Err(error) = engine.close() {
        log::warn!("the {} engine did not close: {error}", engine.capabilities().name);
    }
}
