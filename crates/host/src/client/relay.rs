//! Calls on the engine behind a daemon. Bytes move between that engine and extents of this client; other memory is staged in one.
use super::extents::Extents;
use super::lanes::{Lanes, Unanswered};
use super::messages::{PerKey, in_messages, key_too_long, numbers};
use super::registered::Registered;
use super::session::Session;

use crate::wire::{Fetch, KEY_BYTES_MAX, LIST_MAX, Request, Span, Store, TAG_BYTES_MAX};
use std::sync::Arc;
use tensorlease_engine::{Fault, FaultKind, ReadOp, Tag, WriteOp};
use tensorlease_memory::{CopyMode, NoSlab, Region, SlabMemory, SlabSource, Source, Target, copy, limits};

/// Where in a staging extent the next object begins.
const STAGED_ALIGN: usize = 64;

/// What the engine of a client needs where the daemon's objects lie behind another engine.
pub(super) struct Relay {
    pub(super) lanes: Lanes,
    pub(super) registered: Registered,
    /// Of the engine behind the daemon.
    pub(super) name: String,
}

/// Bytes of one operation: in an extent already, or staged in one from this byte on.
enum Place {
    Extent(Vec<Span>),
    Staged { at: usize, len: usize },
}

/// Memory of the daemon for the time of one call.
struct Staging {
    memory: SlabMemory,
    span: Span,
}

impl Staging {
    /// `None`: nothing is staged.
    fn of(session: &Arc<Session>, bytes: usize) -> Result<Option<Self>, Fault> {
        if bytes == 0 {
            return Ok(None);
        }
        let none = |message: String| Fault::new(FaultKind::NoHandle, 0, message);
        let made = Extents::of(session).make(bytes.next_multiple_of(limits::page_bytes()));
        let memory = made.map_err(|error| match error {
            NoSlab::Gone { why } => Fault::new(FaultKind::Unavailable, 0, why),
            NoSlab::Full { .. } => none(format!("the host's arena has no {bytes} bytes to stage in just now")),
            error => none(format!("no memory of the host's to stage {bytes} bytes in: {error}")),
        })?;
        let span = session.lent().span(memory.region());
        let span = span.ok_or_else(|| none("an extent that is not one".to_owned()))?;
        Ok(Some(Self { memory, span }))
    }

    fn span(&self, at: usize, len: usize) -> Span {
        Span {
            offset: self.span.offset + at as u64,
            len: len as u64,
            ..self.span
        }
    }

    fn target(&self, at: usize, len: usize) -> Target<'_> {
        self.memory.target(at..at + len)
    }

    fn source(&self, at: usize, len: usize) -> Source<'_> {
        self.memory.source(at..at + len)
    }
}

/// Takes bytes of a staging extent for one operation.
fn stage(staged: &mut usize, len: usize) -> Place {
    let at = *staged;
    *staged = (at + len).next_multiple_of(STAGED_ALIGN);
    Place::Staged { at, len }
}

impl Relay {
    pub(super) fn read(&self, session: &Arc<Session>, reads: &[ReadOp<'_>]) -> PerKey<u64> {
        let mut staged = 0;
        let places: Vec<Result<Place, Fault>> = reads
            .iter()
            .map(|read| {
                let region = read.target.region();
                check(read.key, region.len)?;
                self.check_registered([region])?;
                Ok(match session.lent().span(region) {
                    Some(span) => Place::Extent(vec![span]),
                    None => stage(&mut staged, region.len),
                })
            })
            .collect();
        let staging = Staging::of(session, staged)?;
        let (asked, spans) = placed(&places, staging.as_ref());
        let fetches: Vec<Fetch<'_>> = asked
            .iter()
            .zip(&spans)
            .map(|(&index, spans)| Fetch {
                key: reads[index].key,
                object_len: reads[index].object_len,
                offset: reads[index].offset,
                to: spans[0],
                tag: reads[index].tag.map(Tag::as_bytes),
                by_transport: reads[index].by_transport,
            })
            .collect();
        let keys: Vec<&str> = fetches.iter().map(|fetch| fetch.key).collect();
        let answers = in_messages(&keys, |range| {
            let reads = fetches[range.clone()].to_vec();
            Ok(self.moved(session, range.len(), &Request::Fetch { reads }))
        })?;
        let mut results = unasked(&places);
        for (index, answer) in asked.into_iter().zip(answers) {
            let answer = match (&places[index], &staging) {
                (Ok(Place::Staged { at, len }), Some(staging)) => answer
                    .inspect(|_| copy(staging.source(*at, *len), &reads[index].target, CopyMode::Cached))
                    .map_err(of_staged),
                _ => answer,
            };
            results[index] = Some(answer);
        }
        Ok(complete(results))
    }

    pub(super) fn write(&self, session: &Arc<Session>, writes: &[WriteOp<'_>]) -> PerKey<()> {
        let mut staged = 0;
        let places: Vec<Result<Place, Fault>> = writes
            .iter()
            .map(|write| {
                let len = write.segments.iter().map(Source::len).sum();
                check(write.key, len)?;
                self.check_registered(write.segments.iter().map(Source::region))?;
                if TAG_BYTES_MAX < write.tag.as_bytes().len() {
                    return Err(Fault::new(
                        FaultKind::Refused,
                        0,
                        "the value has too many dimensions for a host's store",
                    ));
                }
                let segments = write.segments.iter().filter(|segment| !segment.is_empty());
                let spans: Option<Vec<Span>> = segments.map(|segment| session.lent().span(segment.region())).collect();
                Ok(match spans.filter(|spans| spans.len() <= LIST_MAX) {
                    Some(spans) => Place::Extent(spans),
                    None => stage(&mut staged, len),
                })
            })
            .collect();
        let staging = Staging::of(session, staged)?;
        for (write, place) in writes.iter().zip(&places) {
            if let (Ok(Place::Staged { at, .. }), Some(staging)) = (place, &staging) {
                let mut at = *at;
                for segment in write.segments {
                    copy(*segment, &staging.target(at, segment.len()), CopyMode::Cached);
                    at += segment.len();
                }
            }
        }
        let (asked, spans) = placed(&places, staging.as_ref());
        let stores: Vec<Store<'_>> = asked
            .iter()
            .zip(spans)
            .map(|(&index, from)| Store {
                key: writes[index].key,
                from,
                tag: writes[index].tag.as_bytes(),
            })
            .collect();
        let answers = self.stored(session, &stores)?;
        let mut results = unasked(&places);
        for (index, answer) in asked.into_iter().zip(answers) {
            let answer = match &places[index] {
                Ok(Place::Staged { .. }) => answer.map_err(of_staged),
                _ => answer,
            };
            results[index] = Some(answer.map(|_| ()));
        }
        Ok(complete(results))
    }

    /// In messages of which each names as many bytes as one list may.
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

    /// One transfer. Where its answer is missing nobody knows whether it still runs.
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

    fn check_registered(&self, regions: impl IntoIterator<Item = Region>) -> Result<(), Fault> {
        if regions
            .into_iter()
            .all(|region| region.len == 0 || self.registered.contains(region))
        {
            return Ok(());
        }
        Err(Fault::new(
            FaultKind::Unregistered,
            0,
            "the memory is not inside one registration",
        ))
    }
}

/// Most segments of one message.
const SEGMENTS_MAX: usize = 32 * LIST_MAX;

fn check(key: &str, len: usize) -> Result<(), Fault> {
    if KEY_BYTES_MAX < key.len() {
        return Err(key_too_long(key));
    }
    if key.is_empty() || len == 0 {
        return Err(Fault::new(
            FaultKind::Refused,
            0,
            "an object needs a key, and at least one byte",
        ));
    }
    Ok(())
}

/// Which operations are asked for, and the spans of each.
fn placed(places: &[Result<Place, Fault>], staging: Option<&Staging>) -> (Vec<usize>, Vec<Vec<Span>>) {
    let spans = places.iter().enumerate().filter_map(|(index, place)| {
        let spans = match (place.as_ref().ok()?, staging) {
            (Place::Extent(spans), _) => spans.clone(),
            (Place::Staged { at, len }, Some(staging)) => vec![staging.span(*at, *len)],
            (Place::Staged { .. }, None) => return None,
        };
        Some((index, spans))
    });
    spans.unzip()
}

/// The results of those that are refused here.
fn unasked<T>(places: &[Result<Place, Fault>]) -> Vec<Option<Result<T, Fault>>> {
    places
        .iter()
        .map(|place| place.as_ref().err().cloned().map(Err))
        .collect()
}

fn complete<T>(results: Vec<Option<Result<T, Fault>>>) -> Vec<Result<T, Fault>> {
    let missing = || Err(Fault::new(FaultKind::Unavailable, 0, "the daemon left a key out"));
    results
        .into_iter()
        .map(|result| result.unwrap_or_else(missing))
        .collect()
}

/// Only the staging extent may still be written, which the daemon keeps: the caller's own memory is out of it.
fn of_staged(mut fault: Fault) -> Fault {
    if fault.kind == FaultKind::MayStillWrite {
        fault.kind = FaultKind::Transient;
    }
    fault
}
