//! Pinning in the kernel, as far as this machine lets a process have an io_uring.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used)]

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use std::process::Command;
use std::time::{Duration, Instant};
use tensorlease_memory::pin::{PIN_BYTES_MAX, PIN_SLOTS, PinError, Pinner};
use tensorlease_memory::{Mapping, MappingKind, Region, limits};

const CHILD: &str = "TENSORLEASE_TEST_MEMLOCK_CHILD";

/// None, with a line that says so, where a sandbox refuses io_uring; then the error must be the typed one.
fn pinner() -> Option<Pinner> {
    match Pinner::new() {
        Ok(pinner) => Some(pinner),
        Err(error @ PinError::Refused { .. }) => {
            eprintln!("skipped: {error}");
            assert!(error.to_string().contains("registration=none"));
            None
        }
        Err(error) => panic!("{error}: {error:?}"),
    }
}

fn resident_bytes() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * limits::page_bytes()
}

fn populated(kind: MappingKind, len: usize) -> Mapping {
    let mapping = Mapping::new(kind, len).unwrap();
    mapping.populate().unwrap();
    mapping
}

fn part(region: Region, from: usize, len: usize) -> Region {
    Region {
        addr: region.addr + from,
        len,
    }
}

/// Makes a pinner whose pages the kernel counts in VmPin. Some kernels count none where a thread may lock any amount.
fn counted_pinner() -> Option<Pinner> {
    if limits::memlock_bytes().is_some_and(|limit| limit < 4 << 20) {
        eprintln!("skipped: RLIMIT_MEMLOCK is too low");
        return None;
    }
    let held = capabilities(None).unwrap();
    let mut fewer = held;
    fewer.effective.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, fewer).unwrap();
    let pinner = pinner();
    set_capabilities(None, held).unwrap();
    pinner
}

/// Bytes that the kernel counts as pinned by this process.
fn kernel_pinned_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap() * 1024
}

#[test]
fn pinned_memory_is_covered_until_it_is_unpinned() {
    let Some(pinner) = counted_pinner() else { return };
    for kind in [MappingKind::Anonymous, MappingKind::Sealed] {
        let mapping = populated(kind, 1 << 20);
        let region = mapping.region();
        assert!(!pinner.covers(region));
        pinner.pin(region).unwrap();
        assert!(kernel_pinned_bytes() >= 1 << 20, "{}", kernel_pinned_bytes());
        assert_eq!(pinner.pinned_bytes(), 1 << 20);
        for inside in [region, part(region, 100, 5000), part(region, (1 << 20) - 1, 1)] {
            assert!(pinner.covers(inside), "{inside:?}");
        }
        for outside in [part(region, 1, 1 << 20), part(region, 1 << 20, 1)] {
            assert!(!pinner.covers(outside), "{outside:?}");
        }
        pinner.unpin(region).unwrap();
        assert!(!pinner.covers(part(region, 0, 1)));
        assert_eq!(pinner.pinned_bytes(), 0);
    }
}

#[test]
fn two_pins_side_by_side_do_not_cover_what_lies_across() {
    let Some(pinner) = pinner() else { return };
    let page = limits::page_bytes();
    let mapping = populated(MappingKind::Anonymous, 2 * page);
    let (left, right) = (part(mapping.region(), 0, page), part(mapping.region(), page, page));
    pinner.pin(right).unwrap();
    pinner.pin(left).unwrap();
    assert!(pinner.covers(left) && pinner.covers(right));
    assert!(!pinner.covers(mapping.region()));
}

#[test]
fn memory_is_not_pinned_twice() {
    let Some(pinner) = pinner() else { return };
    let page = limits::page_bytes();
    let mapping = populated(MappingKind::Anonymous, 4 * page);
    let region = mapping.region();
    pinner.pin(part(region, page, 2 * page)).unwrap();
    for (from, len) in [
        (page, 2 * page),
        (0, 4 * page),
        (0, page + 1),
        (2 * page, page),
        (3 * page - 1, 1),
    ] {
        let refused = pinner.pin(part(region, from, len));
        assert!(
            matches!(refused, Err(PinError::Overlap { .. })),
            "{from} {len}: {refused:?}"
        );
    }
    pinner.pin(part(region, 0, page)).unwrap();
    pinner.pin(part(region, 3 * page, page)).unwrap();
}

#[test]
fn only_what_was_pinned_is_unpinned() {
    let Some(pinner) = pinner() else { return };
    let page = limits::page_bytes();
    let mapping = populated(MappingKind::Anonymous, 2 * page);
    let region = mapping.region();
    pinner.pin(region).unwrap();
    for unknown in [
        part(region, 0, page),
        part(region, page, page),
        part(region, 0, 3 * page),
    ] {
        assert!(matches!(pinner.unpin(unknown), Err(PinError::Unknown { .. })));
    }
    assert!(pinner.covers(region));
    pinner.unpin(region).unwrap();
    assert!(matches!(pinner.unpin(region), Err(PinError::Unknown { .. })));
}

#[test]
fn a_region_above_the_limit_is_refused_before_a_page_of_it_is_touched() {
    let Some(pinner) = pinner() else { return };
    let mapping = Mapping::new(MappingKind::Anonymous, PIN_BYTES_MAX + limits::page_bytes()).unwrap();
    let before = resident_bytes();
    let refused = pinner.pin(mapping.region());
    assert!(matches!(
        refused,
        Err(PinError::TooLarge {
            limit: PIN_BYTES_MAX,
            ..
        })
    ));
    // Other tests of this process touch some memory meanwhile.
    assert!(resident_bytes() < before + PIN_BYTES_MAX / 2);
    assert!(matches!(
        pinner.pin(part(mapping.region(), 0, 0)),
        Err(PinError::Empty { .. })
    ));
}

#[test]
fn memory_that_is_not_mapped_is_the_kernels_refusal_and_costs_no_slot() {
    let Some(pinner) = pinner() else { return };
    let gone = populated(MappingKind::Anonymous, 1 << 16).region();
    let nowhere = Region { addr: 1 << 12, ..gone };
    for _ in 0..PIN_SLOTS + 1 {
        assert!(matches!(pinner.pin(nowhere), Err(PinError::Kernel { .. })));
    }
    assert_eq!(pinner.pinned_bytes(), 0);
    let mapping = populated(MappingKind::Anonymous, 1 << 16);
    pinner.pin(mapping.region()).unwrap();
}

#[test]
fn all_slots_can_be_used_and_used_again() {
    let Some(pinner) = pinner() else { return };
    let page = limits::page_bytes();
    let pins = PIN_SLOTS as usize;
    let mapping = populated(MappingKind::Anonymous, (pins + 1) * page);
    if limits::memlock_bytes().is_some_and(|limit| limit < 2 * mapping.len() as u64) {
        eprintln!("skipped: RLIMIT_MEMLOCK is too low for {pins} pages");
        return;
    }
    let slot = |at: usize| part(mapping.region(), at * page, page);
    (0..pins).for_each(|at| pinner.pin(slot(at)).unwrap());
    assert!(matches!(
        pinner.pin(slot(pins)),
        Err(PinError::NoSlot { slots: PIN_SLOTS })
    ));
    pinner.unpin(slot(77)).unwrap();
    pinner.pin(slot(pins)).unwrap();
    assert!(pinner.covers(slot(pins)) && !pinner.covers(slot(77)));
    assert_eq!(pinner.pinned_bytes(), (pins * page) as u64);
}

#[test]
fn locked_memory_above_the_limit_is_refused_at_once_with_the_fix() {
    if std::env::var_os(CHILD).is_some() {
        return without_the_right_to_lock_memory();
    }
    let begin = Instant::now();
    let child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "locked_memory_above_the_limit_is_refused_at_once_with_the_fix",
            "--nocapture",
        ])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let took = begin.elapsed();
    let said = String::from_utf8_lossy(&child.stderr).into_owned() + &String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{said}");
    assert!(took < Duration::from_secs(2), "took {took:?}");
    assert!(said.contains("RLIMIT_MEMLOCK") || said.contains("skipped"), "{said}");
}

/// In a process of its own: gives up CAP_IPC_LOCK, lowers the limit and pins more than that.
fn without_the_right_to_lock_memory() {
    let mut held = capabilities(None).unwrap();
    held.effective.remove(CapabilitySet::IPC_LOCK);
    held.permitted.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, held).unwrap();
    let hard = getrlimit(Resource::Memlock).maximum;
    let limit = hard.unwrap_or(8 << 20).min(8 << 20);
    let lowered = Rlimit {
        current: Some(limit),
        maximum: hard,
    };
    setrlimit(Resource::Memlock, lowered).unwrap();
    assert_eq!(limits::memlock_bytes(), Some(limit));

    let Some(pinner) = pinner() else { return };
    let mapping = Mapping::new(MappingKind::Anonymous, PIN_BYTES_MAX).unwrap();
    let error = pinner.pin(mapping.region()).unwrap_err();
    eprintln!("{error}");
    let asked = PIN_BYTES_MAX as u64;
    assert!(
        matches!(error, PinError::MemlockTooLow { asked: a, limit: l, source: None } if (a, l) == (asked, limit)),
        "{error:?}"
    );
    // Below the limit by our count but above it by the kernel's, which counts what this user holds elsewhere, too.
    let other = Pinner::new().unwrap();
    let half = part(mapping.region(), 0, usize::try_from(limit / 4 * 3).unwrap());
    pinner.pin(half).unwrap();
    let error = other.pin(part(mapping.region(), half.len, half.len)).unwrap_err();
    assert!(
        matches!(error, PinError::MemlockTooLow { source: Some(_), .. }),
        "{error:?}"
    );
}
