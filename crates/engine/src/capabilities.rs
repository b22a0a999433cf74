//! What an engine can do and wants: the client plans by it, the conformance suite tests it.

/// Does an engine need to know memory before it transfers to or from it?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registration {
    /// Transfers take any memory; `register` is a no-op that costs nothing.
    Free,
    /// Transfers to or from memory outside a registration are refused with `FaultKind::Unregistered`.
    Required,
}

/// What one engine object claims about itself. Constant from open to close.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Name for logs and messages: "embedded".
    pub name: &'static str,
    /// Whether memory must be registered before a transfer.
    pub registration: Registration,
    /// Largest memory of one registration, bytes.
    pub registration_bytes_max: u64,
    /// Most keys of one read or write call.
    pub batch_keys_max: usize,
    /// Most bytes of one read or write call with more than one key. One key alone may be larger.
    pub batch_bytes_max: u64,
    /// Readers beyond which more bring nothing.
    pub readers_worth: usize,
    /// A read call that moves less gains nothing from being cut for more readers where its objects have 1 MiB or more, in the mean. Bytes; 0:
    /// no more than holds for calls of any objects.
    pub large_read_bytes_min: u64,
    /// The same of a write call.
    pub large_write_bytes_min: u64,
    /// Makes room for new objects by itself, a little later: a write that was `Full` may succeed after a pause.
    pub evicts: bool,
    /// Other clients of the same store remove objects: a write that was `Full` may succeed when one has, so who has time may wait for that.
    pub others_make_room: bool,
    /// Stores tags and knows sizes: `describe_batch` works, reads check tags, and a replace is atomic: a reader sees the old object or the new
    /// one, whole.
    pub describes: bool,
    /// A read that ended with `MayStillWrite` may write its memory until `close` returned.
    pub late_writes: bool,
    /// Calls are local copies that end within milliseconds: they may run on the caller's thread.
    pub prompt: bool,
}
