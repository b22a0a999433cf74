//! The daemon's threads.
use std::io;
use std::thread::JoinHandle;

/// A thread that serves a client holds a few buffers on its heap and little on its stack.
pub(super) const STACK_BYTES: usize = 256 << 10;
/// The code of an engine may need more.
pub(super) const ENGINE_STACK_BYTES: usize = 4 << 20;

pub(super) fn spawn(
    name: impl Into<String>,
    stack_bytes: usize,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let thread = std::thread::Builder::new().name(name.into()).stack_size(stack_bytes);
    thread.spawn(work)
}
