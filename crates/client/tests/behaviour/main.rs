//! The public behaviour of a store, one theme per file. `support` holds the fixtures: every store of this suite runs over
//! an engine that checks what the client promised to engines.

#![allow(clippy::unwrap_used, reason = "all of this crate is a test")]
#![allow(clippy::cast_possible_truncation, reason = "lengths of a test fit in an address")]

mod support;

mod abandonment;
mod announcing;
mod budgets;
mod closing;
mod deliveries;
mod describing;
mod duplicates;
mod errors;
mod fallbacks;
mod growing;
mod host_room;
mod invariants;
mod layout;
mod lender_contract;
mod loan_failures;
mod loan_fallbacks;
mod loans;
mod namespaces;
mod quarantine;
mod reads_registered_per_call;
mod retries;
mod soak;
mod writes;
mod writes_registered_per_call;
