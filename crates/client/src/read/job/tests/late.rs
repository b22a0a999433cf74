//! Transfers that may still write after their call: their memory is left, and never used again.

use super::*;
use FaultKind::MayStillWrite;

#[test]
fn a_value_lands_elsewhere_after_a_late_write() {
    for mode in [TransferMode::Direct, TransferMode::Registered] {
        let mut job = job(terms(), &[8, 8]);
        land(&mut job, mode);
        let next = run(&mut job, |item, _| (item == 0).then_some(MayStillWrite));
        assert_eq!(next, Next::Land { keys: 1, tries: 0 });
        assert_eq!(job.waiting(), [0], "{mode:?}");
        assert!(job.groups().is_empty(), "nothing is read into the memory that it left");
        land(&mut job, mode);
        assert_eq!(run(&mut job, |_, _| None), Next::Deliver);
    }
}

#[test]
fn memory_that_may_still_be_written_is_quarantined() {
    for (late, bytes) in [(vec![], 0), (vec![1], 100), (vec![0, 1], 200)] {
        let mut job = job(terms(), &[8, 8]);
        for unit in job.waiting() {
            job.put(unit, memory(TransferMode::Direct, 100));
        }
        run(&mut job, |item, _| late.contains(&item).then_some(MayStillWrite));
        assert_eq!(job.quarantine.bytes(), bytes, "{late:?}");
    }
}

#[test]
fn everything_on_a_shared_landing_starts_over_after_a_late_write() {
    for late in [0, 1, 2] {
        let mut job = job(terms(), &[8, 8, 8]);
        land_together(&mut job, TransferMode::Registered);
        let next = run(&mut job, |item, _| (item == late).then_some(MayStillWrite));
        assert_eq!(next, Next::Land { keys: 1, tries: 0 });
        assert_eq!(job.waiting(), [0, 1, 2]);
    }
}

#[test]
fn neighbours_that_were_to_be_read_again_there_are_not() {
    let mut job = job(terms(), &[8, 8]);
    land_together(&mut job, TransferMode::Registered);
    run(&mut job, |item, _| {
        [Some(FaultKind::Transient), Some(MayStillWrite)][item as usize]
    });
    assert!(job.groups().is_empty());
    assert_eq!(job.waiting(), [0, 1]);
}

#[test]
fn other_landings_are_left_alone() {
    let mut job = job(terms(), &[8, 8, 8]);
    let shared = job.share(Landing::Heap(HeapBytes::new(1)));
    job.put_on_shared(0, &shared, 0, 0, TransferMode::Registered);
    job.put_on_shared(1, &shared, 8, 0, TransferMode::Registered);
    drop(shared);
    land(&mut job, TransferMode::Registered);
    run(&mut job, |item, _| (item == 0).then_some(MayStillWrite));
    assert_eq!(job.waiting(), [0, 1]);
}

#[test]
fn a_shared_landing_goes_to_quarantine_with_its_last_owner() {
    let mut job = job(terms(), &[8, 8]);
    let shared = job.share(Landing::Heap(HeapBytes::new(64)));
    job.put_on_shared(0, &shared, 0, 0, TransferMode::Registered);
    job.put_on_shared(1, &shared, 8, 0, TransferMode::Registered);
    run(&mut job, |item, _| (item == 0).then_some(MayStillWrite));
    assert_eq!(job.quarantine.bytes(), 0, "this test holds it still");
    drop(shared);
    assert_eq!(job.quarantine.bytes(), 64);
}

#[test]
fn the_callers_memory_that_may_still_be_written_ends_the_read() {
    for direct in [false, true] {
        let mut job = job_for(terms(), &[8, 8], destinations(&[8, 8], direct));
        land(&mut job, TransferMode::Registered);
        let next = run(&mut job, |item, _| (item == 1).then_some(MayStillWrite));
        assert_eq!(failed_keys(&next), ["k1"]);
    }
}
