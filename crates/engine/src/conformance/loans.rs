//! The contract of [`Staging`]: loans of an engine's own memory. An engine that lends nothing is not asked.
use super::rig::assert_same;
use super::{Factory, Rig, pattern};
use crate::{FaultKind, Loan, ReadOp, Staging};
use tensorlease_memory::{CopyMode, Source, copy};

/// More than any pool of a test lends at a time.
const LOANS_MAX: usize = 64;

fn staging(rig: &Rig) -> Option<&dyn Staging> {
    rig.engine().staging()
}

/// The largest loan that a check takes, bytes.
fn large(staging: &dyn Staging) -> usize {
    usize::try_from(staging.limits().bytes_max.min(2 << 20)).expect("2 MiB at most")
}

fn borrow(staging: &dyn Staging, bytes: usize) -> Loan {
    match staging.borrow_bytes(bytes) {
        Ok(loan) => loan,
        Err(fault) => panic!("no loan of {bytes} bytes: {:?} {fault}", fault.kind),
    }
}

/// Clauses 1 and 2: the limits stand, a loan has the bytes asked for, and what is dropped can be lent again.
pub fn loans_come_back_and_are_lent_again(factory: &Factory<'_>) {
    let Some(rig) = factory() else { return };
    let Some(staging) = staging(&rig) else { return };
    let limits = staging.limits();
    assert!(0 < limits.bytes_max && 0 < limits.keys_max, "{limits:?}");
    for _ in 0..LOANS_MAX {
        for bytes in [1, large(staging).min(1001), large(staging)] {
            let Loan { memory, overflow } = borrow(staging, bytes);
            assert!(bytes <= memory.len(), "{} bytes lent of {bytes}", memory.len());
            assert!(!overflow, "a single loan of {bytes} bytes is no overflow");
        }
    }
    assert_eq!(staging.limits(), limits, "limits stand");
}

/// Clause 1: reads write a loan as it is, at any address of it.
pub fn loans_take_reads_at_any_address(factory: &Factory<'_>) {
    let Some(rig) = factory() else { return };
    let Some(staging) = staging(&rig) else { return };
    let lens = [1, 3, 7, 64, 1001, 4096, 5];
    let names: Vec<String> = (0..lens.len()).map(|at| rig.key(&format!("loan/{at}"))).collect();
    let values: Vec<Vec<u8>> = (0..).zip(lens).map(|(seed, len)| pattern(seed, len)).collect();
    for (name, value) in names.iter().zip(&values) {
        rig.put(name, value);
    }
    let memory = borrow(staging, lens.iter().sum()).memory;
    let mut end = 0;
    let mut reads = Vec::new();
    for (key, len) in names.iter().zip(lens) {
        let target = memory.target(end..end + len);
        end += len;
        reads.push(ReadOp::whole(key, target));
    }
    for (result, len) in rig.engine().read_batch(&reads).into_iter().zip(lens) {
        assert_eq!(result, Ok(len as u64), "into a loan that nobody else registered");
    }
    assert_same(&memory.source(0..end).to_vec(), &values.concat());
}

/// Clauses 1 and 2: loans that are out have memory of their own; past the bound there is none, at once, until one is back.
pub fn loans_out_at_a_time_never_overlap(factory: &Factory<'_>) {
    let Some(rig) = factory() else { return };
    let Some(staging) = staging(&rig) else { return };
    let bytes = large(staging);
    let mut loans = Vec::new();
    let refused = loop {
        match staging.borrow_bytes(bytes) {
            Ok(loan) => loans.push(loan),
            Err(fault) => break Some(fault),
        }
        if loans.len() == LOANS_MAX {
            break None;
        }
    };
    for (seed, loan) in (0..).zip(&loans) {
        let value = pattern(seed, bytes);
        copy(
            Source::from(value.as_slice()),
            &loan.memory.target(0..bytes),
            CopyMode::Cached,
        );
    }
    for (seed, loan) in (0..).zip(&loans) {
        assert_same(&loan.memory.source(0..bytes).to_vec(), &pattern(seed, bytes));
    }
    let Some(fault) = refused else { return };
    assert_eq!(fault.kind, FaultKind::NoLoan, "past what it can lend: {fault}");
    assert!(!fault.message.is_empty(), "it says why");
    loans.pop().expect("one loan at least before the first refusal");
    borrow(staging, bytes);
}

/// Clause 3: a loan that is out does not keep its engine from closing, and may end afterwards; there are no new ones.
pub fn a_loan_may_end_after_its_engine(factory: &Factory<'_>) {
    let Some(rig) = factory() else { return };
    let Some(staging) = staging(&rig) else { return };
    let bytes = large(staging).min(1000);
    let loan = borrow(staging, bytes);
    rig.engine().close().expect("the engine closes though a loan is out");
    staging
        .borrow_bytes(bytes)
        .expect_err("a loan of an engine that is closed");
    drop(loan);
    staging
        .borrow_bytes(bytes)
        .expect_err("a loan of an engine that is closed, with none out");
}
