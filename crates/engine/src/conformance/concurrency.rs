//! Clauses 3, 7, 8 and 12: calls from several threads.
use super::rig::{any_tag, assert_same, only};
use super::{Factory, Rig, RigMemory, pattern};
use crate::{Fault, FaultKind, ReadOp, Tag};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

fn write_from(rig: &Rig, memory: &RigMemory, key: &str, len: usize, tag: &Tag) -> Result<(), Fault> {
    rig.write_segments(key, &[memory.source(0..len)], tag)
}

fn read_into(rig: &Rig, memory: &RigMemory, key: &str, len: usize, tag: Option<&Tag>) -> Result<u64, Fault> {
    let read = ReadOp {
        tag,
        ..ReadOp::whole(key, memory.target(0..len))
    };
    only(rig.engine().read_batch(&[read]))
}

/// Raises a flag when it goes, also by a panic: the other threads of a check must not wait for one that failed.
struct RaisedAtEnd<'a>(&'a AtomicBool);

impl Drop for RaisedAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Clauses 3 and 7: where the engine describes, a reader never sees a mixture, nor an object under another's tag.
pub fn a_replace_is_atomic(factory: &Factory<'_>) {
    const LEN: usize = 150_001;
    // What the objects of the two writers consist of.
    const BYTES: [u8; 2] = [1, 2];
    let Some(rig) = factory() else { return };
    if !rig.engine().capabilities().describes {
        return;
    }
    let key = rig.key("replaced");
    let tags = [Tag::new(b"even"), Tag::new(b"odd")];
    let sources = [rig.memory(LEN), rig.memory(LEN)];
    (0..2).for_each(|parity| sources[parity].fill(0, &[BYTES[parity]; LEN]));
    write_from(&rig, &sources[0], &key, LEN, &tags[0]).expect("the first object");
    let targets = [rig.memory(LEN), rig.memory(LEN)];
    let done = AtomicBool::new(false);
    let seen = [AtomicU64::new(0), AtomicU64::new(0)];
    std::thread::scope(|scope| {
        for (parity, memory) in targets.iter().enumerate() {
            let (rig, key, tag, seen, done) = (&rig, &key, &tags[parity], &seen[parity], &done);
            scope.spawn(move || {
                let _end = RaisedAtEnd(done);
                while !done.load(SeqCst) {
                    match read_into(rig, memory, key, LEN, Some(tag)) {
                        Ok(_) => {
                            assert_same(&memory.bytes(0..LEN), &[BYTES[parity]; LEN]);
                            seen.fetch_add(1, SeqCst);
                        }
                        Err(fault) => assert_eq!(fault.kind, FaultKind::Mismatch, "a replaced key: {fault}"),
                    }
                }
            });
        }
        let _end = RaisedAtEnd(&done);
        let started = Instant::now();
        // Both readers must have met their object while it was being replaced, however threads are scheduled.
        for round in 0_usize.. {
            let enough = round >= 300 && seen.iter().all(|seen| seen.load(SeqCst) >= 20);
            if enough || done.load(SeqCst) {
                return;
            }
            assert!(
                started.elapsed() < Duration::from_secs(30),
                "the readers saw {seen:?} objects in 30 s"
            );
            write_from(&rig, &sources[round % 2], &key, LEN, &tags[round % 2]).expect("a replace");
            std::thread::yield_now();
        }
    });
}

/// Clause 8: a read beside a removal ends whole or not found.
pub fn removals_never_disturb_a_running_read(factory: &Factory<'_>) {
    const LEN: usize = 100_000;
    let Some(rig) = factory() else { return };
    let key = rig.key("removed");
    let bytes = pattern(1, LEN);
    let passing = !rig.engine().capabilities().describes;
    let (source, target) = (rig.memory(LEN), rig.memory(LEN));
    source.fill(0, &bytes);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(SeqCst) {
                match read_into(&rig, &target, &key, LEN, None) {
                    Ok(_) => assert_same(&target.bytes(0..LEN), &bytes),
                    Err(fault) if passing => {
                        let expected = matches!(fault.kind, FaultKind::NotFound | FaultKind::Transient);
                        assert!(expected, "a removed key: {:?} {fault}", fault.kind);
                    }
                    Err(fault) => assert_eq!(fault.kind, FaultKind::NotFound, "a removed key: {fault}"),
                }
            }
        });
        let _end = RaisedAtEnd(&done);
        for _ in 0..200 {
            write_from(&rig, &source, &key, LEN, &any_tag()).expect("a write");
            rig.remove(&key);
        }
    });
}

/// Clause 12: threads with keys of their own don't get in each other's way.
pub fn readers_and_writers_run_concurrently(factory: &Factory<'_>) {
    const LEN: usize = 20_000;
    let Some(rig) = factory() else { return };
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let rig = &rig;
            scope.spawn(move || {
                let (source, target) = (rig.memory(LEN), rig.memory(LEN));
                for round in 0..60 {
                    let key = rig.key(&format!("own/{thread}/{}", round % 7));
                    let len = LEN - usize::try_from(round).expect("a small number");
                    let bytes = pattern(thread * 1000 + round, len);
                    source.fill(0, &bytes);
                    write_from(rig, &source, &key, len, &any_tag()).expect("a write beside others");
                    assert_eq!(
                        read_into(rig, &target, &key, len, None),
                        Ok(len as u64),
                        "a read beside others"
                    );
                    assert_same(&target.bytes(0..len), &bytes);
                    if round % 5 == 0 {
                        rig.remove(&key);
                    }
                }
            });
        }
    });
}
