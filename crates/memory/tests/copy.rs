//! Copies against a model: exactly the target's bytes change, whatever the lengths and alignments.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use tensorlease_memory::{CopyMode, Mapping, MappingKind, NON_TEMPORAL_BYTES_MIN, Source, Target, copy, copy_all};

fn pattern(len: usize) -> Vec<u8> {
    (0..253u8).map(|byte| byte.wrapping_mul(31)).cycle().take(len).collect()
}

/// Copies `len` bytes between the given offsets and compares all of the memory around with a model.
fn check(source: &[u8], from: usize, to: usize, len: usize, mode: CopyMode) {
    let mut written = vec![255; to + len + 100];
    let mut model = written.clone();
    model[to..to + len].copy_from_slice(&source[from..from + len]);
    let target = Target::from(&mut written[to..to + len]);
    copy(Source::from(source).slice(from..from + len), &target, mode);
    assert!(written == model, "{mode:?}: {len} bytes from {from} to {to}");
}

#[test]
fn every_short_length_at_every_alignment_is_copied() {
    let source = pattern(400);
    for mode in [CopyMode::Cached, CopyMode::NonTemporal] {
        for len in 0..200 {
            for (from, to) in [(0, 0), (1, 0), (0, 1), (31, 33), (63, 5)] {
                check(&source, from, to, len, mode);
            }
        }
    }
}

#[test]
fn every_alignment_of_a_streamed_length_is_copied() {
    let source = pattern(5000);
    for from in [0, 1, 16, 31] {
        for to in 0..64 {
            for len in [4096, 4097, 4127, 4223, 4224, 4351] {
                check(&source, from, to, len, CopyMode::NonTemporal);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]
    #[test]
    fn long_copies_agree_with_the_model(from in 0usize..100, to in 0usize..100, len in 0usize..600_000) {
        let source = pattern(from + len);
        check(&source, from, to, len, CopyMode::NonTemporal);
        check(&source, from, to, len, CopyMode::Cached);
    }
}

#[test]
fn a_group_is_streamed_from_the_documented_size_on() {
    assert_eq!(CopyMode::for_group(NON_TEMPORAL_BYTES_MIN - 1), CopyMode::Cached);
    let streams = cfg!(target_arch = "x86_64") && !cfg!(feature = "poison");
    #[cfg(target_arch = "x86_64")]
    let streams = streams && std::arch::is_x86_feature_detected!("avx2");
    let large = CopyMode::for_group(NON_TEMPORAL_BYTES_MIN);
    assert_eq!(large == CopyMode::NonTemporal, streams);
}

#[test]
fn a_group_is_copied_whole() {
    let source = pattern(NON_TEMPORAL_BYTES_MIN + 77);
    let mut written = vec![0; source.len()];
    let (head, rest) = Target::from(written.as_mut_slice()).split_at(100);
    copy_all(&[
        (Source::from(&source[..100]), head),
        (Source::from(&source[100..]), rest),
    ]);
    assert!(written == source);
    copy_all(&[]);
}

#[test]
fn overlapping_memory_is_copied_as_if_through_a_buffer() {
    for mode in [CopyMode::Cached, CopyMode::NonTemporal] {
        for (from, to) in [(0, 10), (10, 0), (0, 0)] {
            let mut model = pattern(10_000);
            let mapping = Mapping::new(MappingKind::Anonymous, model.len()).unwrap();
            copy(model.as_slice().into(), &mapping.target(0..10_000), mode);
            model.copy_within(from..from + 9000, to);
            copy(mapping.source(from..from + 9000), &mapping.target(to..to + 9000), mode);
            assert!(
                mapping.source(0..10_000).to_vec() == model,
                "{mode:?} from {from} to {to}"
            );
        }
    }
}

#[test]
#[should_panic(expected = "one length")]
fn different_lengths_are_refused() {
    let mut written = [0; 3];
    copy(
        (&[1u8, 2][..]).into(),
        &Target::from(&mut written[..]),
        CopyMode::Cached,
    );
}
