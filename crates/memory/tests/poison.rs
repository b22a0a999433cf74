//! Under AddressSanitizer memory that nobody holds is off limits. Runs only with the feature `poison`:
//! `RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address cargo test -p tensorlease-memory --features poison --target x86_64-unknown-linux-gnu`
#![cfg(all(feature = "poison", not(loom)))]
#![allow(clippy::unwrap_used)]

use std::process::Command;
use tensorlease_arena::{Budget, SlabKind};
use tensorlease_memory::{CopyMode, ForkPolicy, InFlight, Mapping, MappingKind, Pool, copy, limits};

const SLAB_BYTES: u64 = 1 << 20;
const CHILD: &str = "TENSORLEASE_TEST_POISON_CHILD";

// SAFETY: the signature is that of the sanitizer's public header (asan_interface.h).
unsafe extern "C" {
    fn __asan_address_is_poisoned(addr: usize) -> i32;
}

fn poisoned(addr: usize) -> bool {
    // SAFETY: only looks up the runtime's own record of the address.
    unsafe { __asan_address_is_poisoned(addr) != 0 }
}

fn pool() -> Pool {
    let budget = Budget::new(SLAB_BYTES, limits::page_bytes() as u64)
        .unwrap()
        .without_bounce();
    let pool = Pool::new("arena", budget, ForkPolicy::Inherit);
    pool.admit(
        pool.make_slab(SlabKind::Lease, SLAB_BYTES, SLAB_BYTES)
            .unwrap()
            .unwrap(),
    );
    pool
}

fn one(pool: &Pool, len: u64) -> InFlight {
    pool.acquire(SlabKind::Lease, &[(len, 64)]).blocks.pop().unwrap()
}

#[test]
fn only_the_bytes_asked_for_may_be_touched_and_only_while_they_are_held() {
    let pool = pool();
    assert!(poisoned(pool.regions()[0].addr));
    let block = one(&pool, 100);
    let region = block.region();
    assert!(!poisoned(region.addr) && !poisoned(region.end() - 1));
    assert!(poisoned(region.end()), "the rest of the block");
    let lease = pool.lease(vec![block]).pop().unwrap();
    assert!(!poisoned(region.addr));
    drop(lease);
    assert!(poisoned(region.addr));
    let again = one(&pool, 64);
    assert_eq!(again.region().addr, region.addr);
    assert!(!poisoned(region.addr) && poisoned(region.addr + 64));
}

#[test]
fn quarantined_bytes_may_not_be_touched_before_they_are_handed_out_again() {
    let pool = pool();
    let block = one(&pool, 4096);
    let addr = block.region().addr;
    pool.quarantine(block);
    assert!(poisoned(addr));
    pool.end_quarantine();
    assert!(poisoned(addr));
    let again = one(&pool, 4096);
    assert!(again.region().addr == addr && !poisoned(addr));
}

#[test]
fn addresses_of_a_slab_that_is_gone_are_usable_again() {
    let pool = pool();
    let slab = pool.regions()[0];
    drop(pool);
    assert!(!poisoned(slab.addr));
    let mapping = Mapping::new(MappingKind::Anonymous, slab.len).unwrap();
    copy((&[1u8; 64][..]).into(), &mapping.target(0..64), CopyMode::Cached);
}

#[test]
fn a_late_copy_into_quarantined_memory_ends_the_process() {
    if std::env::var_os(CHILD).is_some() {
        let pool = pool();
        let block = one(&pool, 4096);
        // SAFETY: quarantined memory stays mapped.
        let late = unsafe { block.target(0..4096).detach() };
        pool.quarantine(block);
        copy((&[1u8; 4096][..]).into(), &late, CopyMode::NonTemporal);
        return;
    }
    let child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "a_late_copy_into_quarantined_memory_ends_the_process",
            "--nocapture",
        ])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stderr);
    assert!(!child.status.success() && said.contains("use-after-poison"), "{said}");
}
