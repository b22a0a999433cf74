//! A store over an engine that records and checks its calls.

use super::{Checking, Claims, pattern};
use std::{sync::Arc, thread};
use tensorlease::{
    Buffer, Delivery, Options, Patience, PutItem, ReadError, ReadItem, ReadRequest, Store, TensorSpec,
    engine::{
        Engine,
        decorators::{Call, Observing},
    },
};

/// A store whose engine calls can be seen, and are checked when the rig goes.
pub(crate) struct Rig {
    pub(crate) store: Store,
    pub(crate) calls: Arc<Observing>,
    checking: Arc<Checking>,
}

impl Rig {
    /// A store over `engine` as it is.
    pub(crate) fn new(engine: Arc<dyn Engine>, options: &Options) -> Self {
        Self::claiming(engine, Claims::default(), options)
    }

    /// A store over `engine`, which must have its memory registered.
    pub(crate) fn registering(engine: Arc<dyn Engine>, options: &Options) -> Self {
        Self::claiming(engine, Claims::registering(), options)
    }

    /// A store over `engine`, which does not tell what it holds.
    pub(crate) fn describing_nothing(engine: Arc<dyn Engine>, options: &Options) -> Self {
        let claims = Claims {
            describes_not: true,
            ..Claims::default()
        };
        Self::claiming(engine, claims, options)
    }

    /// A store over `engine` with these claims.
    pub(crate) fn claiming(engine: Arc<dyn Engine>, claims: Claims, options: &Options) -> Self {
        let checking = Arc::new(Checking::new(engine, claims));
        let calls = Arc::new(Observing::new(Arc::clone(&checking) as Arc<dyn Engine>));
        let store = Store::with_engine(Arc::clone(&calls) as Arc<dyn Engine>, options).unwrap();
        Self { store, calls, checking }
    }

    /// Stores one value of the pattern of its place in the list per length; keys `k0`, `k1`, ... Returns the bytes.
    pub(crate) fn fill(&self, lens: &[u64]) -> Vec<Vec<u8>> {
        let values: Vec<Vec<u8>> = (0..).zip(lens).map(|(seed, len)| pattern(seed, *len)).collect();
        let items = (0..)
            .zip(&values)
            .map(|(at, value): (usize, _)| PutItem::tensor(format!("k{at}"), spec_of(value), value.clone()));
        self.store.put(items.collect(), Patience::default()).unwrap();
        self.calls.take();
        values
    }

    /// Reads `k0`, `k1`, ... of these lengths.
    pub(crate) fn read(&self, lens: &[u64], delivery: Delivery) -> Result<Vec<Buffer>, ReadError> {
        let items = (0..).zip(lens).map(|(at, len)| tensor_item(&format!("k{at}"), *len));
        self.read_items(items.collect(), delivery, Patience::default())
    }

    /// Reads these items; each has at least one byte.
    pub(crate) fn read_items(
        &self,
        items: Vec<ReadItem>,
        delivery: Delivery,
        patience: Patience<'_>,
    ) -> Result<Vec<Buffer>, ReadError> {
        let request = ReadRequest {
            items,
            delivery: Some(delivery),
            ..ReadRequest::default()
        };
        let output = self.store.get(request, patience)?;
        let buffers = output.values.into_iter().map(|value| value.buffer);
        Ok(buffers.map(|buffer| buffer.expect("a value with bytes")).collect())
    }

    /// Registrations seen by the engine since the rig was filled.
    pub(crate) fn registrations(&self) -> usize {
        self.calls.count(|call| matches!(call, Call::Register(_)))
    }

    /// Promises of the client that it broke so far.
    pub(crate) fn broken(&self) -> Vec<String> {
        self.checking.broken()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if !thread::panicking() {
            assert_eq!(self.checking.broken(), [""; 0], "promises to the engine were broken");
        }
    }
}

/// A vector of bytes under `key`.
pub(crate) fn tensor_item(key: &str, len: u64) -> ReadItem {
    ReadItem::tensor(key, super::bytes_spec(len))
}

fn spec_of(value: &[u8]) -> Arc<TensorSpec> {
    super::bytes_spec(value.len() as u64)
}
