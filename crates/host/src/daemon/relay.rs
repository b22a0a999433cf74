//! The engine behind a daemon: clients name bytes of their extents, and it moves them.
use super::extent::{Extent, Outside, Quarantine};
use super::holdings::Foreign;
use super::lock_of;
use super::session::Session;
use crate::wire::{self, Claims, FAILURE_BYTES_MAX, Failure, Fetch, Known, LIST_MAX, Span, Store};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;
use tensorlease_engine::{Capabilities, Engine, Fault, FaultKind, ObjectInfo, ReadOp, Tag, WriteOp};
use tensorlease_memory::{Region, Source};

/// How to relay.
#[derive(Clone)]
pub struct Behind {
    /// Runs every transfer, in and out of the daemon's own memory. The daemon closes it when it stops.
    pub engine: Arc<dyn Engine>,
    /// Bytes of extents that may be kept because the engine may still write in them though their clients are gone. Past it no transfer is begun.
    pub quarantine_bytes: u64,
    /// A daemon that stops waits so long for the engine to close: a call on it can't be interrupted.
    pub close_timeout: Duration,
}

impl std::fmt::Debug for Behind {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Behind")
            .field("engine", &self.engine.capabilities().name)
            .field("quarantine_bytes", &self.quarantine_bytes)
            .field("close_timeout", &self.close_timeout)
            .finish()
    }
}

/// Runs the transfers of all clients.
pub(super) struct Relay {
    behind: Behind,
    pub(super) quarantine: Quarantine,
    /// Longest extent, bytes.
    registration_bytes_max: u64,
    closed: Mutex<Option<bool>>,
    closed_changed: Condvar,
    closing: AtomicBool,
}

/// The client asked for what none asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Absurd(pub(super) &'static str);

impl From<Foreign> for Absurd {
    fn from(_: Foreign) -> Self {
        Self("it named an extent that is not its own")
    }
}

impl From<Outside> for Absurd {
    fn from(_: Outside) -> Self {
        Self("it named bytes that its extent does not have, or none")
    }
}

impl Relay {
    pub(super) fn new(behind: Behind, registration_bytes_max: u64) -> Self {
        Self {
            behind,
            quarantine: Quarantine::default(),
            registration_bytes_max,
            closed: Mutex::new(None),
            closed_changed: Condvar::new(),
            closing: AtomicBool::new(false),
        }
    }

    pub(super) fn engine(&self) -> &dyn Engine {
        &*self.behind.engine
    }

    pub(super) fn claims(&self) -> Claims<'_> {
        let claimed = self.engine().capabilities();
        Claims {
            name: claimed.name,
            registration_bytes_max: self.registration_bytes_max,
            batch_keys_max: u32::try_from(keys_max(claimed)).unwrap_or(u32::MAX),
            batch_bytes_max: claimed.batch_bytes_max,
            readers_worth: u32::try_from(claimed.readers_worth).unwrap_or(u32::MAX),
            large_read_bytes_min: claimed.large_read_bytes_min,
            large_write_bytes_min: claimed.large_write_bytes_min,
            evicts: claimed.evicts,
            others_make_room: claimed.others_make_room,
            describes: claimed.describes,
        }
    }

    pub(super) fn fetch(&self, session: &Session, reads: &[Fetch<'_>]) -> Result<Vec<Result<u64, Fault>>, Absurd> {
        let spans: Vec<&Span> = reads.iter().map(|read| &read.to).collect();
        let extents = self.extents(session, reads.len(), &spans)?;
        let tags: Vec<Option<Tag>> = reads.iter().map(|read| read.tag.map(Tag::new)).collect();
        let mut ops = Vec::with_capacity(reads.len());
        for ((read, extent), tag) in reads.iter().zip(&extents).zip(&tags) {
            ops.push(ReadOp {
                key: named(read.key)?,
                offset: read.offset,
                target: extent.target(&read.to)?,
                object_len: read.object_len,
                tag: tag.as_ref(),
                by_transport: read.by_transport,
            });
        }
        let bytes = spans.iter().map(|span| span.len).sum();
        let results = self.run(session, ops.len(), bytes, || self.engine().read_batch(&ops));
        for ((extent, span), result) in extents.iter().zip(&spans).zip(&results) {
            match result {
                Ok(len) => session.count_read(*len),
                Err(fault) => self.keep_if_late(session, extent, span, fault),
            }
        }
        Ok(results)
    }

    pub(super) fn store(&self, session: &Session, writes: &[Store<'_>]) -> Result<Vec<Result<u64, Fault>>, Absurd> {
        let spans: Vec<&Span> = writes.iter().flat_map(|write| &write.from).collect();
        let extents = self.extents(session, writes.len(), &spans)?;
        let sources: Result<Vec<Source<'_>>, Outside> = extents
            .iter()
            .zip(&spans)
            .map(|(extent, span)| extent.source(span))
            .collect();
        let sources = sources?;
        let tags: Vec<Tag> = writes.iter().map(|write| Tag::new(write.tag)).collect();
        let mut ops = Vec::with_capacity(writes.len());
        let mut end = 0;
        for (write, tag) in writes.iter().zip(&tags) {
            let start = end;
            end += write.from.len();
            if start == end {
                return Err(Absurd("it wrote an object without bytes"));
            }
            ops.push(WriteOp {
                key: named(write.key)?,
                segments: &sources[start..end],
                tag,
            });
        }
        let bytes = spans.iter().map(|span| span.len).sum();
        let results = self.run(session, ops.len(), bytes, || self.engine().write_batch(&ops));
        let mut at = 0;
        for (write, result) in writes.iter().zip(&results) {
            let of = at..at + write.from.len();
            at = of.end;
            match result {
                Ok(()) => session.count_written(write.from.iter().map(|span| span.len).sum()),
                Err(fault) => of.for_each(|at| self.keep_if_late(session, &extents[at], spans[at], fault)),
            }
        }
        Ok(results.into_iter().map(|result| result.map(|()| 0)).collect())
    }

    /// The extent of each span, within the bounds of what the engine takes at once.
    fn extents(&self, session: &Session, keys: usize, spans: &[&Span]) -> Result<Vec<Arc<Extent>>, Absurd> {
        let claimed = self.engine().capabilities();
        let bytes = spans.iter().try_fold(0_u64, |sum, span| sum.checked_add(span.len));
        if keys_max(claimed) < keys || bytes.is_none_or(|bytes| 1 < keys && claimed.batch_bytes_max < bytes) {
            return Err(Absurd("it asked for more at once than the engine takes"));
        }
        let holdings = session.holdings();
        let extents: Result<Vec<_>, Foreign> = spans.iter().map(|span| holdings.extent(span.ticket)).collect();
        Ok(extents?)
    }

    /// One call of the engine, whose promises are not taken on trust: whatever does not come back as it should may still write.
    fn run<T>(
        &self,
        session: &Session,
        keys: usize,
        bytes: u64,
        call: impl FnOnce() -> Vec<Result<T, Fault>>,
    ) -> Vec<Result<T, Fault>> {
        let late = self.quarantine.late_bytes();
        if self.behind.quarantine_bytes < late {
            let message = format!(
                "{late} bytes of the host's arena are kept because transfers of clients that are gone may still write there, \
                 more than the {} that are allowed; restart the daemon",
                self.behind.quarantine_bytes
            );
            return refused(keys, &Fault::new(FaultKind::Unavailable, 0, message));
        }
        let _running = session.transferring(bytes);
        let broken = |message| refused(keys, &Fault::new(FaultKind::MayStillWrite, 0, message));
        match catch_unwind(AssertUnwindSafe(call)) {
            Ok(results) if results.len() == keys => results,
            Ok(_) => broken("the engine behind the daemon answered for other keys than were asked"),
            Err(_) => broken("the engine behind the daemon panicked"),
        }
    }

    fn keep_if_late(&self, session: &Session, extent: &Arc<Extent>, span: &Span, fault: &Fault) {
        if fault.kind == FaultKind::MayStillWrite {
            session.count_late(span.len);
            self.quarantine.keep(extent);
        }
    }

    /// Ends the engine, in a thread of its own, for a call on it may hang. `regions`: what was registered, if no transfer runs any more.
    pub(super) fn begin_to_close(self: &Arc<Self>, regions: Vec<Region>) {
        if self.closing.swap(true, Ordering::AcqRel) {
            return;
        }
        let relay = Arc::clone(self);
        let close = move || {
            let closed = catch_unwind(AssertUnwindSafe(|| relay.close(&regions))).unwrap_or(false);
            *lock_of(&relay.closed) = Some(closed);
            relay.closed_changed.notify_all();
        };
        let spawned = std::thread::Builder::new()
            .name("tensorlease-close".to_owned())
            .spawn(close);
        if let Err(error) = spawned {
            log::error!("no thread to close the engine in: {error}");
        }
    }

    fn close(&self, regions: &[Region]) -> bool {
        let name = self.engine().capabilities().name;
        if !self.quarantine.is_late() {
            for region in regions {
                if let Err(error) = self.engine().unregister(*region) {
                    log::warn!("cannot unregister {} bytes: {error}", region.len);
                }
            }
        }
        match self.engine().close() {
            Ok(()) => {
                self.quarantine.end();
                true
            }
            Err(error) => {
                log::warn!("the {name} engine did not close: {error}");
                false
            }
        }
    }

    pub(super) fn close_timeout(&self) -> Duration {
        self.behind.close_timeout
    }

    /// Has the engine closed? Waits for that, at most so long.
    pub(super) fn has_closed(&self, timeout: Duration) -> bool {
        let closed = lock_of(&self.closed);
        let waited = self
            .closed_changed
            .wait_timeout_while(closed, timeout, |closed| closed.is_none());
        let (closed, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *closed == Some(true)
    }
}

/// Most keys of one message.
fn keys_max(claimed: &Capabilities) -> usize {
    claimed.batch_keys_max.min(LIST_MAX)
}

fn named(key: &str) -> Result<&str, Absurd> {
    if key.is_empty() {
        return Err(Absurd("it named an object without a key"));
    }
    Ok(key)
}

fn refused<T>(keys: usize, fault: &Fault) -> Vec<Result<T, Fault>> {
    (0..keys).map(|_| Err(fault.clone())).collect()
}

/// A fault as it is sent; a message that is too long is cut.
pub(super) fn failure(fault: &Fault) -> Failure<'_> {
    let message = &*fault.message;
    Failure {
        kind: fault.kind,
        code: fault.code,
        message: &message[..cut(message, FAILURE_BYTES_MAX)],
    }
}

pub(super) fn known(info: &ObjectInfo) -> Known<'_> {
    Known {
        len: info.len,
        version: info.version,
        tag: info
            .tag
            .as_ref()
            .map(Tag::as_bytes)
            .filter(|tag| tag.len() <= wire::TAG_BYTES_MAX),
    }
}

/// The last place up to `most` where a text may be cut.
fn cut(text: &str, most: usize) -> usize {
    let mut at = most.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}
