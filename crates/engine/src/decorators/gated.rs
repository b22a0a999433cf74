//! An engine whose calls wait until a test lets them through.
use crate::forward;
use crate::{Capabilities, Engine};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Opens and shuts a [`Gated`] engine. Clones are handles of the same gate.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<GateState>);

#[derive(Debug, Default)]
struct GateState {
    place: Mutex<Place>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Place {
    shut: bool,
    waiting: usize,
}

impl Gate {
    /// An open gate.
    pub fn new() -> Self {
        Self::default()
    }

    /// From now on calls wait. Calls that passed already are not held.
    pub fn shut(&self) {
        self.change(|place| place.shut = true);
    }

    /// Waiting calls go on, later ones pass.
    pub fn open(&self) {
        self.change(|place| place.shut = false);
    }

    /// Calls that wait now.
    pub fn waiting(&self) -> usize {
        self.place().waiting
    }

    /// Blocks until at least `calls` calls wait. False: they did not within `limit`.
    pub fn wait_for_waiting(&self, calls: usize, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        let mut place = self.place();
        while place.waiting < calls {
            let Some(left) = end.checked_duration_since(Instant::now()) else {
                return false;
            };
            let woken = self.0.changed.wait_timeout(place, left);
            place = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    fn pass(&self) {
        let mut place = self.place();
        if !place.shut {
            return;
        }
        place.waiting += 1;
        self.0.changed.notify_all();
        while place.shut {
            place = self.0.changed.wait(place).unwrap_or_else(PoisonError::into_inner);
        }
        place.waiting -= 1;
        self.0.changed.notify_all();
    }

    fn change(&self, change: impl FnOnce(&mut Place)) {
        change(&mut self.place());
        self.0.changed.notify_all();
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        self.0.place.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Every call on objects waits while the gate is shut. Registrations, `stats` and `close` do not.
pub struct Gated {
    inner: Arc<dyn Engine>,
    capabilities: Capabilities,
    gate: Gate,
}

impl Gated {
    /// An engine behind `gate`. It no longer claims to be `prompt`.
    pub fn new(inner: Arc<dyn Engine>, gate: Gate) -> Self {
        let mut capabilities = inner.capabilities().clone();
        capabilities.prompt = false;
        Self {
            inner,
            capabilities,
            gate,
        }
    }

    fn pass(&self) {
        self.gate.pass();
    }
}

impl Engine for Gated {
    forward!(register, unregister, asides, close);
    forward!(@ objects_after pass);

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }
}
