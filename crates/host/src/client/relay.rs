//! Calls on the engine behind a daemon. It moves bytes in and out of extents of this client. Other memory is staged in
//! an extent.
use super::extents::Extents;
use super::lanes::{Lanes, Unanswered};
use super::messages::{PerKey, check_tag, in_messages, key_too_long, numbers, unavailable};
use super::registered::span;
use super::session::Session;
use crate::wire::{Fetch, KEY_BYTES_MAX, LIST_MAX, Request, Span, Store};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use tensorlease_engine::{Fault, FaultKind, ReadOp, Tag, WriteOp};
use tensorlease_memory::{CopyMode, NoSlab, Region, RegionMap, SlabMemory, SlabSource, Source, copy, limits, lock};

/// Where in a staging extent the next object begins.
const STAGED_ALIGN: usize = 64;

/// What the engine of a client needs where the daemon's objects lie behind another engine.
pub(super) struct Relay {
    pub(super) lanes: Lanes,
    /// Regions that the client registered.
    pub(super) registered: Mutex<RegionMap>,
    /// Of the engine behind the daemon.
    pub(super) name: String,
}

/// Where the bytes of one operation are, as the daemon knows them.
struct Place {
    spans: Vec<Span>,
    /// Bytes of the staging extent, where the memory is in none of its own.
    staged: Option<Range<usize>>,
}

/// An extent for the time of one call.
#[derive(Default)]
struct Staging {
    bytes: usize,
    memory: Option<SlabMemory>,
}

impl Staging {
    /// Takes bytes for one operation.
    fn take(&mut self, len: usize) -> Range<usize> {
        let start = self.bytes;
        self.bytes = (start + len).next_multiple_of(STAGED_ALIGN);
        start..start + len
    }

    /// Borrows the extent, if one is needed, and gives each place that is staged its bytes.
    fn make(&mut self, session: &Arc<Session>, places: &mut [Result<Place, Fault>]) -> Result<(), Fault> {
        let bytes = self.bytes;
        if bytes == 0 {
            return Ok(());
        }
        let none = |message: String| Fault::new(FaultKind::NoHandle, 0, message);
        let made = Extents::of(session).make(bytes.next_multiple_of(limits::page_bytes()));
        let memory = made.map_err(|error| match error {
            NoSlab::Gone { why } => unavailable(why),
            NoSlab::Full { .. } => none(format!("the host's arena has no {bytes} bytes to stage in just now")),
            error => none(format!("no memory of the host's to stage {bytes} bytes in: {error}")),
        })?;
        for place in places.iter_mut().flatten() {
            if let Some(range) = place.staged.clone() {
                let span = span(&lock(&session.lent), memory.target(range).region());
                place.spans = vec![span.ok_or_else(|| none("an extent that is not one".to_owned()))?];
            }
        }
        self.memory = Some(memory);
        Ok(())
    }

    /// The bytes of a place that is staged.
    fn of(&self, place: &Place) -> Option<(&SlabMemory, Range<usize>)> {
        self.memory.as_ref().zip(place.staged.clone())
    }
}

impl Relay {
    /// To the engine of this name.
    pub(super) fn to(name: String) -> Self {
        Self {
            lanes: Lanes::default(),
            registered: Mutex::default(),
            name,
        }
    }

    pub(super) fn read(&self, session: &Arc<Session>, reads: &[ReadOp<'_>]) -> PerKey<u64> {
        let mut staging = Staging::default();
        let mut place = |read: &ReadOp<'_>| self.place(session, &mut staging, read.key, &[read.target.region()]);
        let mut places: Vec<_> = reads.iter().map(&mut place).collect();
        staging.make(session, &mut places)?;
        let fetches = reads.iter().zip(&places).filter_map(|(read, place)| {
            Some(Fetch {
                key: read.key,
                object_len: read.object_len,
                offset: read.offset,
                to: place.as_ref().ok()?.spans[0],
                tag: read.tag.map(Tag::as_bytes),
                by_transport: read.by_transport,
            })
        });
        let fetches: Vec<Fetch<'_>> = fetches.collect();
        let keys: Vec<&str> = fetches.iter().map(|fetch| fetch.key).collect();
        let answers = in_messages(&keys, |range| {
            let reads = fetches[range.clone()].to_vec();
            Ok(self.moved(session, range.len(), &Request::Fetch { reads }))
        })?;
        let results = with_answers(places, answers, |index, place, answer| match staging.of(&place) {
            Some((memory, range)) => answer
                .inspect(|_| copy(memory.source(range), &reads[index].target, CopyMode::Cached))
                .map_err(of_staged),
            None => answer,
        });
        Ok(results)
    }

    pub(super) fn write(&self, session: &Arc<Session>, writes: &[WriteOp<'_>]) -> PerKey<()> {
        let mut staging = Staging::default();
        let mut place = |write: &WriteOp<'_>| {
            check_tag(write.tag)?;
            let regions: Vec<Region> = write.segments.iter().map(Source::region).collect();
            self.place(session, &mut staging, write.key, &regions)
        };
        let mut places: Vec<_> = writes.iter().map(&mut place).collect();
        staging.make(session, &mut places)?;
        for (write, place) in writes.iter().zip(&places) {
            if let Some((memory, range)) = place.as_ref().ok().and_then(|place| staging.of(place)) {
                let mut at = range.start;
                for segment in write.segments {
                    copy(*segment, &memory.target(at..at + segment.len()), CopyMode::Cached);
                    at += segment.len();
                }
            }
        }
        let stores = writes.iter().zip(&mut places).filter_map(|(write, place)| {
            Some(Store {
                key: write.key,
                from: std::mem::take(&mut place.as_mut().ok()?.spans),
                tag: write.tag.as_bytes(),
            })
        });
        let stores: Vec<Store<'_>> = stores.collect();
        let answers = self.stored(session, &stores)?;
        let results = with_answers(places, answers, |_, place, answer| {
            let done = answer.map(|_| ());
            if place.staged.is_some() {
                done.map_err(of_staged)
            } else {
                done
            }
        });
        Ok(results)
    }

    /// Where the memory of one operation is. If any of it is in no extent, all of it is staged.
    fn place(&self, session: &Session, staging: &mut Staging, key: &str, memory: &[Region]) -> Result<Place, Fault> {
        let refused = |kind, message| Err(Fault::new(kind, 0, message));
        let len = memory.iter().map(|region| region.len).sum();
        if KEY_BYTES_MAX < key.len() {
            return Err(key_too_long(key));
        }
        if key.is_empty() || len == 0 {
            return refused(FaultKind::Refused, "an object needs a key, and at least one byte");
        }
        let memory = memory.iter().filter(|region| region.len != 0);
        let registered = lock(&self.registered);
        if !memory.clone().all(|region| registered.contains(*region)) {
            return refused(FaultKind::Unregistered, "the memory is not inside one registration");
        }
        drop(registered);
        let extents = lock(&session.lent);
        let lent: Option<Vec<Span>> = memory.map(|region| span(&extents, *region)).collect();
        Ok(match lent.filter(|spans| spans.len() <= LIST_MAX) {
            Some(spans) => Place { spans, staged: None },
            None => Place {
                spans: Vec::new(),
                staged: Some(staging.take(len)),
            },
        })
    }

    /// Sends the writes in messages that are not too long.
    fn stored(&self, session: &Session, stores: &[Store<'_>]) -> PerKey<u64> {
        let mut answers = Vec::with_capacity(stores.len());
        let mut rest = stores;
        while !rest.is_empty() {
            let mut segments = 0;
            let fits = rest.iter().take_while(|store| {
                segments += store.from.len();
                segments <= SEGMENTS_MAX
            });
            let (now, later) = rest.split_at(fits.count().max(1));
            rest = later;
            let keys: Vec<&str> = now.iter().map(|store| store.key).collect();
            answers.extend(in_messages(&keys, |range| {
                let writes = now[range.clone()].to_vec();
                Ok(self.moved(session, range.len(), &Request::Store { writes }))
            })?);
        }
        Ok(answers)
    }

    /// One transfer. If its answer is missing, it may still run.
    fn moved(&self, session: &Session, keys: usize, request: &Request<'_>) -> Vec<Result<u64, Fault>> {
        let answered = self.lanes.ask(session, request, |answer| numbers(answer, keys));
        answered.unwrap_or_else(|unanswered| {
            let fault = match unanswered {
                Unanswered::Unasked(fault) => fault,
                Unanswered::Unknown(fault) => Fault {
                    kind: FaultKind::MayStillWrite,
                    ..fault
                },
            };
            vec![Err(fault); keys]
        })
    }
}

/// Most segments of one message.
const SEGMENTS_MAX: usize = 32 * LIST_MAX;

/// The result of each operation: those that were refused here were not asked for.
fn with_answers<T>(
    places: Vec<Result<Place, Fault>>,
    answers: Vec<Result<u64, Fault>>,
    done: impl Fn(usize, Place, Result<u64, Fault>) -> Result<T, Fault>,
) -> Vec<Result<T, Fault>> {
    let mut answers = answers.into_iter();
    let result = |(index, place): (usize, Result<Place, Fault>)| {
        let place = place?;
        let answer = answers.next().expect("each operation that was asked for has an answer");
        done(index, place, answer)
    };
    places.into_iter().enumerate().map(result).collect()
}

/// A staged transfer that may still write writes only the staging extent, which the daemon keeps. The caller's memory
/// is safe.
fn of_staged(mut fault: Fault) -> Fault {
    if fault.kind == FaultKind::MayStillWrite {
        fault.kind = FaultKind::Transient;
    }
    fault
}
