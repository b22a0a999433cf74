//! Units, and the engine calls that their transfers are cut into.

use super::*;
use crate::{ReadError, read::units::Parts};

#[test]
fn calls_have_no_more_keys_than_the_engine_takes() {
    for (values, keys_max, expected) in [
        (3, 100, vec![3]),
        (5, 2, vec![2, 2, 1]),
        (4, 4, vec![4]),
        (4, 1, vec![1, 1, 1, 1]),
    ] {
        let call = GroupLimits {
            keys_max,
            ..terms().call
        };
        let mut job = job(Terms { call, ..terms() }, &vec![8; values]);
        land(&mut job, TransferMode::Direct);
        assert_eq!(sizes(&job.groups()), expected, "{values} values, {keys_max} keys");
    }
}

#[test]
fn small_values_are_cut_at_eight_mebibytes() {
    for (values, len, expected) in [
        (100, 64 * KIB, vec![100]),
        (64, 512 * KIB, vec![16, 16, 16, 16]),
        (17, 512 * KIB, vec![16, 1]),
    ] {
        let mut job = job(terms(), &vec![len; values]);
        land(&mut job, TransferMode::Direct);
        assert_eq!(sizes(&job.groups()), expected, "{values} values of {len}");
    }
}

#[test]
fn large_values_are_cut_for_all_workers_but_not_below_what_a_call_is_worth() {
    for (values, workers, least, expected) in [
        (64, 1, 0, 4),
        (64, 2, 0, 8),
        (64, 4, 0, 8),
        (64, 4, 32 * MIB, 2),
        (2, 4, 0, 1),
    ] {
        let terms = Terms {
            workers,
            large_read_bytes_min: least,
            ..terms()
        };
        let mut job = job(terms, &vec![MIB; values]);
        land(&mut job, TransferMode::Direct);
        assert_eq!(
            job.groups().len(),
            expected,
            "{values} values, {workers} workers, {least}"
        );
    }
}

#[test]
fn no_call_moves_more_bytes_than_the_engine_takes() {
    for (bytes_max, expected) in [(MIB, vec![4, 4]), (512 * KIB, vec![2, 2, 2, 2]), (1, vec![1; 8])] {
        let call = GroupLimits {
            bytes_max: bytes_max.max(256 * KIB),
            ..terms().call
        };
        let mut job = job(Terms { call, ..terms() }, &[256 * KIB; 8]);
        land(&mut job, TransferMode::Direct);
        assert_eq!(sizes(&job.groups()), expected, "{bytes_max}");
    }
}

#[test]
fn staged_values_go_in_rounds_of_the_bounce_reserve() {
    for (lens, expected) in [
        (vec![16 * KIB; 4], vec![4]),
        (vec![16 * KIB; 6], vec![4, 2]),
        (vec![64 * KIB, 1, 64 * KIB], vec![1, 1, 1]),
        (vec![40 * KIB, 40 * KIB], vec![1, 1]),
    ] {
        let mut job = job(terms(), &lens);
        land(&mut job, TransferMode::Staged);
        assert_eq!(sizes(&job.groups()), expected, "{lens:?}");
    }
}

#[test]
fn what_is_registered_for_its_call_goes_by_landing() {
    for (together, expected) in [(true, vec![3]), (false, vec![1, 1, 1])] {
        let mut job = job(terms(), &[8, 8, 8]);
        if together {
            land_together(&mut job, TransferMode::Registered);
        } else {
            land(&mut job, TransferMode::Registered);
        }
        assert_eq!(sizes(&job.groups()), expected, "together: {together}");
    }
}

#[test]
fn direct_calls_come_first_and_registered_ones_last() {
    use TransferMode::{Direct, Registered, Staged};
    for modes in [
        [Direct, Staged, Registered],
        [Registered, Direct, Staged],
        [Staged, Registered, Direct],
    ] {
        let mut job = job(terms(), &[8, 8, 8]);
        for (unit, mode) in (0..).zip(modes) {
            job.put(unit, memory(mode, 1));
        }
        let order: Vec<TransferMode> = job.groups().iter().map(|group| group.mode).collect();
        assert_eq!(order, [Direct, Staged, Registered], "{modes:?}");
    }
}

#[test]
fn no_call_names_a_key_twice() {
    let mut job = job(terms(), &[8, 100 * KIB]);
    land(&mut job, TransferMode::Staged);
    let expected = [vec![(0, 0, 8)], vec![(1, 0, 64 * KIB)], vec![(1, 64 * KIB, 36 * KIB)]];
    assert_eq!(rows(&job.groups()), expected);
}

#[test]
fn nothing_is_left_when_all_calls_are_made() {
    let mut job = job(terms(), &[8, 8]);
    assert!(job.groups().is_empty(), "no memory, no call");
    land(&mut job, TransferMode::Direct);
    assert_eq!(job.groups().len(), 1);
    assert!(job.groups().is_empty());
}

#[test]
fn values_of_zero_bytes_have_no_unit() {
    for (lens, units) in [(vec![], 0), (vec![0, 0], 0), (vec![8, 0, 8], 2), (vec![1], 1)] {
        assert_eq!(job(terms(), &lens).unit_count(), units, "{lens:?}");
    }
}

#[test]
fn the_rows_of_a_batch_are_one_unit() {
    for (lens, rows, expected) in [
        (vec![8, 16, 8], 0..3, vec![vec![(0, 0), (1, 8), (2, 24)]]),
        (vec![8, 0, 8], 0..3, vec![vec![(0, 0), (2, 8)]]),
        (vec![8, 8, 8], 1..3, vec![vec![(0, 0)], vec![(1, 0), (2, 8)]]),
        (vec![0, 8], 0..1, vec![vec![(1, 0)]]),
    ] {
        let wish = batch(rows);
        let job = job_for(terms(), &lens, wish);
        let units: Vec<Vec<(u32, u64)>> = job.units.iter().map(|unit| unit.each_part().collect()).collect();
        assert_eq!(units, expected, "{lens:?}");
        let rows = job.units.iter().filter(|unit| matches!(unit.parts, Parts::Rows(_)));
        assert!(rows.clone().all(|unit| unit.batch == Some(0)));
    }
}

#[test]
fn a_key_that_is_asked_for_twice_is_fetched_once() {
    for (keys, fetched, duplicates) in [
        (vec!["a", "b"], vec![0, 1], 0),
        (vec!["a", "a"], vec![0], 1),
        (vec!["a", "b", "a", "b", "a"], vec![0, 1], 3),
    ] {
        let items = keys.iter().map(|key| item(key, DType::F32, 8)).collect();
        let mut job = job_of(terms(), items, ReadRequest::default());
        land(&mut job, TransferMode::Direct);
        assert_eq!(read_again(&mut job), fetched, "{keys:?}");
        assert_eq!(job.duplicate_keys(), duplicates, "{keys:?}");
    }
}

#[test]
fn a_key_that_is_asked_for_as_two_things_is_refused() {
    let packed = ReadItem {
        key: "a".to_owned(),
        expected: Expected::Packed(8),
    };
    for (other, refused) in [
        (item("a", DType::F32, 8), false),
        (item("a", DType::F32, 16), true),
        (item("a", DType::I64, 8), true),
        (packed, true),
    ] {
        let items = Arc::new(Items::new("", vec![item("a", DType::F32, 8), other], true, None));
        let job = Job::new(terms(), items, ReadRequest::default(), quarantine());
        match job.err() {
            None => assert!(!refused),
            Some(ReadError::Call(error)) => {
                assert!(refused && error.to_string().contains("asked for twice"), "{error}");
            }
            Some(other) => panic!("{other:?}"),
        }
    }
}
