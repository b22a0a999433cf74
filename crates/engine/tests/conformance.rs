//! The suite over the embedded engine, and over it inside every decorator that spoils nothing.
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;
use tensorlease_engine::conformance::{self, Factory, Rig};
use tensorlease_engine::decorators::{
    Choice, FailOn, Failing, Gate, Gated, KeyLosing, LateWriting, Observing, ShortReading, Slow, from_spec,
};
use tensorlease_engine::{Embedded, EmbeddedOptions, Engine, FaultKind, RegisterError, conformance_tests};
use tensorlease_memory::pin::PinError;

const CAPACITY_BYTES: u64 = 32 << 20;

fn store(pinned: bool) -> Result<Arc<dyn Engine>, RegisterError> {
    let options = EmbeddedOptions {
        capacity_bytes: CAPACITY_BYTES,
        pinned,
    };
    Ok(Arc::new(Embedded::new(&options)?))
}

fn rig(engine: Arc<dyn Engine>) -> Option<Rig> {
    Some(Rig::new(engine).with_capacity(CAPACITY_BYTES))
}

fn plain() -> Arc<dyn Engine> {
    store(false).expect("an engine that registers nothing needs nothing")
}

fn embedded() -> Option<Rig> {
    rig(plain())
}

/// Where the kernel allows no io_uring the error must say so; a CI run must not pass without having tested it.
fn embedded_pinned() -> Option<Rig> {
    match store(true) {
        Ok(engine) => rig(engine),
        Err(error) => {
            let cause = error.source().and_then(|source| source.downcast_ref::<PinError>());
            assert!(
                matches!(error, RegisterError::Unsupported { .. }),
                "a typed error: {error:?}"
            );
            assert!(
                matches!(cause, Some(PinError::Refused { .. } | PinError::MemlockTooLow { .. })),
                "its cause: {cause:?}"
            );
            assert!(
                std::env::var_os("CI").is_none(),
                "CI must be able to pin memory: {error:?}"
            );
            eprintln!("skipped, memory can't be pinned here: {cause:?}");
            None
        }
    }
}

fn pinned_in_decorators() -> Option<Rig> {
    embedded_pinned()?;
    let store = store(true).expect("pinning worked a moment ago");
    rig(from_spec("fail:full:0+short:0+late:1ms:0+lose:0+slow:0ms+hang:0ms", store).expect("a valid spec"))
}

fn failing() -> Option<Rig> {
    rig(Arc::new(Failing::new(
        plain(),
        FaultKind::Transient,
        FailOn::ALL,
        Choice::never(),
    )))
}

fn short_reading() -> Option<Rig> {
    rig(Arc::new(ShortReading::new(plain(), Choice::never())))
}

fn slow() -> Option<Rig> {
    rig(Arc::new(Slow::new(plain(), Duration::ZERO)))
}

fn gated() -> Option<Rig> {
    rig(Arc::new(Gated::new(plain(), Gate::new())))
}

fn late_writing() -> Option<Rig> {
    rig(Arc::new(LateWriting::new(plain(), Duration::ZERO, Choice::never())))
}

fn key_losing() -> Option<Rig> {
    rig(Arc::new(KeyLosing::new(plain(), 0.0, 1)))
}

fn observing() -> Option<Rig> {
    rig(Arc::new(Observing::new(plain())))
}

conformance_tests!(on_embedded, embedded);
conformance_tests!(on_embedded_pinned, embedded_pinned);
conformance_tests!(on_pinned_in_decorators, pinned_in_decorators);
conformance_tests!(on_failing, failing);
conformance_tests!(on_short_reading, short_reading);
conformance_tests!(on_slow, slow);
conformance_tests!(on_gated, gated);
conformance_tests!(on_late_writing, late_writing);
conformance_tests!(on_key_losing, key_losing);
conformance_tests!(on_observing, observing);

type Check = fn(&Factory<'_>);

/// A suite that passes everything proves nothing: engines that do harm must fail the checks of the clauses they break.
#[test]
fn the_suite_notices_harm() {
    let spoiled: [(&str, Check); 9] = [
        ("short:1", conformance::objects_of_every_size_come_back),
        ("short:1", conformance::targets_may_be_unaligned_and_tightly_packed),
        ("lose:1", conformance::odd_keys_are_keys),
        ("lose:1", conformance::contains_agrees_with_writes),
        ("lose:1", conformance::describe_knows_size_and_tag),
        ("fail:transient:1", conformance::a_replace_may_change_the_size),
        ("fail:notfound:1", conformance::removing_a_missing_key_is_false),
        ("fail:refused:call2", conformance::a_full_batch_is_served),
        ("late:0ms:1", conformance::targets_stay_as_they_are_after_the_call),
    ];
    for (spec, check) in spoiled {
        let factory = || rig(from_spec(spec, plain()).expect("a valid spec"));
        let outcome = std::panic::catch_unwind(|| check(&factory));
        assert!(outcome.is_err(), "{spec} passed a check that it must fail");
    }
}
