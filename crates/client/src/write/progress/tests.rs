//! A put by tables: faults in, what is to happen next out.

use super::*;
use crate::{PutItem, write::object::checked};
use FaultKind::{Expired, Full, NoHandle, Refused, TooLarge, Transient};
use tensorlease_engine::Fault;

/// An engine that never evicts; a put that does not wait for room, and has nothing idle.
fn progress(retries: u32) -> Progress {
    Progress::new(false, retries, false, false)
}

/// `k0`, `k1`, ... with these faults.
fn unwritten(faults: &[FaultKind]) -> Vec<Unwritten> {
    let items = (0..faults.len()).map(|at| PutItem::packed(format!("k{at}"), vec![1]));
    let objects = checked("", items.collect()).unwrap();
    let unwritten = |(object, kind): (Object, &FaultKind)| Unwritten {
        object,
        fault: Fault::new(*kind, 0, "because"),
    };
    objects.into_iter().zip(faults).map(unwritten).collect()
}

fn paused(waits: bool, full: bool, tries: u32) -> Next {
    Next::Pause { waits, full, tries }
}

#[test]
fn what_may_pass_is_written_again_and_the_rest_has_failed() {
    for (faults, again, failed) in [
        (vec![], 0, 0),
        (vec![Transient, NoHandle, Expired], 3, 0),
        (vec![Refused, Transient, TooLarge], 1, 2),
        (vec![Full], 0, 1),
    ] {
        let mut progress = progress(3);
        let (next, objects) = progress.settle(0, unwritten(&faults));
        assert_eq!(objects.len(), again, "{faults:?}");
        assert_eq!(next, if again == 0 { Next::Go } else { paused(false, false, 0) });
        assert_eq!(progress.failures().len(), failed);
    }
}

#[test]
fn retries_that_are_used_up_are_the_end() {
    for retries in 0..3 {
        let mut progress = progress(retries);
        for tries in 0..retries {
            let (next, _) = progress.settle(0, unwritten(&[Transient]));
            assert_eq!(next, paused(false, false, tries));
        }
        let (next, again) = progress.settle(0, unwritten(&[Transient]));
        assert_eq!((next, again.len(), progress.failures().len()), (Next::Go, 0, 1));
    }
}

#[test]
fn calls_are_halved_after_faults_of_size_alone() {
    for (faults, divisor) in [
        (vec![Transient], 1),
        (vec![NoHandle, NoHandle, Transient], 2),
        (vec![Expired], 2),
    ] {
        let mut progress = progress(3);
        progress.settle(0, unwritten(&faults));
        assert_eq!(progress.divisor(), divisor, "{faults:?}");
    }
}

#[test]
fn a_full_engine_is_waited_for_where_room_may_come() {
    for (evicts, for_room, next) in [
        (false, false, Next::Go),
        (true, false, paused(false, true, 0)),
        (false, true, paused(true, true, 0)),
    ] {
        let mut progress = Progress::new(evicts, 3, for_room, false);
        assert_eq!(progress.settle(0, unwritten(&[Full])).0, next, "{evicts} {for_room}");
    }
}

#[test]
fn who_waits_for_room_waits_past_the_retries() {
    let mut progress = Progress::new(false, 1, true, false);
    for tries in 0..5 {
        assert_eq!(progress.settle(0, unwritten(&[Full])).0, paused(true, true, tries));
    }
    progress.give_up();
    assert_eq!(progress.failures().len(), 1);
}

#[test]
fn what_lies_idle_goes_back_once_before_anything_else_is_tried() {
    let mut progress = Progress::new(false, 3, false, true);
    assert_eq!(progress.settle(0, unwritten(&[Transient])).0, paused(false, false, 0));
    assert_eq!(progress.settle(0, unwritten(&[Full])).0, Next::GiveBackIdle);
    assert_eq!(progress.settle(0, unwritten(&[Full])).0, Next::Go);
    assert_eq!(progress.failures().len(), 1);
}

#[test]
fn failures_name_keys_without_their_namespace() {
    let mut progress = progress(0);
    progress.settle(1, unwritten(&[Refused]));
    assert_eq!(progress.failures()[0].key, "0");
}
