//! Which memory a unit lands in, and where its object is cut.

use super::*;
use crate::{FallbackKind, ReadError};

#[test]
fn the_delivery_says_what_is_leased() {
    let lens = [8, 16 * KIB - 1, 16 * KIB, MIB];
    for (delivery, leased) in [
        (Delivery::Auto, vec![2, 3]),
        (Delivery::Leased, vec![0, 1, 2, 3]),
        (Delivery::Copied, vec![]),
    ] {
        let job = job_for(terms(), &lens, delivered(delivery));
        let (chosen, copied) = job.leased_and_copied(job.waiting());
        assert_eq!(
            (chosen.len() + copied.len(), chosen),
            (lens.len(), leased),
            "{delivery:?}"
        );
    }
}

#[test]
fn a_batch_of_small_rows_is_leased() {
    let wish = batch(0..2);
    let job = job_for(terms(), &[8, 8, 8], wish);
    assert_eq!(job.leased_and_copied(job.waiting()), (vec![0], vec![1]));
}

#[test]
fn a_block_is_asked_for_each_unit() {
    let wish = batch(1..3);
    let job = job_for(terms(), &[8, 8, 24], wish);
    let wanted: Vec<u64> = job.wanted(&job.waiting()).iter().map(|(len, _)| *len).collect();
    assert_eq!(wanted, [8, 32]);
}

#[test]
fn a_value_that_can_never_fit_leaves_the_others_their_chance() {
    for (kind, lost) in [
        (FallbackKind::TooLarge, 1),
        (FallbackKind::Budget, 7),
        (FallbackKind::HostFull, 7),
        (FallbackKind::SlabNotRegistered, 7),
        (FallbackKind::SlabNotMapped, 7),
    ] {
        assert_eq!(Job::lost(kind, 7), lost, "{kind:?}");
    }
}

#[test]
fn copies_are_staged_where_memory_must_be_registered() {
    for (registers, mode) in [(true, TransferMode::Staged), (false, TransferMode::Direct)] {
        let job = job(Terms { registers, ..terms() }, &[8]);
        assert_eq!(job.copied_mode(), mode);
    }
}

#[test]
fn the_callers_memory_is_copied_to_unless_it_was_asked_otherwise() {
    use TransferMode::{Direct, Registered, Staged};
    for (direct, registers, in_arena, mode) in [
        (false, true, false, Staged),
        (false, true, true, Staged),
        (false, false, false, Staged),
        (true, true, false, Registered),
        (true, true, true, Direct),
        (true, false, false, Direct),
    ] {
        let job = job_for(Terms { registers, ..terms() }, &[8], destinations(&[8], direct));
        assert_eq!(
            job.destination_mode(|| in_arena),
            mode,
            "{direct} {registers} {in_arena}"
        );
    }
}

#[test]
fn a_destination_is_the_one_of_its_item() {
    let lens = [8, 0, 24];
    let mut job = job_for(terms(), &lens, destinations(&lens, false));
    for (unit, len) in [(0, 8), (1, 24)] {
        assert_eq!(job.take_destination(unit).len(), len);
    }
}

#[test]
fn fresh_memory_is_registered_where_that_is_cheaper_than_a_copy() {
    use TransferMode::{Direct, Registered, Staged};
    for (registers, copy_is_cheaper, registration_bytes_max, expected) in [
        (true, true, 1 << 40, Staged),
        (true, false, 1 << 40, Registered),
        (true, false, MIB - 1, Staged),
        (false, false, 1 << 40, Direct),
    ] {
        let terms = Terms {
            registers,
            copy_is_cheaper,
            registration_bytes_max,
            ..terms()
        };
        let job = job(terms, &[MIB]);
        let [(units, mode, _)] = &job.fresh(&[0])[..] else {
            panic!("one dtype")
        };
        assert_eq!(
            (&units[..], *mode),
            (&[0][..], expected),
            "{registers} {copy_is_cheaper}"
        );
    }
}

#[test]
fn fresh_memory_is_shared_by_dtype_in_the_order_of_first_use() {
    let dtypes = [DType::F32, DType::I64, DType::F32, DType::I64, DType::U8];
    let items = dtypes.iter().enumerate();
    let items = items.map(|(at, dtype)| item(&format!("k{at}"), *dtype, 8)).collect();
    let job = job_of(terms(), items, ReadRequest::default());
    for (units, expected) in [
        (vec![0, 1, 2, 3, 4], vec![vec![0, 2], vec![1, 3], vec![4]]),
        (vec![3, 2, 1], vec![vec![3, 1], vec![2]]),
        (vec![], vec![]),
    ] {
        assert_eq!(job.of_one_dtype(&units), expected);
    }
}

#[test]
fn many_bytes_are_registered_in_a_part_for_each_worker_and_a_second() {
    for (values, workers, registration_bytes_max, bytes_max) in [
        (1, 2, 1 << 40, 256 * MIB),
        (8, 2, 1 << 40, 512 * MIB),
        (8, 1, 1 << 40, 1024 * MIB),
        (8, 1, 300 * MIB, 300 * MIB),
    ] {
        let terms = Terms {
            workers,
            registration_bytes_max,
            copy_is_cheaper: false,
            ..terms()
        };
        let job = job(terms, &vec![256 * MIB; values]);
        let fresh = job.fresh(&job.waiting());
        assert_eq!(fresh[0].2.bytes_max, bytes_max, "{values} {workers}");
    }
}

#[test]
fn no_transfer_crosses_from_one_registration_into_the_next() {
    for (start, len, piece_bytes, bytes_max, expected) in [
        (0, 10, 100, 1000, None),
        (90, 10, 100, 1000, None),
        (95, 10, 100, 1000, Some(vec![0..5, 5..10])),
        (50, 200, 100, 1000, Some(vec![0..50, 50..150, 150..200])),
        (0, 10, 100, 4, Some(vec![0..4, 4..8, 8..10])),
    ] {
        let call = GroupLimits {
            bytes_max,
            ..terms().call
        };
        let job = job(
            Terms {
                piece_bytes,
                call,
                ..terms()
            },
            &[],
        );
        for mode in [TransferMode::Direct, TransferMode::Registered] {
            assert_eq!(job.cuts(mode, start, len), expected, "{start} {len}");
        }
    }
}

#[test]
fn a_staged_value_is_cut_by_the_round_wherever_it_lands() {
    for (len, expected) in [
        (64 * KIB, None),
        (64 * KIB + 1, Some(vec![0..64 * KIB, 64 * KIB..64 * KIB + 1])),
        (128 * KIB, Some(vec![0..64 * KIB, 64 * KIB..128 * KIB])),
    ] {
        let job = job(
            Terms {
                piece_bytes: 100,
                ..terms()
            },
            &[],
        );
        assert_eq!(job.cuts(TransferMode::Staged, 95, len), expected, "{len}");
    }
}

#[test]
fn rows_are_cut_where_the_registration_of_their_block_ends() {
    let wish = batch(0..3);
    let mut job = job_for(
        Terms {
            piece_bytes: 100,
            ..terms()
        },
        &[40, 40, 40],
        wish,
    );
    let registered_at = 110;
    let block = UnitMemory {
        registered_at,
        ..memory(TransferMode::Direct, 1)
    };
    job.put(0, block);
    let rows: Vec<Row> = rows(&job.groups()).concat();
    assert_eq!(rows, [(0, 0, 40), (1, 0, 40), (2, 0, 10), (2, 10, 30)]);
}

#[test]
fn strict_names_the_keys_of_every_unit_and_why() {
    for (units, keys) in [
        (vec![0], vec!["k0"]),
        (vec![1], vec!["k1", "k2"]),
        (vec![0, 1], vec!["k0", "k1", "k2"]),
    ] {
        let job = job_for(terms(), &[8, 8, 8], batch(1..3));
        let error = job.refusal(FallbackKind::Budget, &units, " (much)");
        let ReadError::Fallback {
            kind,
            message,
            failures,
        } = error
        else {
            panic!("{error:?}")
        };
        let named: Vec<&str> = failures.iter().map(|failure| failure.key.as_str()).collect();
        assert_eq!((kind, named), (FallbackKind::Budget, keys));
        assert!(message.ends_with("(much)"), "{message}");
    }
}
