//! Memory that an engine registered for itself and lends.
use crate::Fault;
use tensorlease_memory::CallerMemory;

/// Lends registered memory of the engine's own, one loan per transfer: the client reads into it and copies out.
///
/// The contract, and in brackets the check of the conformance suite that proves each clause:
///
/// 1. **Memory.** A loan has at least the bytes asked for, and the engine writes it like registered memory, at any address of
///    it. No two loans that are out share memory. (`loans_come_back_and_are_lent_again`, `loans_take_reads_at_any_address`,
///    `loans_out_at_a_time_never_overlap`)
/// 2. **No waiting.** Where there is no loan now, the answer is [`FaultKind::NoLoan`](crate::FaultKind::NoLoan) at once, with
///    the cause in words, and the client goes another way. Dropping the memory gives it back, in any thread, and what is back
///    can be lent again. (`loans_out_at_a_time_never_overlap`, `loans_come_back_and_are_lent_again`)
/// 3. **Closing.** The client keeps a loan that a transfer may still write until the engine is closed. So loans that are out
///    keep no engine from closing, and may be dropped afterwards, also when the engine object is gone. A closed engine lends
///    nothing. (`a_loan_may_end_after_its_engine`)
/// 4. **In silence nothing.** Memory that the engine allocated or registered just for one loan is marked `overflow`.
///    (`loans_come_back_and_are_lent_again`)
pub trait Staging: Send + Sync {
    /// How transfers through loans are cut. Constant from open to close.
    fn limits(&self) -> LoanLimits;
    /// At least `bytes` bytes that the engine can write; the client asks for 1 to `LoanLimits::bytes_max`.
    ///
    /// # Errors
    /// The fault of every key that was to be read through it.
    fn borrow_bytes(&self, bytes: usize) -> Result<Loan, Fault>;
}

/// Bounds of the transfers through loans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoanLimits {
    /// Most bytes of one loan, at least 1: what is larger goes another way.
    pub bytes_max: u64,
    /// Keys are taken in batches of this many, at least 1, each cut by `bytes_max`. More than the engine takes in one call
    /// are read in several calls into one loan.
    pub keys_max: usize,
}

/// Memory on loan.
#[derive(Debug)]
pub struct Loan {
    /// The memory; its drop ends the loan.
    pub memory: CallerMemory,
    /// Did the engine allocate and register it just for this loan, in silence?
    pub overflow: bool,
}
