//! What the engine contract promises of every call, checked: one result per key, no panic.

use crate::parts::Core;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tensorlease_engine::{Fault, FaultKind, Loan, Staging};

impl Core {
    /// Makes a call on the engine for `asked` keys. Where it breaks its promises, every key has failed.
    pub(crate) fn answers<T>(
        &self,
        asked: usize,
        call: impl FnOnce() -> Vec<Result<T, Fault>>,
    ) -> Vec<Result<T, Fault>> {
        let name = self.capabilities.name;
        let broken = match catch_unwind(AssertUnwindSafe(call)) {
            Ok(results) if results.len() == asked => return results,
            Ok(results) => format!("the {name} engine gave {} results for {asked} keys", results.len()),
            Err(_) => format!("the {name} engine panicked"),
        };
        (0..asked).map(|_| Err(self.broken(broken.clone()))).collect()
    }

    /// A loan of at least `bytes`. An engine that breaks its promise here lends nothing: values are read another way.
    pub(crate) fn borrow(&self, staging: &dyn Staging, bytes: usize) -> Result<Loan, Fault> {
        let name = self.capabilities.name;
        let broken = match catch_unwind(AssertUnwindSafe(|| staging.borrow_bytes(bytes))) {
            Ok(Ok(loan)) if loan.memory.len() < bytes => {
                format!("the {name} engine lent {} bytes of {bytes}", loan.memory.len())
            }
            Ok(lent) => return lent,
            Err(_) => format!("the {name} engine panicked"),
        };
        Err(Fault::new(FaultKind::NoLoan, 0, broken))
    }

    /// The fault of an engine that broke its contract: nobody knows what it still does.
    pub(crate) fn broken(&self, message: String) -> Fault {
        let kind = if self.capabilities.late_writes {
            FaultKind::MayStillWrite
        } else {
            FaultKind::Refused
        };
        Fault::new(kind, 0, message)
    }
}
