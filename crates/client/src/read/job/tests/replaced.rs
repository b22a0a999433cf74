//! Objects that are read in ranges, and may be replaced between them.

use super::*;
use FaultKind::{Expired, Transient};

fn in_ranges(lens: &[u64]) -> Job {
    let mut job = job(terms(), lens);
    land(&mut job, TransferMode::Staged);
    job
}

#[test]
fn versions_are_asked_of_what_is_read_in_ranges_alone() {
    for (lens, expected) in [
        (vec![8, 64 * KIB], vec![]),
        (vec![8, 65 * KIB, 8, MIB], vec![1, 3]),
        (vec![0, 65 * KIB], vec![1]),
    ] {
        let job = in_ranges(&lens);
        assert_eq!(job.unversioned(), expected, "{lens:?}");
        assert_eq!(job.fetched_in_ranges(), expected, "{lens:?}");
    }
}

#[test]
fn a_version_is_asked_once() {
    let mut job = in_ranges(&[65 * KIB, 66 * KIB]);
    job.note_versions([(0, 7), (1, 0)].into_iter());
    assert!(job.unversioned().is_empty());
    run(&mut job, |_, _| Some(Transient));
    assert!(job.unversioned().is_empty(), "also not where ranges are read again");
}

#[test]
fn an_object_that_has_another_version_afterwards_was_replaced() {
    for (before, after, expected) in [
        ([7, 7], [7, 7], vec![]),
        ([7, 7], [8, 7], vec!["k0"]),
        ([7, 7], [8, 9], vec!["k0", "k1"]),
        ([0, 7], [0, 0], vec!["k1"]),
    ] {
        let mut job = in_ranges(&[65 * KIB, 65 * KIB]);
        job.note_versions((0..).zip(before));
        assert_eq!(run(&mut job, |_, _| None), Next::Deliver);
        let replaced = job.replaced((0..).zip(after));
        let keys: Vec<&str> = replaced.iter().map(|failure| failure.key.as_str()).collect();
        assert_eq!(keys, expected, "{before:?} {after:?}");
        assert!(replaced.iter().all(|failure| failure.kind == Transient));
    }
}

#[test]
fn the_first_version_counts_where_ranges_are_read_again() {
    let mut job = in_ranges(&[65 * KIB]);
    job.note_versions([(0, 7)].into_iter());
    run(&mut job, |_, offset| (offset == 0).then_some(Transient));
    assert_eq!(run(&mut job, |_, _| None), Next::Deliver);
    for (now, replaced) in [(7, 0), (8, 1)] {
        assert_eq!(job.replaced([(0, now)].into_iter()).len(), replaced);
    }
}

#[test]
fn a_transfer_that_is_halved_needs_a_version_from_then_on() {
    for (len, asked) in [(8 * MIB, vec![]), (9 * MIB, vec![0])] {
        let mut job = job(terms(), &[len]);
        land(&mut job, TransferMode::Direct);
        assert!(job.unversioned().is_empty());
        run(&mut job, |_, _| Some(Expired));
        assert_eq!(job.unversioned(), asked, "{len}");
    }
}

#[test]
fn a_range_that_fails_is_read_again_without_the_others() {
    let mut job = in_ranges(&[130 * KIB]);
    run(&mut job, |_, offset| (offset == 64 * KIB).then_some(Transient));
    assert_eq!(rows(&job.groups()), [[(0, 64 * KIB, 64 * KIB)]]);
}
