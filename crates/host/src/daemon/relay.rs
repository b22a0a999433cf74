//! The engine behind a daemon. Clients name bytes of their extents, and the engine moves them.
use super::extent::{Extent, Quarantine};
use super::latch::Latch;
use super::session::Session;
use super::threads::{self, ENGINE_STACK_BYTES};
use super::violation::{ProtocolViolation, violation};
use crate::wire::{
    Claims, Described, FAILURE_BYTES_MAX, Failure, Fetch, LIST_MAX, Span, Store, TAG_BYTES_MAX, beginning,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use tensorlease_engine::{Capabilities, Engine, Fault, FaultKind, ObjectInfo, ReadOp, Tag, WriteOp};
use tensorlease_memory::{Region, Source};

/// How to relay.
#[derive(Clone)]
pub struct Behind {
    /// Runs every transfer, in and out of the daemon's own memory. The daemon closes it when it stops.
    pub engine: Arc<dyn Engine>,
    /// Most bytes of extents that are kept because the engine may still write in them though their clients are gone.
    /// Past that no transfer begins.
    pub quarantine_bytes: u64,
    /// A daemon that stops waits so long for the engine to close, because a call on it can't be interrupted.
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
    /// Whether the engine could be closed.
    closed: Latch<bool>,
}

impl Relay {
    pub(super) fn new(behind: Behind, registration_bytes_max: u64) -> Self {
        Self {
            behind,
            quarantine: Quarantine::default(),
            registration_bytes_max,
            closed: Latch::default(),
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

    pub(super) fn fetch(
        &self,
        session: &Session,
        reads: &[Fetch<'_>],
    ) -> Result<Vec<Result<u64, Fault>>, ProtocolViolation> {
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

    pub(super) fn store(
        &self,
        session: &Session,
        writes: &[Store<'_>],
    ) -> Result<Vec<Result<u64, Fault>>, ProtocolViolation> {
        let spans: Vec<&Span> = writes.iter().flat_map(|write| &write.from).collect();
        let extents = self.extents(session, writes.len(), &spans)?;
        let sources: Result<Vec<Source<'_>>, ProtocolViolation> = extents
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
                return violation("it wrote an object without bytes");
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

    /// The extent of each span. Refuses more than the engine takes at once.
    fn extents(&self, session: &Session, keys: usize, spans: &[&Span]) -> Result<Vec<Arc<Extent>>, ProtocolViolation> {
        let claimed = self.engine().capabilities();
        let bytes = spans.iter().try_fold(0_u64, |sum, span| sum.checked_add(span.len));
        if keys_max(claimed) < keys || bytes.is_none_or(|bytes| 1 < keys && claimed.batch_bytes_max < bytes) {
            return violation("it asked for more at once than the engine takes");
        }
        let holdings = session.holdings();
        spans.iter().map(|span| holdings.extent(span.ticket)).collect()
    }

    /// Calls the engine without trust. A call that does not come back as it should may still write.
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

    /// Closes the engine in a thread of its own, because a call on it may hang. `regions` are registered. They are
    /// given only where no transfer runs any more.
    pub(super) fn begin_to_close(self: &Arc<Self>, regions: Vec<Region>) {
        let relay = Arc::clone(self);
        let close = move || {
            let closed = catch_unwind(AssertUnwindSafe(|| relay.close(&regions))).unwrap_or(false);
            relay.closed.set(closed);
        };
        if let Err(error) = threads::spawn("tensorlease-close", ENGINE_STACK_BYTES, close) {
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

    /// Has the engine closed? Waits for it for `timeout`.
    pub(super) fn has_closed(&self, timeout: Duration) -> bool {
        self.closed.wait(timeout) == Some(true)
    }
}

/// Most keys of one message.
fn keys_max(claimed: &Capabilities) -> usize {
    claimed.batch_keys_max.min(LIST_MAX)
}

fn named(key: &str) -> Result<&str, ProtocolViolation> {
    if key.is_empty() {
        return violation("it named an object without a key");
    }
    Ok(key)
}

fn refused<T>(keys: usize, fault: &Fault) -> Vec<Result<T, Fault>> {
    (0..keys).map(|_| Err(fault.clone())).collect()
}

/// A fault as it is sent. A longer message is cut.
pub(super) fn failure(fault: &Fault) -> Failure<'_> {
    Failure {
        kind: fault.kind,
        code: fault.code,
        message: beginning(&fault.message, FAILURE_BYTES_MAX),
    }
}

pub(super) fn described(info: &ObjectInfo) -> Described<'_> {
    Described {
        len: info.len,
        version: info.version,
        tag: info
            .tag
            .as_ref()
            .map(Tag::as_bytes)
            .filter(|tag| tag.len() <= TAG_BYTES_MAX),
    }
}
