//! Memory on loan from the engine, for one call.

use crate::{
    FallbackKind,
    calls::{EngineCall, Gate},
    parts::Parts,
    read::{execute, groups::Group, job::Finished, landing::index},
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};
use tensorlease_engine::{Fault, FaultKind, Loan, Staging};
use tensorlease_memory::Landing;

/// One engine call of a read through loans.
pub(super) enum Call {
    /// It needs no loan.
    Plain(Group),
    /// Its bytes go through a loan.
    Lent(Group),
}

/// What became of one transfer.
pub(super) struct Done {
    pub(super) finished: Finished,
    /// It never ran: why there was no loan for it.
    pub(super) unlent: Option<FallbackKind>,
}

/// Why there is no loan. With a kind: the engine lent none.
type NoLoan = (Fault, Option<FallbackKind>);

impl EngineCall for Call {
    type Context = Parts;
    type Done = Done;

    fn execute(self, parts: &Arc<Parts>, gate: &Gate<'_>) -> Vec<Done> {
        let (finished, unlent) = match self {
            Self::Plain(group) => (group.execute(parts, gate), None),
            Self::Lent(group) => through_loan(parts, group, gate),
        };
        let done = |finished| Done { finished, unlent };
        finished.into_iter().map(done).collect()
    }

    fn bounces(&self) -> bool {
        matches!(self, Self::Plain(group) if group.bounces())
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::Plain(group) | Self::Lent(group) => group.bytes(),
        }
    }
}

fn through_loan(parts: &Parts, group: Group, gate: &Gate<'_>) -> (Vec<Finished>, Option<FallbackKind>) {
    let Group { transfers, items, .. } = group;
    let bytes = transfers.iter().map(|transfer| transfer.len).sum();
    let (results, unlent) = match borrow(parts, bytes) {
        Ok(loan) => (execute::staged(parts, &items, &transfers, loan, true, gate), None),
        Err((fault, unlent)) => (vec![Err(fault); transfers.len()], unlent),
    };
    (execute::finished(parts, transfers, results), unlent)
}

fn borrow(parts: &Parts, bytes: u64) -> Result<Landing, NoLoan> {
    let loan = lend(parts, index(bytes)).map_err(|fault| {
        let unlent = (fault.kind == FaultKind::NoLoan).then_some(FallbackKind::NoLoan);
        (fault, unlent)
    })?;
    parts.accounts.counters().loans.add(1);
    if loan.overflow {
        let kind = FallbackKind::LoanOverflow;
        parts.accounts.count_reason(kind, 1, None);
        if parts.options.strict {
            let fault = Fault::new(FaultKind::NoLoan, 0, format!("{bytes} bytes on their own"));
            return Err((fault, Some(kind)));
        }
    }
    Ok(Landing::Caller(loan.memory))
}

/// A loan of at least `bytes`. An engine that breaks its promise here lends nothing: values are read another way.
fn lend(parts: &Parts, bytes: usize) -> Result<Loan, Fault> {
    let name = parts.calls.claims().name;
    let nothing = |why: String| Err(Fault::new(FaultKind::NoLoan, 0, why));
    let Some(staging) = parts.calls.engine().staging() else {
        return nothing(format!("the {name} engine lends nothing"));
    };
    match catch_unwind(AssertUnwindSafe(|| Staging::borrow_bytes(staging, bytes))) {
        Ok(Ok(loan)) if loan.memory.len() < bytes => {
            nothing(format!("the {name} engine lent {} bytes of {bytes}", loan.memory.len()))
        }
        Ok(lent) => lent,
        Err(_) => nothing(format!("the {name} engine panicked")),
    }
}
