//! One suite that every engine passes: each check proves one clause of the [`Engine`](crate::Engine) contract.
//!
//! An engine's crate turns the suite into tests of its own, one per check:
//!
//! ```
//! use std::sync::Arc;
//! use tensorlease_engine::{Embedded, EmbeddedOptions, conformance::Rig, conformance_tests};
//!
//! fn embedded() -> Option<Rig> {
//!     let capacity_bytes = 48 << 20;
//!     let engine = Embedded::new(&EmbeddedOptions { capacity_bytes, pinned: false }).ok()?;
//!     Some(Rig::new(Arc::new(engine)).with_capacity(capacity_bytes))
//! }
//!
//! conformance_tests!(embedded_engine, embedded);
//! # fn main() {}
//! ```
//!
//! What an engine does not claim in its [`Capabilities`](crate::Capabilities) is not asked of it. The engine of a rig must hold at
//! least 32 MiB and must be empty, or be given a key prefix of its own. Checks panic with what went wrong.
mod closing;
mod concurrency;
mod full;
mod identity;
mod loans;
mod questions;
mod reads;
mod registration;
mod removes;
mod results;
mod rig;
mod stats;
mod writes;

pub use closing::*;
pub use concurrency::*;
pub use full::*;
pub use identity::*;
pub use loans::*;
pub use questions::*;
pub use reads::*;
pub use registration::*;
pub use removes::*;
pub use results::*;
pub use rig::{Factory, Rig, RigMemory, pattern};
pub use stats::*;
pub use writes::*;

/// Calls `$emit!(($args) [every check])`: the one list of checks.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_conformance_check {
    ($emit:path, $args:tt) => {
        $emit! { $args [
            a_closed_engine_refuses_every_call
            a_full_batch_is_served
            a_full_store_keeps_working
            a_loan_may_end_after_its_engine
            a_missing_key_leaves_the_others_unaffected
            a_prefix_removes_its_keys_only
            a_replace_is_atomic
            a_replace_may_change_the_size
            a_replace_that_does_not_fit_keeps_the_old_object
            a_replaced_object_has_another_version
            another_size_is_a_mismatch
            another_tag_is_a_mismatch
            calls_and_objects_are_counted
            close_is_idempotent
            closing_under_readers_is_safe
            contains_agrees_with_writes
            describe_knows_size_and_tag
            empty_calls_return_nothing
            free_registration_takes_any_memory
            loans_come_back_and_are_lent_again
            loans_out_at_a_time_never_overlap
            loans_take_reads_at_any_address
            neighbours_of_targets_stay_untouched
            no_tag_asked_means_any_tag
            objects_of_every_size_come_back
            odd_keys_are_keys
            ranges_come_from_their_offset
            ranges_past_the_end_are_refused
            readers_and_writers_run_concurrently
            registrations_are_checked
            removals_never_disturb_a_running_read
            removed_objects_are_gone
            removing_a_missing_key_is_false
            replaces_by_another_size_give_the_memory_back
            results_come_in_the_order_of_the_keys
            targets_may_be_unaligned_and_tightly_packed
            targets_stay_as_they_are_after_the_call
            unregistered_memory_is_refused_and_untouched
            written_segments_are_gathered
        ] }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! conformance_test_functions {
    (($factory:ident) [$($check:ident)+]) => {
        $(
            #[test]
            fn $check() {
                $crate::conformance::$check(&$factory);
            }
        )+
    };
}

/// A module `$name` with one `#[test]` per check; `$factory` is the name of a `fn() -> Option<Rig>` in scope.
#[macro_export]
macro_rules! conformance_tests {
    ($name:ident, $factory:ident) => {
        mod $name {
            use super::$factory;
            $crate::for_each_conformance_check!($crate::conformance_test_functions, ($factory));
        }
    };
}
