//! Reads whose memory is registered for each call: the baseline.

use crate::{
    announcing::{assert_said, said},
    retries::assert_halved,
    support::{KIB, MIB, Rig, assert_idle, budget, free_engine, stat},
};
use tensorlease::{Delivery, Options};

#[test]
fn register_per_call_is_one_registration_per_dtype_and_batch_of_400() {
    let rig = Rig::registering(free_engine(), &budget(16 * MIB));
    let lens = vec![KIB; 401];
    let values = rig.fill(&lens);
    let read = rig.read(&lens, Delivery::RegisterPerCall).unwrap();
    assert!(
        read.iter()
            .zip(&values)
            .all(|(read, value)| read.as_slice() == value.as_slice())
    );
    assert_eq!(rig.registrations(), 2);
    let mut calls: Vec<usize> = rig.calls.reads().iter().map(Vec::len).collect();
    calls.sort_unstable();
    assert_eq!(calls, [1, 400]);
    assert_eq!(stat(&rig.store, "hot_path_register_calls"), 2);
}

#[test]
fn a_value_larger_than_one_registration_is_registered_in_pieces_for_its_call() {
    let claims = crate::support::Claims {
        registration_bytes_max: Some(MIB),
        ..crate::support::Claims::registering()
    };
    let rig = Rig::claiming(free_engine(), claims, &budget(64 * MIB));
    let len = 3 * MIB + 5000;
    let values = rig.fill(&[len]);
    let before = rig.store.stats().get("hot_path_register_calls");
    let read = rig.read(&[len], Delivery::RegisterPerCall).unwrap();
    assert!(read[0].as_slice() == values[0].as_slice(), "every byte at its place");
    assert_eq!(rig.store.stats().get("hot_path_register_calls") - before, 4.0);
    drop(read);
    assert_idle(&rig.store);
}

#[test]
fn a_read_registered_per_call_that_expired_is_halved_and_lands_in_the_same_memory() {
    assert_halved(Delivery::RegisterPerCall);
}

#[test]
fn the_line_at_open_names_a_registration_per_call_whatever_the_budget() {
    for max_bytes in [4096, 16 * MIB] {
        let options = Options {
            delivery: Delivery::RegisterPerCall,
            ..budget(max_bytes)
        };
        let named = "register-per-call delivery";
        let free = "each read takes memory of its own (delivery=register-per-call, no registration needed)";
        let registering = "each read registers its own memory (delivery=register-per-call)";
        assert_said(&said(|| Rig::new(free_engine(), &options)), &[named, free]);
        assert_said(
            &said(|| Rig::registering(free_engine(), &options)),
            &[named, registering],
        );
    }
}
