//! Many reads of which some values are kept: nothing leaks, nothing changes. `TENSORLEASE_SOAK_READS=2000` for the long run.

use crate::support::{MIB, Rig, assert_idle, budget, free_engine, pattern, stat, tensor_item};
use std::thread;
use tensorlease::{Buffer, Delivery, Patience, PutItem};

const KEYS: u64 = 8;

/// Reads of the soak; in every one 1 to 3 values, 8 to 32 MiB in all.
fn reads() -> u64 {
    let text = std::env::var("TENSORLEASE_SOAK_READS").unwrap_or_else(|_| "200".to_owned());
    text.parse().expect("TENSORLEASE_SOAK_READS is a number of reads")
}

fn value_len(key: u64) -> u64 {
    8 * MIB + (key * 444_443) % (2 * MIB)
}

/// A random number from a seed, good enough to choose by.
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state >> 11
}

/// One thread's part: every value is compared when it comes and, where it was kept, when it goes.
fn soak(rig: &Rig, values: &[Vec<u8>], reads: u64, seed: u64) {
    const DELIVERIES: [Delivery; 4] = [Delivery::Auto, Delivery::Leased, Delivery::Leased, Delivery::Copied];
    let mut state = seed * 7919 + 1;
    let mut kept: Vec<(usize, Buffer)> = Vec::new();
    for _ in 0..reads {
        let count = 1 + random(&mut state) % 3;
        let chosen: Vec<u64> = (0..count).map(|_| random(&mut state) % KEYS).collect();
        let items = chosen
            .iter()
            .map(|key| tensor_item(&format!("k{key}"), value_len(*key)));
        let delivery = DELIVERIES[usize::try_from(random(&mut state) % 4).unwrap()];
        let read = rig.read_items(items.collect(), delivery, Patience::default()).unwrap();
        for (key, buffer) in chosen.iter().zip(read) {
            let key = usize::try_from(*key).unwrap();
            assert!(buffer[..] == values[key][..], "k{key} came wrong");
            if random(&mut state).is_multiple_of(10) {
                kept.push((key, buffer));
            }
        }
        if 6 < kept.len() {
            let (key, buffer) = kept.swap_remove(usize::try_from(random(&mut state) % 6).unwrap());
            assert!(buffer[..] == values[key][..], "k{key} changed while it was kept");
        }
    }
    for (key, buffer) in kept {
        assert!(buffer[..] == values[key][..], "k{key} changed while it was kept");
    }
}

fn run(threads: u64) {
    let rig = Rig::registering(free_engine(), &budget(128 * MIB));
    let values: Vec<Vec<u8>> = (0..KEYS).map(|key| pattern(key, value_len(key))).collect();
    for (key, value) in (0..KEYS).zip(&values) {
        let spec = crate::support::bytes_spec(value_len(key));
        let item = PutItem::tensor(format!("k{key}"), spec, value.clone());
        rig.store.put(vec![item], Patience::default()).unwrap();
    }
    rig.calls.take();
    let each = reads() / threads;
    thread::scope(|scope| {
        for seed in 0..threads {
            let (rig, values) = (&rig, &values);
            scope.spawn(move || soak(rig, values, each, seed));
        }
    });
    assert!(stat(&rig.store, "arena_bytes") <= 128 * MIB);
    assert!(each * threads <= stat(&rig.store, "read_keys"));
    assert_idle(&rig.store);
    for name in ["quarantined_bytes", "abandoned_calls", "retries"] {
        assert_eq!(stat(&rig.store, name), 0, "{name}");
    }
    let _freed = rig.store.trim();
    assert_eq!(stat(&rig.store, "arena_bytes"), 0);
    assert_eq!(stat(&rig.store, "copy_cache_bytes"), 0);
}

#[test]
fn many_reads_with_some_values_kept_leave_nothing_behind() {
    run(1);
}

#[test]
fn the_same_with_four_threads() {
    run(4);
}
