//! The embedded engine under many threads.
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tensorlease_engine::conformance::{Rig, pattern};
use tensorlease_engine::{Embedded, EmbeddedOptions, FaultKind, Tag};

fn store(capacity_bytes: u64) -> Rig {
    let options = EmbeddedOptions {
        capacity_bytes,
        pinned: false,
    };
    Rig::new(Arc::new(
        Embedded::new(&options).expect("an engine that registers nothing needs nothing"),
    ))
}

/// An object that proves itself: eight bytes of seed, then the pattern of that seed.
fn sealed(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = seed.to_le_bytes().to_vec();
    bytes.extend(pattern(seed, len - 8));
    bytes
}

fn assert_sealed(bytes: &[u8]) {
    let seed = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
    assert!(
        bytes == sealed(seed, bytes.len()),
        "an object that is none that was ever written"
    );
}

#[test]
fn puts_gets_and_removals_of_shared_keys_never_show_a_broken_object() {
    // Too small for all keys at their largest, so that threads also meet a full store and scattered objects.
    let rig = store(2 << 20);
    let (hits, fulls) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (rig, hits, fulls) = (&rig, &hits, &fulls);
            scope.spawn(move || {
                for round in 0..400_u64 {
                    let number = (round * 7 + thread * 13) % 31;
                    let key = format!("shared/{number}");
                    // A key has one of two sizes, so that a reader may guess wrong while it is replaced.
                    let len = |odd: u64| 8 + 20_000 + 9000 * usize::try_from(number + odd).expect("a small number");
                    match round % 4 {
                        0 | 1 => match rig.write(&key, &sealed(thread << 32 | round, len(round & 1)), &Tag::new(b"")) {
                            Ok(()) => {}
                            Err(fault) if fault.kind == FaultKind::Full => drop(fulls.fetch_add(1, Relaxed)),
                            Err(fault) => panic!("a write: {fault}"),
                        },
                        2 => match rig.read(&key, len(thread & 1)) {
                            Ok(bytes) => {
                                assert_sealed(&bytes);
                                hits.fetch_add(1, Relaxed);
                            }
                            Err(fault) => {
                                let usual = matches!(fault.kind, FaultKind::NotFound | FaultKind::Mismatch);
                                assert!(usual, "a read: {fault}");
                            }
                        },
                        _ => drop(rig.engine().remove_batch(&[&key])),
                    }
                }
            });
        }
    });
    assert!(hits.load(Relaxed) > 0, "some reads must have found something");
    assert!(fulls.load(Relaxed) > 0, "the store must have been full at times");
    rig.engine().remove_prefix("").expect("an open store");
    let stats = rig.engine().stats();
    assert_eq!(
        (stats.objects, stats.object_bytes),
        (0, 0),
        "counters agree after all threads are done"
    );
    (0..2).for_each(|index| rig.put(&format!("after/{index}"), &sealed(index, 1 << 20)));
}

#[test]
fn writers_that_grow_the_store_together_find_room_for_all() {
    // The second writer must wait for the first one's slab rather than find the budget taken.
    for _ in 0..20 {
        let rig = store(8 << 20);
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let rig = &rig;
                scope.spawn(move || rig.put(&format!("{thread}"), &sealed(thread, 1 << 20)));
            }
        });
        (0..8).for_each(|thread| rig.expect(&format!("{thread}"), &sealed(thread, 1 << 20)));
    }
}
