//! What a forked child may do with what it inherited: read, drop, and change nothing of its parent's.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used)]

use tensorlease_arena::{Budget, SlabKind};
use tensorlease_memory::{Buffer, CopyMode, ForkPolicy, Lease, Mapping, MappingKind, Pool, copy, fork, limits};

fn leased(pool: &Pool) -> Lease {
    let blocks = pool.acquire(SlabKind::Lease, &[(1000, 64)]).blocks;
    copy((&[7u8; 1000][..]).into(), &blocks[0].target(0..1000), CopyMode::Cached);
    pool.lease(blocks).pop().unwrap()
}

/// Runs `child` in a forked child; true if it returned true there.
fn in_child(child: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child runs only code of this test, which takes no lock, and leaves by `_exit`.
    let process = unsafe { libc::fork() };
    assert!(process >= 0, "{}", std::io::Error::last_os_error());
    if process == 0 {
        let code = if child() { 0 } else { 1 };
        // SAFETY: ends the child without running anything of the test harness.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child; `status` is valid for the write.
    let waited = unsafe { libc::waitpid(process, &raw mut status, 0) };
    assert_eq!(waited, process);
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

#[test]
fn a_child_knows_that_it_is_one() {
    let parent = fork::generation();
    assert!(in_child(|| fork::generation() != parent));
    assert_eq!(fork::generation(), parent);
}

#[test]
fn a_deleter_in_a_forked_child_does_nothing() {
    let bytes = 1 << 20;
    let budget = Budget::new(bytes, limits::page_bytes() as u64)
        .unwrap()
        .without_bounce();
    let pool = Pool::new("arena", budget, ForkPolicy::Inherit);
    pool.admit(pool.make_slab(SlabKind::Lease, bytes, bytes).unwrap().unwrap());
    let (lease, buffer) = (leased(&pool), Buffer::from(leased(&pool)));
    let in_flight = pool.acquire(SlabKind::Lease, &[(10, 64)]).blocks;
    let held = pool.usage();
    assert_eq!(held.blocks, 3);

    let mut inherited = Some((lease, buffer, in_flight));
    let books_untouched = in_child(|| {
        let (lease, buffer, in_flight) = inherited.take().unwrap();
        let readable = lease.as_slice() == [7; 1000] && buffer.as_slice() == [7; 1000];
        drop((lease, buffer, in_flight));
        // The lock was free at the fork, so asking is fine here: what was dropped is still held in the child's books.
        readable && pool.usage() == held
    });
    assert!(books_untouched);
    let (lease, ..) = inherited.as_ref().unwrap();
    assert_eq!(lease.as_slice(), [7; 1000]);
    assert_eq!(pool.usage(), held);
    drop(inherited);
    assert_eq!(pool.usage().blocks, 0, "the parent's deleters work on");
}

#[test]
fn a_child_that_did_not_get_a_mapping_leaves_its_addresses_alone() {
    let bytes = 4 * limits::page_bytes();
    let mapping = Mapping::new(MappingKind::Anonymous, bytes).unwrap();
    mapping.populate().unwrap();
    mapping.exclude_from_fork().unwrap();
    let at = mapping.region().addr;
    let mut inherited = Some(mapping);
    assert!(in_child(|| {
        let (access, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
        );
        let wanted = std::ptr::without_provenance_mut(at);
        // SAFETY: asks for a range that is free in this child; an existing mapping would be refused, not replaced.
        let own = unsafe { libc::mmap(wanted, bytes, access, flags, -1, 0) };
        let got_them = own.addr() == at;
        drop(inherited.take());
        // SAFETY: asks about pages of the mapping above; the answer says whether it is still there.
        got_them && unsafe { libc::msync(own, bytes, libc::MS_ASYNC) } == 0
    }));
    let kept = inherited.unwrap();
    assert_eq!(
        kept.source(0..bytes).to_vec(),
        vec![0; bytes],
        "the parent's is as it was"
    );
}
