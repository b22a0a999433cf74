//! What one message takes, and what it is answered by.
use crate::wire::{Answer, Described, Failure, KEY_BYTES_MAX, LIST_MAX, TAG_BYTES_MAX};
use std::borrow::Cow;
use std::ops::Range;
use tensorlease_engine::{Fault, FaultKind, ObjectInfo, Tag};

/// Key bytes of one message.
pub(super) const MESSAGE_KEY_BYTES_MAX: usize = 1 << 20;

/// One result for each key, or a fault of the whole call.
pub(super) type PerKey<T> = Result<Vec<Result<T, Fault>>, Fault>;

/// Calls `call` for as many keys at a time as one message takes, given as a range of them. A key that no message takes
/// is refused on its own.
pub(super) fn in_messages<T>(keys: &[&str], mut call: impl FnMut(Range<usize>) -> PerKey<T>) -> PerKey<T> {
    let mut results = Vec::with_capacity(keys.len());
    let mut start = 0;
    while start < keys.len() {
        if KEY_BYTES_MAX < keys[start].len() {
            results.push(Err(key_too_long(keys[start])));
            start += 1;
            continue;
        }
        let mut bytes = 0;
        let fits = keys[start..].iter().take(LIST_MAX).take_while(|key| {
            bytes += key.len();
            bytes <= MESSAGE_KEY_BYTES_MAX && key.len() <= KEY_BYTES_MAX
        });
        let end = start + fits.count();
        results.extend(call(start..end)?);
        start = end;
    }
    Ok(results)
}

pub(super) fn key_too_long(key: &str) -> Fault {
    let message = format!("a key of {} bytes is longer than {KEY_BYTES_MAX}", key.len());
    Fault::new(FaultKind::Refused, 0, message)
}

/// No message takes a longer tag.
pub(super) fn check_tag(tag: &Tag) -> Result<(), Fault> {
    if tag.as_bytes().len() <= TAG_BYTES_MAX {
        return Ok(());
    }
    let message = "the value has too many dimensions for a host's store";
    Err(Fault::new(FaultKind::Refused, 0, message))
}

/// One number for each of `keys` keys.
pub(super) fn numbers(answer: Answer<'_>, keys: usize) -> PerKey<u64> {
    match answer {
        Answer::Results { results } if results.len() == keys => {
            Ok(results.into_iter().map(|result| result.map_err(fault)).collect())
        }
        other => Err(unexpected(&other)),
    }
}

/// What each of `keys` objects is.
pub(super) fn descriptions(answer: Answer<'_>, keys: usize) -> PerKey<Option<ObjectInfo>> {
    let info = |object: Described<'_>| ObjectInfo {
        len: object.len,
        tag: object.tag.map(Tag::new),
        version: object.version,
    };
    match answer {
        Answer::Described { objects } if objects.len() == keys => {
            let objects = objects.into_iter();
            Ok(objects
                .map(|object| object.map(|object| object.map(info)).map_err(fault))
                .collect())
        }
        other => Err(unexpected(&other)),
    }
}

fn fault(failure: Failure<'_>) -> Fault {
    Fault::new(failure.kind, failure.code, failure.message.to_owned())
}

pub(super) fn unexpected(answer: &Answer<'_>) -> Fault {
    unavailable(format!("the daemon answered out of turn ({answer:.40?}); restart it"))
}

pub(super) fn refused(why: &str) -> Fault {
    unavailable(format!("the daemon refused this client: {why}"))
}

pub(super) fn unavailable(message: impl Into<Cow<'static, str>>) -> Fault {
    Fault::new(FaultKind::Unavailable, 0, message)
}
