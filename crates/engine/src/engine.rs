//! The contract between client and engine.
use crate::{Capabilities, CloseError, Fault, RegisterError, Staging, Tag};
use std::sync::Arc;
use tensorlease_memory::{Region, SlabSource, Source, Target, View};

/// What holds the objects (key to bytes), and moves them.
///
/// The rules below are the whole contract. Each names the checks of the conformance suite that
/// prove it; a claim in [`Capabilities`] is tested where it is made.
///
/// 1. **Results.** Every `*_batch` returns exactly one result per key, in the order of the keys. An empty call returns
///    no results. (`results_come_in_the_order_of_the_keys`, `empty_calls_return_nothing`)
/// 2. **Reads.** `Ok(n)` of a read: exactly the first `n` bytes of the target were written. A complete read has `n ==
///    target.len()`; the client treats anything else as a mismatch and hands nothing out. Targets may begin at any
///    address. The bytes come from `offset` on, and a range past the end is `Mismatch` or
///    `Refused`. (`objects_of_every_size_come_back`, `targets_may_be_unaligned_and_tightly_packed`,
///    `ranges_come_from_their_offset`, `ranges_past_the_end_are_refused`)
/// 3. **Identity.** A read whose object has another size than `object_len` is `Mismatch`; so is one whose tag differs, where
///    `describes` is claimed. An engine that describes checks size and tag of the very object that it copies, also while
///    it is replaced. (`another_size_is_a_mismatch`, `another_tag_is_a_mismatch`, `no_tag_asked_means_any_tag`)
/// 4. **Isolation.** A failed key leaves the other keys of its call unaffected, and no transfer touches a byte outside
///    its target. (`a_missing_key_leaves_the_others_unaffected`, `neighbours_of_targets_stay_untouched`)
/// 5. **Time.** Memory is touched only while the call runs, except that of a key which ended with `MayStillWrite`: it may
///    be written until `close` returned, so the caller keeps it mapped and unused until then. Only engines that claim
///    `late_writes` return it. (`targets_stay_as_they_are_after_the_call`)
/// 6. **Registration.** `Required`: a transfer whose memory is not inside one registration ends with `Unregistered`, and
///    nothing was moved; `register` refuses memory that overlaps a registration (`Overlap`) or is larger than
///    `registration_bytes_max` (`TooLarge`); `unregister` takes exactly a registered region, else `Unknown`. `Free`: any
///    memory does, and `register` succeeds at no cost. The caller unregisters no memory of a running transfer.
///    (`unregistered_memory_is_refused_and_untouched`, `registrations_are_checked`, `free_registration_takes_any_memory`)
/// 7. **Writes.** After `Ok`, every later call from any thread sees the new object: its segments one after the other,
///    with its tag. The old object, of whatever size, is gone, and its memory free. After a failure the old object is still there, whole (without
///    `describes` it may be gone).
///    With `describes` a concurrent reader sees the old object or the new one, never a mixture; without it the read may
///    be `Transient`, or a mixture: then nobody replaces a key that may be read. (`written_segments_are_gathered`, `a_replace_may_change_the_size`, `a_replace_is_atomic`, `a_replace_that_does_not_fit_keeps_the_old_object`,
///    `replaces_by_another_size_give_the_memory_back`)
/// 8. **Removal.** `Ok(true)`: the object was there and is gone. `Ok(false)`: there was none. `remove_prefix` removes every
///    object whose key starts with the prefix and returns how many there were. A removal never disturbs a running read: it
///    ends whole or `NotFound` (or `Transient`, without `describes`). (`removed_objects_are_gone`, `removing_a_missing_key_is_false`, `a_prefix_removes_its_keys_only`)
/// 9. **Questions.** `contains_batch` and `describe_batch` agree with the writes and removals that ended before. A replaced
///    object has another version. Without `describes`, `describe_batch` is `Refused`. (`contains_agrees_with_writes`,
///    `describe_knows_size_and_tag`, `a_replaced_object_has_another_version`)
/// 10. **Keys.** Any string of 1 to 10,000 characters, NUL and non-ASCII included, compared byte by byte.
///     (`odd_keys_are_keys`)
/// 11. **Limits.** Up to `batch_keys_max` keys and `batch_bytes_max` bytes go in one call; one key alone may be larger.
///     Duplicate keys in one call, zero-byte objects and more keys than `batch_keys_max` are never sent; what an engine
///     does with them is its own affair as long as no memory outside the targets is touched. (`a_full_batch_is_served`)
/// 12. **Threads.** Calls may run from several threads at once. (`readers_and_writers_run_concurrently`)
/// 13. **Full.** A write that finds no room is `Full`, and says what was asked and what is there; a full store keeps
///     serving, and takes objects again once some are removed. (`a_full_store_keeps_working`)
/// 14. **Counting.** `stats` counts each `register`, `unregister`, `read_batch` and `write_batch` call once, successful or not,
///     at the engine object itself. Objects are counted where `describes` is claimed; elsewhere they are 0.
///     (`calls_and_objects_are_counted`)
/// 15. **Closing.** `close` waits for running calls and is idempotent. Afterwards every call is `Unavailable` (or
///     `RegisterError::Closed`), the memory of objects is free and all memory unregistered; `capabilities` and `stats` still
///     work. (`close_is_idempotent`, `a_closed_engine_refuses_every_call`, `empty_calls_return_nothing`)
pub trait Engine: Send + Sync {
    /// What this engine claims. Constant.
    fn capabilities(&self) -> &Capabilities;
    /// Makes memory known to the transport (clause 6).
    fn register(&self, region: Region) -> Result<(), RegisterError>;
    /// Ends a registration (clause 6).
    fn unregister(&self, region: Region) -> Result<(), RegisterError>;
    /// Reads objects, or ranges of them, into their targets: the bytes written per key (clauses 1 to 6).
    fn read_batch(&self, reads: &[ReadOp<'_>]) -> Vec<Result<u64, Fault>>;
    /// Creates or replaces objects (clause 7).
    fn write_batch(&self, writes: &[WriteOp<'_>]) -> Vec<Result<(), Fault>>;
    /// Removes objects. `Ok(false)`: there was no such object (clause 8).
    fn remove_batch(&self, keys: &[&str]) -> Vec<Result<bool, Fault>>;
    /// Removes every object whose key starts with `prefix`; returns how many (clause 8).
    fn remove_prefix(&self, prefix: &str) -> Result<u64, Fault>;
    /// Is there such an object (clause 9)?
    fn contains_batch(&self, keys: &[&str]) -> Vec<Result<bool, Fault>>;
    /// `Ok(None)`: no such object. `Refused` where the engine does not describe (clause 9).
    fn describe_batch(&self, keys: &[&str]) -> Vec<Result<Option<ObjectInfo>, Fault>>;
    /// Counters of this engine object (clause 14).
    fn stats(&self) -> EngineStats;
    /// Objects copied out of this very process since open, where the transport would have been the other way.
    fn local_reads(&self) -> u64 {
        0
    }
    /// Bytes of its own memory that transfers which were given up may still use: kept until it is closed.
    fn late_bytes(&self) -> u64 {
        0
    }
    /// What people should know of the way that reads will take, for the line that is logged at open.
    fn remark(&self) -> Option<String> {
        None
    }

    /// Registered memory of its own that it lends for reads. `None`: the client stages in memory of its own.
    fn staging(&self) -> Option<&dyn Staging> {
        None
    }
    /// Objects read where they lie, without a copy. `None`: this engine's memory is out of the client's reach.
    fn views(&self) -> Option<&dyn Views> {
        None
    }
    /// Where the slabs of the client's arena come from. `None`: the client maps its own. Slabs outlive `close` for as long as a lease of them
    /// lives.
    fn slabs(&self) -> Option<Arc<dyn SlabSource>> {
        None
    }
    /// Ends everything (clause 15).
    fn close(&self) -> Result<(), CloseError>;
}

/// What an engine whose objects lie in memory that the client may read can do.
pub trait Views {
    /// One result per key, in the order of the keys. A viewed object stays as it is until its view is dropped, also when it is replaced or removed
    /// meanwhile, and after `close`.
    fn view_batch(&self, keys: &[&str]) -> Vec<Result<Viewed, Fault>>;
}

/// One object, read where it lies.
#[derive(Debug)]
pub struct Viewed {
    /// Its bytes, all of them.
    pub view: View,
    /// What kind of value it is.
    pub tag: Tag,
}

/// One object, or a range of it, into one target.
#[derive(Debug)]
pub struct ReadOp<'a> {
    /// Name of the object.
    pub key: &'a str,
    /// First byte of the object to read.
    pub offset: u64,
    /// Exactly `target.len()` bytes are wanted.
    pub target: Target<'a>,
    /// Size the whole object must have, bytes.
    pub object_len: u64,
    /// Tag the object must have, where the engine describes. None: any.
    pub tag: Option<&'a Tag>,
    /// The bytes must come by the engine's transport, also where the engine could copy them out of this very process: for reads that
    /// stand for what other clients do.
    pub by_transport: bool,
}

impl<'a> ReadOp<'a> {
    /// All of an object that is as long as its target, whatever its tag, by any way.
    pub fn whole(key: &'a str, target: Target<'a>) -> Self {
        Self {
            key,
            offset: 0,
            object_len: target.len() as u64,
            target,
            tag: None,
            by_transport: false,
        }
    }
}

/// One object, gathered from segments (their sum is the object's size, > 0).
#[derive(Clone, Copy, Debug)]
pub struct WriteOp<'a> {
    /// Name of the object.
    pub key: &'a str,
    /// The object's bytes, in order.
    pub segments: &'a [Source<'a>],
    /// What kind of value it is.
    pub tag: &'a Tag,
}

/// What an engine knows about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Size, bytes.
    pub len: u64,
    /// Tag it was written with, where the engine stores tags.
    pub tag: Option<Tag>,
    /// Another number for every object that was ever under a key, where the engine describes: who reads an object in ranges can see
    /// whether it was one object all the time. 0 elsewhere.
    pub version: u64,
}

/// Counted at the engine object itself: what the client claims about itself can be checked here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Calls of `register` since open, refused ones included.
    pub register_calls: u64,
    /// Calls of `unregister` since open, refused ones included.
    pub unregister_calls: u64,
    /// Bytes registered now.
    pub registered_bytes: u64,
    /// Calls of `read_batch` since open.
    pub read_calls: u64,
    /// Calls of `write_batch` since open.
    pub write_calls: u64,
    /// Objects held now.
    pub objects: u64,
    /// Bytes of the objects held now, without padding.
    pub object_bytes: u64,
}
