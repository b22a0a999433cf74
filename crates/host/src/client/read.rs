//! Reads: one round trip says where the objects lie, then the calling thread copies them.
use super::messages::{PerKey, in_messages, unexpected};
use super::returns::Returned;
use super::session::{Session, Slabs};
use super::shown::Shown;
use crate::wire::{Answer, Pinned, Request};
use std::sync::Arc;
use tensorlease_engine::{Fault, FaultKind, ReadOp};
use tensorlease_memory::{CopyMode, copy};

/// One object that is pinned and is what was asked for: its slab, and where in it the bytes begin.
struct Found {
    shown: Arc<Shown>,
    start: usize,
}

pub(super) fn batch(session: &Session, reads: &[ReadOp<'_>]) -> PerKey<u64> {
    let keys: Vec<&str> = reads.iter().map(|read| read.key).collect();
    let mode = CopyMode::for_group(reads.iter().map(|read| read.target.len()).sum());
    in_messages(&keys, |range| {
        message(session, &keys[range.clone()], &reads[range], mode)
    })
}

fn message(session: &Session, keys: &[&str], reads: &[ReadOp<'_>], mode: CopyMode) -> PerKey<u64> {
    let request = Request::Pin {
        separate: false,
        keys: keys.to_vec(),
    };
    let (ticket, found) = session.ask(&request, |answer, session| match answer {
        Answer::Pinned { ticket, objects } if objects.len() == reads.len() => {
            let pinned = objects.iter().any(Option::is_some);
            let mut slabs = session.slabs();
            let found = objects.into_iter().zip(reads).map(|(object, read)| {
                let object = object.ok_or_else(|| Fault::new(FaultKind::NotFound, 0, "no such object"))?;
                find(&mut slabs, &object, read)
            });
            Ok((pinned.then_some(ticket), found.collect::<Vec<Result<Found, Fault>>>()))
        }
        other => Err(unexpected(&other)),
    })?;
    let results = found.into_iter().zip(reads).map(|(found, read)| {
        let Found { shown, start } = found?;
        copy(
            shown.mapping().source(start..start + read.target.len()),
            &read.target,
            mode,
        );
        Ok(read.target.len() as u64)
    });
    let results = results.collect();
    if let Some(ticket) = ticket {
        session.give_back(Returned::Read { ticket });
    }
    Ok(results)
}

/// Finds the bytes of a pinned object. It must be the object that is expected.
fn find(slabs: &mut Slabs<'_>, object: &Pinned<'_>, read: &ReadOp<'_>) -> Result<Found, Fault> {
    let mismatch = |message: String| Err(Fault::new(FaultKind::Mismatch, 0, message));
    let len = object.position.len;
    if len != read.object_len {
        return mismatch(format!("the object has {len} bytes, {} were expected", read.object_len));
    }
    if read.tag.is_some_and(|tag| tag.as_bytes() != object.tag) {
        return mismatch("the object was written with another tag (dtype or shape) than expected".to_owned());
    }
    let wanted = read.target.len() as u64;
    if read.offset.checked_add(wanted).is_none_or(|end| len < end) {
        return mismatch(format!(
            "{wanted} bytes from {} on are past the object's end at {len}",
            read.offset
        ));
    }
    let (shown, start) = slabs.find(object.position)?;
    // Inside the object, which is mapped: it fits an address.
    let offset = usize::try_from(read.offset).expect("an offset inside mapped memory fits an address");
    Ok(Found {
        shown: Arc::clone(shown),
        start: start + offset,
    })
}
