//! Memory that an engine registered for itself and lends.
use crate::Fault;
use tensorlease_memory::Foreign;

/// Lends registered memory of the engine's own, one loan per transfer: the client reads into it and copies out.
///
/// A loan is never waited for: where none can be had now, [`Staging::borrow_bytes`] says why at once
/// ([`FaultKind::NoLoan`](crate::FaultKind::NoLoan)), and the client goes another way. Dropping the memory of a loan gives it back.
pub trait Staging: Send + Sync {
    /// How transfers through loans are cut.
    fn limits(&self) -> LoanLimits;
    /// At least `bytes` bytes (at most `LoanLimits::bytes_max`) that the engine can write.
    fn borrow_bytes(&self, bytes: usize) -> Result<Loan, Fault>;
}

/// Bounds of the transfers through loans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoanLimits {
    /// Most bytes of one loan: what is larger goes another way.
    pub bytes_max: u64,
    /// Keys are taken in batches of this many, at least 1, each cut by `bytes_max`.
    pub keys_max: usize,
}

/// Memory on loan.
#[derive(Debug)]
pub struct Loan {
    /// The memory; its drop ends the loan.
    pub memory: Foreign,
    /// Did the engine allocate and register it just for this loan, in silence?
    pub overflow: bool,
}
