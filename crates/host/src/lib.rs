//! One arena per host: the daemon that owns it, its protocol, and the engine that its clients use.
//!
//! - [`wire`]: the messages as bytes, and what is refused among bytes of unknown origin;
//! - [`Daemon`]: owns the memory and the index of the objects, and knows what each client holds;
//! - [`HostEngine`]: the client's side, an engine like any other. It moves the bytes itself, between its memory and the
//!   daemon's;
//! - [`SocketPath`]: where a host's daemon listens.
#![forbid(unsafe_code)]
mod client;
mod daemon;
mod descriptors;
mod place;
mod socket;
mod watch;
pub mod wire;

pub use client::{ConnectError, HostEngine, HostReport, WELCOME_MAX};
pub use daemon::{Behind, Daemon, DaemonOptions, StartError};
pub use place::{Holder, PlaceError, SocketPath};
