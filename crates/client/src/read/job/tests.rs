//! A job by tables: what goes in, what it decides. No engine, no thread, no clock; plain bytes stand in for memory.

mod delivering;
mod grouping;
mod landing;
mod late;
mod replaced;
mod retrying;

use super::{Finished, Job, Next, UnitMemory};
use crate::{
    DType, Delivery, Expected, ReadItem, ReadRequest, TensorSpec,
    accounts::Accounts,
    held::Quarantine,
    read::{
        groups::{Group, TransferMode},
        items::Items,
    },
    terms::{Terms, terms},
};
use std::{ops::Range, sync::Arc};
use tensorlease_arena::{Budget, plan::GroupLimits};
use tensorlease_engine::{Fault, FaultKind};
use tensorlease_memory::{CallerMemory, ForkPolicy, HeapBytes, Landing, Pool};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// A transfer as a table shows it: item, first byte of the object, bytes.
type Row = (u32, u64, u64);

fn quarantine() -> Arc<Quarantine> {
    let pool = || Pool::new("test", Budget::new(MIB, 4096).unwrap(), ForkPolicy::Inherit);
    Arc::new(Quarantine::new(pool(), pool(), Arc::new(Accounts::default())))
}

fn item(key: &str, dtype: DType, len: u64) -> ReadItem {
    let spec = TensorSpec::new(dtype, &[len / dtype.item_bytes()]).unwrap();
    ReadItem::tensor(key, Arc::new(spec))
}

fn job_of(terms: Terms, items: Vec<ReadItem>, request: ReadRequest) -> Job {
    let items = Arc::new(Items::new("", items, true, None));
    Job::new(terms, items, request, quarantine()).unwrap()
}

/// A job for `k0`, `k1`, ... of these lengths.
fn job(terms: Terms, lens: &[u64]) -> Job {
    job_for(terms, lens, ReadRequest::default())
}

fn job_for(terms: Terms, lens: &[u64], request: ReadRequest) -> Job {
    let items = lens.iter().enumerate();
    let items = items.map(|(at, len)| ReadItem {
        key: format!("k{at}"),
        expected: Expected::Packed(*len),
    });
    job_of(terms, items.collect(), request)
}

/// Memory of the caller for values of these lengths.
fn destinations(lens: &[u64], direct: bool) -> ReadRequest {
    let foreign = |len: &u64| CallerMemory::from_vec(vec![0; usize::try_from(*len).unwrap()]);
    ReadRequest {
        into: lens.iter().map(foreign).collect(),
        direct,
        ..ReadRequest::default()
    }
}

fn batch(items: Range<usize>) -> ReadRequest {
    ReadRequest {
        batches: Vec::from([items]),
        ..ReadRequest::default()
    }
}

fn delivered(delivery: Delivery) -> ReadRequest {
    ReadRequest {
        delivery: Some(delivery),
        ..ReadRequest::default()
    }
}

/// Plain bytes, as many as are looked at: a job never touches what it plans for.
fn memory(mode: TransferMode, bytes: usize) -> UnitMemory {
    UnitMemory {
        landing: Landing::Heap(HeapBytes::new(bytes)),
        registered_at: 0,
        mode,
        leased: mode == TransferMode::Direct,
    }
}

/// Puts every unit that has none on memory of its own.
fn land(job: &mut Job, mode: TransferMode) {
    for unit in job.waiting() {
        job.put(unit, memory(mode, 1));
    }
}

/// Puts all units that have no memory on one piece of it.
fn land_together(job: &mut Job, mode: TransferMode) {
    let shared = job.share(Landing::Heap(HeapBytes::new(1)));
    let mut base = 0;
    for unit in job.waiting() {
        job.put_on_shared(unit, &shared, base, 0, mode);
        base += job.unit(unit).len;
    }
}

fn rows(groups: &[Group]) -> Vec<Vec<Row>> {
    let row = |group: &Group| {
        let transfers = group.transfers.iter();
        transfers.map(|it| (it.item, it.object_offset, it.len)).collect()
    };
    groups.iter().map(row).collect()
}

fn sizes(groups: &[Group]) -> Vec<usize> {
    groups.iter().map(|group| group.transfers.len()).collect()
}

/// Runs the calls of a round: a transfer ends as `ended` says of its item and first byte.
fn run(job: &mut Job, ended: impl Fn(u32, u64) -> Option<FaultKind>) -> Next {
    let groups = job.groups();
    let transfers = groups.into_iter().flat_map(|group| group.transfers);
    let finished = transfers.map(|mut transfer| {
        let fault = ended(transfer.item, transfer.object_offset);
        if fault == Some(FaultKind::MayStillWrite) {
            transfer.lands_in.quarantine(&job.quarantine);
        }
        let result = fault.map_or(Ok(()), |kind| Err(Fault::new(kind, 0, "because")));
        Finished { transfer, result }
    });
    let finished = finished.collect();
    job.settle(finished)
}

/// The items that are read again, in order, after the first round ended so.
fn read_again(job: &mut Job) -> Vec<u32> {
    let groups = job.groups();
    let mut items: Vec<u32> = rows(&groups).concat().iter().map(|row| row.0).collect();
    items.sort_unstable();
    items
}

fn failed_keys(next: &Next) -> Vec<&str> {
    match next {
        Next::Fail(failures) => failures.iter().map(|failure| failure.key.as_str()).collect(),
        other => panic!("{other:?}"),
    }
}
