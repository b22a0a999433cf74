//! Asking the engine what it holds.

use super::items::Items;
use crate::{
    CallError, Described, Expected, KeyFailure, ObjectKind, QueryError, ReadError, ReadItem, ReadRequest,
    error::{all_or_failures, message, read_error},
    keys::all_namespaced,
    parts::Parts,
    patience::Wait,
    spec::{ZERO_MARKER, from_tag, packed_empty_tag},
};
use std::{
    collections::{HashMap, HashSet},
    iter,
    sync::Arc,
};
use tensorlease_engine::{Fault, FaultKind, ObjectInfo, Tag};

/// Does any item leave it to the engine what it is?
pub(super) fn needed(request: &ReadRequest) -> bool {
    request
        .items
        .iter()
        .any(|item| matches!(item.expected, Expected::Described))
}

/// Destinations have sizes: there is nothing to ask the engine.
pub(super) fn refuse_destinations(request: &ReadRequest) -> Result<(), CallError> {
    if request.into.is_empty() {
        return Ok(());
    }
    let message = "get_into needs the shape and dtype of each destination; they come from the tensors".to_owned();
    Err(CallError::Invalid { message })
}

/// The request with every described item replaced by what the engine says now.
pub(super) fn request(parts: &Parts, request: &ReadRequest, wait: &Wait<'_>) -> Result<ReadRequest, ReadError> {
    let open = |item: &&ReadItem| matches!(item.expected, Expected::Described);
    // Each key once: asked twice it might be replaced in between, and be two different things.
    let mut seen = HashSet::new();
    let once = request
        .items
        .iter()
        .filter(open)
        .filter(|item| seen.insert(item.key.as_str()));
    let keys: Vec<String> = once.map(|item| item.key.clone()).collect();
    let kinds: HashMap<&String, Expected> = keys.iter().zip(describe_kinds(parts, &keys, wait)?).collect();
    let items = request.items.iter().map(|item| {
        let expected = match &item.expected {
            Expected::Described => kinds[&item.key].clone(),
            known => known.clone(),
        };
        ReadItem {
            key: item.key.clone(),
            expected,
        }
    });
    Ok(request.with(items.collect()))
}

/// What is under each key; a missing key is an error.
fn describe_kinds(parts: &Parts, keys: &[String], wait: &Wait<'_>) -> Result<Vec<Expected>, ReadError> {
    let expected = |found: Found| match found?.ok_or_else(absent)? {
        Described {
            kind: ObjectKind::Tensor(spec),
            ..
        } => Ok(Expected::Tensor(spec)),
        Described { bytes, .. } => Ok(Expected::Packed(bytes)),
    };
    let found = found(parts, keys, wait)?.into_iter().map(expected);
    all_or_failures(keys, found).map_err(read_error)
}

/// What is under each key, `None` where there is nothing.
pub(crate) fn describe(parts: &Parts, keys: &[String], wait: &Wait<'_>) -> Result<Vec<Option<Described>>, QueryError> {
    all_or_failures(keys, found(parts, keys, wait)?).map_err(|failures| QueryError::Transfer {
        message: message("can't describe", &failures),
        failures,
    })
}

type Found = Result<Option<Described>, Fault>;

fn found(parts: &Parts, keys: &[String], wait: &Wait<'_>) -> Result<Vec<Found>, CallError> {
    if !parts.calls.claims().describes {
        let name = parts.calls.claims().name;
        let message = format!("the {name} engine does not know shapes and dtypes; pass shapes and dtypes to the read");
        return Err(CallError::Invalid { message });
    }
    let full = all_namespaced(&parts.options.namespace, keys);
    Ok(infos(parts, full, wait)?
        .into_iter()
        .map(|info| info.and_then(|info| info.map(read_info).transpose()))
        .collect())
}

fn read_info(info: ObjectInfo) -> Result<Described, Fault> {
    let untagged = || {
        let message = "the object has no type tag; pass its shape and dtype";
        Fault::new(FaultKind::Mismatch, 0, message)
    };
    let tag = info.tag.ok_or_else(untagged)?;
    let kind = object_kind(&tag)?;
    let bytes = value_bytes(&kind, &tag, info.len);
    check_len(bytes, info.len)?;
    Ok(Described { kind, bytes })
}

/// Size of the value: of one without bytes the engine holds a marker instead.
pub(super) fn value_bytes(kind: &ObjectKind, tag: &Tag, object_len: u64) -> u64 {
    match kind {
        ObjectKind::Tensor(spec) => spec.bytes(),
        ObjectKind::Packed if *tag == packed_empty_tag() => 0,
        ObjectKind::Packed => object_len,
    }
}

/// An object that is not as long as its tag says can't be read, however often it is asked for.
pub(super) fn check_len(value_bytes: u64, object_len: u64) -> Result<(), Fault> {
    if object_len == value_bytes.max(ZERO_MARKER.len() as u64) {
        return Ok(());
    }
    let message = format!("has {object_len} bytes, where its tag says {value_bytes}; put it again");
    Err(Fault::new(FaultKind::Mismatch, 0, message))
}

/// What a tag says.
pub(super) fn object_kind(tag: &Tag) -> Result<ObjectKind, Fault> {
    match from_tag(tag) {
        Ok(Some(spec)) => Ok(ObjectKind::Tensor(Arc::new(spec))),
        Ok(None) => Ok(ObjectKind::Packed),
        Err(error) => Err(Fault::new(FaultKind::Mismatch, 0, error.to_string())),
    }
}

/// `describe_batch` for any number of namespaced keys.
fn infos(
    parts: &Parts,
    keys: Vec<String>,
    wait: &Wait<'_>,
) -> Result<Vec<Result<Option<ObjectInfo>, Fault>>, CallError> {
    parts.calls.ask(keys, wait, |engine, keys| engine.describe_batch(keys))
}

/// Values of zero bytes never reach the engine as such: a marker stands for each. Where the engine describes its objects a missing
/// or different one shows; elsewhere they are remade from their spec alone.
pub(super) fn check_empty_values(parts: &Parts, items: &Items, wait: &Wait<'_>) -> Result<(), ReadError> {
    let empty: Vec<usize> = (0..items.len()).filter(|item| items.items[*item].len == 0).collect();
    if empty.is_empty() || !items.tagged || items.held.is_some() {
        return Ok(());
    }
    check_described(parts, items, &empty, wait)
}

/// Compares what is expected with what the engine, which describes its objects, has under the keys of `which`.
pub(super) fn check_described(parts: &Parts, items: &Items, which: &[usize], wait: &Wait<'_>) -> Result<(), ReadError> {
    let keys = which.iter().map(|item| items.keys[*item].clone()).collect();
    let mut failures = Vec::new();
    for (&item, info) in which.iter().zip(infos(parts, keys, wait)?) {
        let fault = match info {
            Err(fault) => fault,
            Ok(None) => absent(),
            Ok(Some(info)) if info.len != items.object_len(item) || info.tag.as_ref() != items.tag(item) => {
                let asked = words(&items.items[item].kind, items.items[item].len);
                Fault::new(FaultKind::Mismatch, 0, format!("another value is stored than {asked}"))
            }
            Ok(Some(_)) => continue,
        };
        failures.push(KeyFailure::new(items.name(item), fault));
    }
    if failures.is_empty() {
        return Ok(());
    }
    Err(read_error(name_mismatches(parts, items, failures, wait)))
}

fn absent() -> Fault {
    Fault::new(FaultKind::NotFound, 0, "there is no such object")
}

/// Which object there is under each key of `which`. Objects that are held for the read stay as they are, and an engine that does not describe has no
/// versions.
pub(super) fn versions(
    parts: &Parts,
    items: &Items,
    which: Vec<u32>,
    wait: &Wait<'_>,
) -> Result<impl Iterator<Item = (u32, u64)>, CallError> {
    let stands_still = items.held.is_some() || !parts.calls.claims().describes;
    let versions = if which.is_empty() || stands_still {
        vec![0; which.len()]
    } else {
        let keys = which.iter().map(|item| items.keys[*item as usize].clone()).collect();
        // A missing key shows in its transfer; here it is one more version.
        let version = |info: Result<Option<ObjectInfo>, Fault>| info.ok().flatten().map_or(0, |info| info.version);
        infos(parts, keys, wait)?.into_iter().map(version).collect()
    };
    Ok(iter::zip(which, versions))
}

/// A wrong dtype or shape in words, where the engine can tell: what is there, what was asked.
pub(super) fn name_mismatches(
    parts: &Parts,
    items: &Items,
    mut failures: Vec<KeyFailure>,
    wait: &Wait<'_>,
) -> Vec<KeyFailure> {
    let wrong = |failure: &&mut KeyFailure| failure.kind == FaultKind::Mismatch;
    let keys: Vec<String> = failures.iter_mut().filter(wrong).map(|it| it.key.clone()).collect();
    if keys.is_empty() || !items.tagged {
        return failures;
    }
    // The read has failed already: when this look fails as well, the first error stands as it is.
    let Ok(found) = found(parts, &keys, wait) else {
        return failures;
    };
    let positions: HashMap<&str, usize> = (0..items.len()).map(|item| (items.name(item), item)).collect();
    for (failure, found) in failures.iter_mut().filter(wrong).zip(found) {
        let Some(&item) = positions.get(failure.key.as_str()) else {
            continue;
        };
        if let Ok(Some(found)) = found
            && found.kind != items.items[item].kind
        {
            let there = words(&found.kind, found.bytes);
            failure.message = mismatch(&there, &words(&items.items[item].kind, items.items[item].len));
        }
    }
    failures
}

/// What is stored and what was asked for, both in words.
pub(super) fn mismatch(there: &str, asked: &str) -> String {
    format!("stored as {there}, you asked for {asked}")
}

/// `float32 (3, 4) of 48 bytes`, or `a value that is no tensor, of 12 bytes`.
pub(super) fn words(kind: &ObjectKind, bytes: u64) -> String {
    match kind {
        ObjectKind::Tensor(spec) => format!("{} of {bytes} bytes", spec.words()),
        ObjectKind::Packed => format!("a value that is no tensor, of {bytes} bytes"),
    }
}
