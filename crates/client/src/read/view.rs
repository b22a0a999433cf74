//! Reads in place: values that stay where the engine keeps them.

use super::describe::{check_len, mismatch, object_kind, value_bytes, words};
use crate::{
    CallError, Expected, ObjectKind, ReadError, ReadItem, ReadRequest,
    error::{all_or_failures, read_error},
    parts::Parts,
    patience::Wait,
};
use std::{collections::HashMap, iter, sync::Arc};
use tensorlease_engine::{Fault, FaultKind, Tag, Viewed};
use tensorlease_memory::View;

/// One value, read where it lies.
#[derive(Debug)]
pub struct ValueView {
    /// Tensor or not.
    pub kind: ObjectKind,
    /// Its bytes; `None` for a value of zero bytes.
    pub view: Option<View>,
}

/// One view per `(key, what is expected there)`, in order: all of them, or none.
pub(crate) fn views(
    parts: &Parts,
    wanted: &[(String, Expected)],
    wait: &Wait<'_>,
) -> Result<Vec<ValueView>, ReadError> {
    let values = viewed(parts, wanted, wait)?;
    let bytes = values.iter().filter_map(|value| value.view.as_ref()).map(View::len);
    parts.accounts.counters().read_bytes.add(bytes.sum::<usize>() as u64);
    parts.accounts.counters().read_keys.add(values.len() as u64);
    parts.accounts.counters().viewed_reads.add(values.len() as u64);
    Ok(values)
}

/// The request with every item as the engine holds it, and the objects themselves, each at its first item. A key is looked up once: asked twice it
/// might be replaced in between, and be two different things.
pub(super) fn held(
    parts: &Parts,
    request: ReadRequest,
    wait: &Wait<'_>,
) -> Result<(ReadRequest, Vec<Option<View>>), ReadError> {
    let (mut known, mut wanted) = (HashMap::with_capacity(request.items.len()), Vec::new());
    let mut places = Vec::with_capacity(request.items.len());
    for item in &request.items {
        let place = known.entry(item.key.as_str()).or_insert_with(|| {
            wanted.push((item.key.clone(), item.expected.clone()));
            wanted.len() - 1
        });
        places.push(*place);
    }
    let mut values: Vec<(Expected, Option<View>)> = viewed(parts, &wanted, wait)?.into_iter().map(as_held).collect();
    let (items, objects): (Vec<ReadItem>, Vec<Option<View>>) = iter::zip(request.items, places)
        .map(|(ReadItem { key, expected }, place)| {
            let (found, view) = &mut values[place];
            let expected = match expected {
                Expected::Described => found.clone(),
                given => given,
            };
            (ReadItem { key, expected }, view.take())
        })
        .unzip();
    let request = ReadRequest { items, ..request };
    Ok((request, objects))
}

fn as_held(ValueView { kind, view }: ValueView) -> (Expected, Option<View>) {
    let expected = match kind {
        ObjectKind::Tensor(spec) => Expected::Tensor(spec),
        ObjectKind::Packed => Expected::Packed(view.as_ref().map_or(0, |view| view.len() as u64)),
    };
    (expected, view)
}

fn viewed(parts: &Parts, wanted: &[(String, Expected)], wait: &Wait<'_>) -> Result<Vec<ValueView>, ReadError> {
    if parts.calls.engine().views().is_none() {
        let name = parts.calls.claims().name;
        let message = format!(
            "the {name} engine shows no values in place here; read them without view, or open host:// with a daemon that has no engine behind it"
        );
        return Err(CallError::Invalid { message }.into());
    }
    let namespace = &*parts.options.namespace;
    let keys = wanted.iter().map(|(key, _)| [namespace, key].concat()).collect();
    let viewed = parts.calls.ask(keys, wait, |engine, keys| match engine.views() {
        Some(views) => views.view_batch(keys),
        None => keys.iter().map(|_| Err(Fault::closed())).collect(),
    })?;
    // Most values of a read are of one kind: its tag is read once.
    let mut last: Option<(Tag, ObjectKind)> = None;
    let mut kind_of = |tag: &Tag| match &last {
        Some((known, kind)) if known == tag => Ok(kind.clone()),
        _ => {
            let kind = object_kind(tag)?;
            last = Some((tag.clone(), kind.clone()));
            Ok(kind)
        }
    };
    let values = iter::zip(wanted, viewed).map(|((_, expected), viewed)| {
        let viewed = viewed?;
        let kind = kind_of(&viewed.tag)?;
        value(viewed, kind, expected)
    });
    all_or_failures(wanted.iter().map(|(key, _)| key), values).map_err(read_error)
}

fn value(Viewed { view, tag }: Viewed, kind: ObjectKind, expected: &Expected) -> Result<ValueView, Fault> {
    let len = value_bytes(&kind, &tag, view.len() as u64);
    let asked = match expected {
        Expected::Described => None,
        Expected::Tensor(spec) => Some((ObjectKind::Tensor(Arc::clone(spec)), spec.bytes())),
        Expected::Packed(bytes) => Some((ObjectKind::Packed, *bytes)),
    };
    if let Some((kind_asked, len_asked)) = asked
        && (kind_asked != kind || len_asked != len)
    {
        let message = mismatch(&words(&kind, len), &words(&kind_asked, len_asked));
        return Err(Fault::new(FaultKind::Mismatch, 0, message));
    }
    check_len(len, view.len() as u64)?;
    Ok(ValueView {
        kind,
        view: (len != 0).then_some(view),
    })
}
