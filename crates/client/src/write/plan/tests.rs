//! A plan by tables: objects in, calls out.

use super::*;
use crate::{PutItem, terms::terms, write::object::checked};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn objects(lens: &[u64]) -> Vec<Object> {
    let item = |(at, len): (usize, &u64)| PutItem::packed(format!("k{at}"), vec![0; usize::try_from(*len).unwrap()]);
    checked("", lens.iter().enumerate().map(item).collect()).unwrap()
}

fn sizes(plan: &Plan) -> Vec<usize> {
    plan.calls.iter().map(|call| call.objects.len()).collect()
}

#[test]
fn what_the_engine_takes_as_it_lies_is_not_staged() {
    for (registers, in_place, staged) in [(true, 0, 2), (false, 0, 0)] {
        let plan = cut(&Terms { registers, ..terms() }, objects(&[8, 8]), 1, |_| false);
        assert_eq!((plan.in_place, plan.staged), (in_place, staged));
        let bounces = plan.calls.iter().all(|call| matches!(call.staging, Staging::Bounce));
        assert_eq!(bounces, registers);
    }
}

#[test]
fn an_object_larger_than_a_round_goes_alone() {
    for (lens, large, calls) in [
        (vec![64 * KIB], 0, vec![1]),
        (vec![64 * KIB + 1], 1, vec![]),
        (vec![8, MIB, 8], 1, vec![2]),
    ] {
        let plan = cut(&terms(), objects(&lens), 1, |_| false);
        assert_eq!((plan.large.len(), sizes(&plan)), (large, calls), "{lens:?}");
    }
}

#[test]
fn staged_objects_go_in_rounds_of_the_bounce_reserve() {
    for (lens, divisor, expected) in [
        (vec![16 * KIB; 6], 1, vec![4, 2]),
        (vec![16 * KIB; 6], 2, vec![2, 2, 2]),
        (vec![40 * KIB; 2], 1, vec![1, 1]),
    ] {
        let plan = cut(&terms(), objects(&lens), divisor, |_| false);
        assert_eq!(sizes(&plan), expected, "{lens:?}");
    }
}

#[test]
fn no_call_has_more_than_the_engine_takes() {
    for (keys_max, bytes_max, expected) in [
        (3, 1 << 40, vec![3, 3, 2]),
        (100, 4 * KIB, vec![4, 4]),
        (1, 1, vec![1; 8]),
    ] {
        let call = GroupLimits { keys_max, bytes_max };
        let plan = cut(
            &Terms {
                registers: false,
                call,
                ..terms()
            },
            objects(&[KIB; 8]),
            1,
            |_| false,
        );
        assert_eq!(sizes(&plan), expected, "{keys_max} {bytes_max}");
    }
}

#[test]
fn large_objects_are_cut_for_all_workers_but_not_below_what_a_call_is_worth() {
    for (workers, least, expected) in [(1, 0, 4), (2, 0, 4), (1, 16 * MIB, 2)] {
        let terms = Terms {
            registers: false,
            workers,
            large_write_bytes_min: least,
            ..terms()
        };
        let plan = cut(&terms, objects(&[MIB; 32]), 1, |_| false);
        assert_eq!(plan.calls.len(), expected, "{workers} workers, {least}");
    }
}
