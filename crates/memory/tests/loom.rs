//! Every order of a hand-off through the return list. Run with `RUSTFLAGS="--cfg loom"` in release.
#![cfg(loom)]
#![allow(clippy::unwrap_used)]

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex};
use loom::thread;
use tensorlease_arena::BlockId;
use tensorlease_memory::ReturnList;

fn id(index: u32) -> BlockId {
    BlockId {
        index,
        generation: index + 100,
    }
}

fn drain(list: &ReturnList) -> Vec<BlockId> {
    let mut drained = Vec::new();
    list.drain(|id| drained.push(id));
    drained
}

/// A reader writes its lease, another thread drops it, a third gets the block: loom fails the model unless every access to
/// the bytes is ordered by the list alone.
#[test]
fn who_gets_a_block_next_sees_all_that_was_written_to_it() {
    loom::model(|| {
        let list = Arc::new(ReturnList::new());
        list.reserve(1);
        let bytes = Arc::new(UnsafeCell::new(0));
        let reader = {
            let (list, bytes) = (Arc::clone(&list), Arc::clone(&bytes));
            thread::spawn(move || {
                // SAFETY: the block is this reader's until the push; loom checks that no other access is concurrent.
                bytes.with_mut(|bytes| unsafe { *bytes = 7 });
                let dropper = thread::spawn(move || list.push(id(0)));
                dropper.join().unwrap();
            })
        };
        let got = drain(&list);
        if !got.is_empty() {
            assert_eq!(got, [id(0)]);
            // SAFETY: the block was taken from the list, so it is ours; loom checks that.
            bytes.with_mut(|bytes| unsafe {
                assert_eq!(*bytes, 7);
                *bytes = 8;
            });
        }
        reader.join().unwrap();
        let later = drain(&list);
        assert_eq!(got.len() + later.len(), 1, "nothing is lost and nothing comes twice");
    });
}

#[test]
fn several_pushers_and_a_drainer_lose_nothing() {
    loom::model(|| {
        let list = Arc::new(ReturnList::new());
        list.reserve(3);
        let pushers: Vec<_> = [vec![0, 1], vec![2]]
            .into_iter()
            .map(|indices| {
                let list = Arc::clone(&list);
                thread::spawn(move || indices.into_iter().for_each(|index| list.push(id(index))))
            })
            .collect();
        let mut got = drain(&list);
        pushers.into_iter().for_each(|pusher| pusher.join().unwrap());
        got.extend(drain(&list));
        got.sort_by_key(|id| id.index);
        assert_eq!(got, [id(0), id(1), id(2)]);
        assert_eq!(drain(&list), []);
    });
}

/// A block goes round: drained under the lock, handed out again, pushed again, while another one is pushed.
#[test]
fn a_block_that_goes_round_is_never_in_two_hands() {
    loom::model(|| {
        let list = Arc::new(ReturnList::new());
        list.reserve(2);
        let free = Arc::new(Mutex::new(Vec::new()));
        list.push(id(0));
        let takers: Vec<_> = (0..2)
            .map(|_| {
                let (list, free) = (Arc::clone(&list), Arc::clone(&free));
                thread::spawn(move || {
                    let taken = {
                        let mut free = free.lock().unwrap();
                        list.drain(|id| free.push(id));
                        free.pop()
                    };
                    if let Some(id) = taken {
                        list.push(id);
                    }
                })
            })
            .collect();
        takers.into_iter().for_each(|taker| taker.join().unwrap());
        let mut left = drain(&list);
        left.append(&mut free.lock().unwrap());
        assert_eq!(left, [id(0)]);
    });
}
