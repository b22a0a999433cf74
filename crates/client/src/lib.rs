//! tensorlease moves tensors between the processes of an RL post-training job (rollout, reward, reference, trainer)
//! through a store. A read lands in memory that was registered with the transport once and is reused: each value owns its
//! lease of a block, and gives it back when it is dropped.
//!
//! ```
//! use std::sync::Arc;
//! use tensorlease::{DType, Expected, Options, Patience, PutItem, ReadItem, ReadRequest, Store, TensorSpec};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = Store::open("embedded://?capacity=64MiB", &Options::default())?;
//! let spec = Arc::new(TensorSpec::new(DType::F32, &[4, 8])?);
//! let bytes: Vec<u8> = (0..32).flat_map(|value| (value as f32).to_le_bytes()).collect();
//! store.put(vec![PutItem::tensor("step0/logprobs", Arc::clone(&spec), bytes.clone())], Patience::default())?;
//!
//! let items = vec![ReadItem { key: "step0/logprobs".into(), expected: Expected::Tensor(spec) }];
//! let mut output = store.get(ReadRequest { items, delivery: Some(tensorlease::Delivery::Leased), ..Default::default() }, Patience::default())?;
//! let lease = output.values.remove(0).buffer.expect("a tensor with elements has bytes");
//! assert_eq!(&lease[..], &bytes[..]);
//! assert!(store.stats().get("leased_bytes") >= 128.0);
//! drop(lease);
//! assert_eq!(store.stats().get("leased_bytes"), 0.0);
//! # Ok(()) }
//! ```
//!
//! Start at [`Store`]. What a read may ask for is in [`ReadRequest`], how bytes arrive in [`Delivery`], the limits in
//! [`Options`].
#![forbid(unsafe_code)]

mod dtype;
mod error;
mod options;
mod patience;
mod request;
mod spec;
mod stats;

mod accounts;
mod calls;
mod close;
mod held;
mod keys;
mod life;
mod open;
mod parts;
mod per_call;
mod read;
mod retrying;
mod store;
mod terms;
mod url;
mod workers;
mod write;

pub use dtype::{DType, UnknownDType};
pub use error::{CallError, FallbackKind, KeyFailure, OpenError, QueryError, ReadError, RemoveError, WriteError};
pub use options::{Delivery, Options, parse_bytes};
pub use patience::Patience;
pub use read::ValueView;
pub use request::{
    Described, Expected, ObjectKind, PutItem, PutMode, ReadItem, ReadOutput, ReadRequest, ReadValue, Segment,
};
pub use spec::{SpecError, TensorSpec};
pub use stats::Stats;
pub use store::Store;
pub use tensorlease_engine as engine;
pub use tensorlease_memory::{Buffer, CallerMemory, ForkPolicy, View};
pub use url::StoreUrl;
