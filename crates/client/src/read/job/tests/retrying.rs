//! Faults: which pass, what is read again, in how many calls, and when it is enough.

use super::*;
use FaultKind::{Expired, MayStillWrite, Mismatch, NoHandle, NotFound, Refused, Transient, Unavailable};

#[test]
fn a_round_without_a_fault_is_delivered() {
    let mut job = job(terms(), &[8, 8]);
    land(&mut job, TransferMode::Direct);
    assert_eq!(run(&mut job, |_, _| None), Next::Deliver);
}

#[test]
fn some_faults_pass_and_others_are_the_end() {
    let again = Next::Land { keys: 1, tries: 0 };
    for (kind, passes) in [
        (NoHandle, true),
        (Expired, true),
        (Transient, true),
        (MayStillWrite, true),
        (NotFound, false),
        (Mismatch, false),
        (Refused, false),
        (Unavailable, false),
    ] {
        let mut job = job(terms(), &[8, 8]);
        land(&mut job, TransferMode::Direct);
        let next = run(&mut job, |item, _| (item == 1).then_some(kind));
        if passes {
            assert_eq!(next, again, "{kind:?}");
        } else {
            assert_eq!(failed_keys(&next), ["k1"], "{kind:?}");
        }
    }
}

#[test]
fn only_what_failed_is_read_again() {
    for (failing, expected) in [
        (vec![0], vec![0]),
        (vec![0, 2], vec![0, 2]),
        (vec![0, 1, 2], vec![0, 1, 2]),
    ] {
        let mut job = job(terms(), &[8, 8, 8]);
        land(&mut job, TransferMode::Staged);
        let next = run(&mut job, |item, _| failing.contains(&item).then_some(Transient));
        let keys = failing.len() as u64;
        assert_eq!(next, Next::Land { keys, tries: 0 });
        assert_eq!(read_again(&mut job), expected);
    }
}

#[test]
fn a_missing_key_ends_the_read_whatever_may_pass() {
    let mut job = job(terms(), &[8, 8, 8]);
    land(&mut job, TransferMode::Direct);
    let next = run(&mut job, |item, _| {
        [Some(Transient), Some(NotFound), None][item as usize]
    });
    assert_eq!(failed_keys(&next), ["k1"]);
}

#[test]
fn faults_that_pass_are_enough_after_the_retries() {
    for retries in 0..4 {
        let mut job = job(Terms { retries, ..terms() }, &[8]);
        land(&mut job, TransferMode::Staged);
        for tries in 0..retries {
            assert_eq!(run(&mut job, |_, _| Some(Transient)), Next::Land { keys: 1, tries });
        }
        let next = run(&mut job, |_, _| Some(Transient));
        assert_eq!(failed_keys(&next), ["k0"], "{retries} retries");
    }
}

#[test]
fn what_passed_is_forgotten() {
    let mut job = job(Terms { retries: 2, ..terms() }, &[8, 8]);
    land(&mut job, TransferMode::Staged);
    assert!(matches!(
        run(&mut job, |_, _| Some(Transient)),
        Next::Land { keys: 2, tries: 0 }
    ));
    assert!(matches!(
        run(&mut job, |item, _| (item == 0).then_some(Transient)),
        Next::Land { keys: 1, tries: 1 }
    ));
    assert_eq!(run(&mut job, |_, _| None), Next::Deliver);
}

#[test]
fn calls_are_halved_after_faults_of_size_alone() {
    for (kind, divisor) in [(NoHandle, 2), (Expired, 2), (Transient, 1), (MayStillWrite, 1)] {
        let mut job = job(terms(), &[8; 4]);
        land(&mut job, TransferMode::Direct);
        run(&mut job, |_, _| Some(kind));
        assert_eq!(job.divisor, divisor, "{kind:?}");
    }
}

#[test]
fn each_round_halves_once_however_many_keys_failed() {
    let mut job = job(terms(), &[8 * KIB; 8]);
    land(&mut job, TransferMode::Staged);
    for expected in [vec![8], vec![4, 4], vec![2, 2, 2, 2]] {
        let groups = job.groups();
        assert_eq!(sizes(&groups), expected);
        let transfers = groups.into_iter().flat_map(|group| group.transfers);
        let finished = transfers.map(|transfer| Finished {
            transfer,
            result: Err(Fault::new(Expired, 0, "")),
        });
        job.settle(finished.collect());
    }
}

#[test]
fn an_engine_without_memory_is_called_once_at_a_time() {
    for (kind, at_once) in [(NoHandle, 1), (Expired, usize::MAX), (Transient, usize::MAX)] {
        let mut job = job(terms(), &[8, 8]);
        land(&mut job, TransferMode::Staged);
        assert_eq!(job.at_once(), usize::MAX);
        run(&mut job, |item, _| (item == 0).then_some(kind));
        assert_eq!(job.at_once(), at_once, "{kind:?}");
        run(&mut job, |_, _| None);
        assert_eq!(job.at_once(), at_once, "for the rest of the read");
    }
}

#[test]
fn a_block_goes_back_before_the_next_try_where_the_engine_needs_its_memory() {
    use TransferMode::{Direct, Registered, Staged};
    for (mode, kind, waits) in [
        (Direct, NoHandle, true),
        (Direct, Transient, false),
        (Staged, NoHandle, false),
        (Registered, NoHandle, false),
    ] {
        let mut job = job(terms(), &[8]);
        land(&mut job, mode);
        run(&mut job, |_, _| Some(kind));
        assert_eq!(job.waiting().len(), usize::from(waits), "{mode:?} {kind:?}");
    }
}

#[test]
fn the_callers_memory_is_never_left() {
    for kind in [NoHandle, Transient, Expired] {
        let mut job = job_for(terms(), &[8], destinations(&[8], true));
        land(&mut job, TransferMode::Direct);
        run(&mut job, |_, _| Some(kind));
        assert!(job.waiting().is_empty(), "{kind:?}");
        assert_eq!(read_again(&mut job), [0]);
    }
}

#[test]
fn a_large_transfer_that_took_too_long_is_read_in_halves() {
    for (len, mode, expected) in [
        (8 * MIB, TransferMode::Direct, vec![(0, 0, 8 * MIB)]),
        (
            8 * MIB + 2,
            TransferMode::Direct,
            vec![(0, 0, 4 * MIB + 1), (0, 4 * MIB + 1, 4 * MIB + 1)],
        ),
        (9 * MIB, TransferMode::Registered, vec![(0, 0, 9 * MIB)]),
    ] {
        let mut job = job(terms(), &[len]);
        land(&mut job, mode);
        run(&mut job, |_, _| Some(Expired));
        assert_eq!(rows(&job.groups()).concat(), expected, "{len} {mode:?}");
    }
}

#[test]
fn a_half_that_took_too_long_is_halved_again_and_the_other_stays() {
    let mut job = job(terms(), &[32 * MIB]);
    land(&mut job, TransferMode::Direct);
    run(&mut job, |_, _| Some(Expired));
    run(&mut job, |_, offset| (offset == 0).then_some(Expired));
    let quarters = [(0, 0, 8 * MIB), (0, 8 * MIB, 8 * MIB)];
    assert_eq!(rows(&job.groups()).concat(), quarters);
}
