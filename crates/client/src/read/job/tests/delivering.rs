//! What has landed becomes the caller's.

use super::*;
use crate::stats::{Counter, Counters};

/// A job of which everything landed in bytes of its own, each filled with the number of its unit.
fn landed(items: Vec<ReadItem>, request: ReadRequest) -> Job {
    let mut job = job_of(terms(), items, request);
    for unit in job.waiting() {
        let len = usize::try_from(job.unit(unit).len).unwrap();
        let bytes = vec![u8::try_from(unit).unwrap() + 1; len];
        let landing = Landing::Heap(HeapBytes::new(len));
        let source = tensorlease_memory::Source::from(bytes.as_slice());
        tensorlease_memory::copy_all(&[(source, landing.target(0..len))]);
        job.put(
            unit,
            UnitMemory {
                landing,
                ..memory(TransferMode::Direct, 1)
            },
        );
    }
    assert_eq!(run(&mut job, |_, _| None), Next::Deliver);
    job
}

#[test]
fn values_come_in_the_order_of_the_items() {
    for lens in [vec![8, 16, 4], vec![4], vec![8, 0, 4]] {
        let items = lens.iter().enumerate();
        let items = items
            .map(|(at, len)| item(&format!("k{at}"), DType::U8, *len))
            .collect();
        let output = landed(items, ReadRequest::default()).deliver();
        let mut unit = 0;
        for (len, value) in lens.iter().zip(&output.values) {
            assert_eq!(value.buffer.is_some(), 0 < *len);
            if let Some(buffer) = &value.buffer {
                unit += 1;
                assert_eq!(buffer.as_slice(), vec![unit; usize::try_from(*len).unwrap()]);
            }
        }
    }
}

#[test]
fn a_key_that_was_fetched_once_is_delivered_twice() {
    for (keys, expected) in [
        (vec!["a", "a"], [1, 1].to_vec()),
        (vec!["a", "b", "a", "b"], vec![1, 2, 1, 2]),
    ] {
        let items = keys.iter().map(|key| item(key, DType::U8, 8)).collect();
        let mut job = landed(items, ReadRequest::default());
        job.copy_duplicates();
        let first_bytes: Vec<u8> = job
            .deliver()
            .values
            .iter()
            .map(|value| value.buffer.as_ref().unwrap()[0])
            .collect();
        assert_eq!(first_bytes, expected, "{keys:?}");
    }
}

#[test]
fn a_batch_is_one_buffer_and_its_items_have_none() {
    let items = (0..3).map(|at| item(&format!("k{at}"), DType::U8, 4)).collect();
    let wish = batch(0..2);
    let output = landed(items, wish).deliver();
    assert_eq!(output.batches[0].as_ref().unwrap().as_slice(), [1; 8]);
    let alone: Vec<bool> = output.values.iter().map(|value| value.buffer.is_some()).collect();
    assert_eq!(alone, [false, false, true]);
}

#[test]
fn what_is_delivered_is_counted_by_how_it_came() {
    for (mode, leased, counted) in [
        (TransferMode::Direct, true, [2, 0, 0]),
        (TransferMode::Direct, false, [0, 2, 0]),
        (TransferMode::Staged, false, [0, 2, 0]),
        (TransferMode::Registered, false, [0, 0, 2]),
    ] {
        let mut job = job(terms(), &[8, 24]);
        for unit in job.waiting() {
            job.put(
                unit,
                UnitMemory {
                    leased,
                    ..memory(mode, 1)
                },
            );
        }
        run(&mut job, |_, _| None);
        let counters = Counters::default();
        job.count(&counters);
        let by_mode = [
            &counters.leased_reads,
            &counters.copied_reads,
            &counters.registered_reads,
        ];
        assert_eq!(by_mode.map(Counter::get), counted, "{mode:?} {leased}");
        assert_eq!((counters.read_bytes.get(), counters.read_keys.get()), (32, 2));
    }
}
