//! Writes: blocks of the daemon's arena, filled by the calling thread, become objects by one message.
use super::messages::{MESSAGE_KEY_BYTES_MAX, PerKey, check_tag, key_too_long, unavailable, unexpected};
use super::session::{Session, Slabs};
use super::window::{Reserved, Window};
use crate::wire::{Answer, Commit, KEY_BYTES_MAX, Request, Reservation};
use std::sync::Mutex;
use tensorlease_engine::{Fault, FaultKind, WriteOp};
use tensorlease_memory::{CopyMode, copy, lock};

/// Most bytes that are reserved in one step. What these objects replace is free for the next step.
const STEP_BYTES_MAX: u64 = 256 << 20;

pub(super) fn batch(session: &Session, window: &Mutex<Window>, writes: &[WriteOp<'_>]) -> PerKey<()> {
    let mut results: Vec<Result<(), Fault>> = writes.iter().map(|write| check(write, session)).collect();
    let accepted: Vec<usize> = (0..writes.len()).filter(|&index| results[index].is_ok()).collect();
    let total: u64 = accepted.iter().map(|&index| object_len(&writes[index])).sum();
    let mode = CopyMode::for_group(usize::try_from(total).unwrap_or(usize::MAX));
    let mut rest = accepted.as_slice();
    while !rest.is_empty() {
        let (now, later) = rest.split_at(step(writes, rest));
        rest = later;
        let writer = Writer { session, window, mode };
        let ops: Vec<&WriteOp<'_>> = now.iter().map(|&index| &writes[index]).collect();
        for (&index, result) in now.iter().zip(writer.write(&ops)?) {
            results[index] = result;
        }
    }
    Ok(results)
}

/// How many of these objects go in one step.
fn step(writes: &[WriteOp<'_>], rest: &[usize]) -> usize {
    let (mut bytes, mut key_bytes) = (0, 0);
    let fits = rest.iter().take(crate::wire::LIST_MAX).take_while(|&&index| {
        bytes += object_len(&writes[index]);
        key_bytes += writes[index].key.len() + writes[index].tag.as_bytes().len();
        bytes <= STEP_BYTES_MAX && key_bytes <= MESSAGE_KEY_BYTES_MAX
    });
    fits.count().max(1)
}

fn check(write: &WriteOp<'_>, session: &Session) -> Result<(), Fault> {
    let refused = |message: &'static str| Err(Fault::new(FaultKind::Refused, 0, message));
    let (len, capacity) = (object_len(write), session.capacity_bytes);
    if len == 0 {
        return refused("an object needs at least one byte");
    }
    if capacity < len {
        let message = format!(
            "an object of {len} bytes is larger than the host's whole arena of {capacity}; start the daemon with a larger --max-bytes"
        );
        return Err(Fault::new(FaultKind::TooLarge, 0, message));
    }
    check_tag(write.tag)?;
    if KEY_BYTES_MAX < write.key.len() {
        return Err(key_too_long(write.key));
    }
    if write.key.is_empty() {
        return refused("an object needs a key");
    }
    Ok(())
}

fn object_len(write: &WriteOp<'_>) -> u64 {
    write.segments.iter().map(|segment| segment.len() as u64).sum()
}

struct Writer<'w> {
    session: &'w Session,
    window: &'w Mutex<Window>,
    mode: CopyMode,
}

impl Writer<'_> {
    fn write(&self, writes: &[&WriteOp<'_>]) -> PerKey<()> {
        let lens: Vec<u64> = writes.iter().map(|write| object_len(write)).collect();
        let ahead = lock(self.window).take(&lens);
        let blocks = match ahead {
            Some(blocks) => blocks.into_iter().map(Ok).collect(),
            None => self.reserve(&lens)?,
        };
        let mut commits = Vec::with_capacity(writes.len());
        let mut results = Vec::with_capacity(writes.len());
        let mut slabs = self.session.slabs();
        for ((write, len), block) in writes.iter().zip(&lens).zip(blocks) {
            results.push(block.and_then(|block| {
                fill(write, block, &mut slabs, self.mode)?;
                commits.push(Commit {
                    ticket: block.ticket,
                    len: *len,
                    key: write.key,
                    tag: write.tag.as_bytes(),
                });
                Ok(())
            }));
        }
        if !commits.is_empty() {
            self.commit(commits, &lens)?;
        }
        Ok(results)
    }

    /// A block for each length, or why there is none.
    fn reserve(&self, lens: &[u64]) -> PerKey<Reserved> {
        let mut blocks = self.exchange(Vec::new(), &[], lens)?;
        if blocks.iter().any(Result::is_err) {
            // What this client keeps for later must not be in the way.
            self.session.return_everything();
            let ahead = lock(self.window).drain();
            let missing = std::iter::zip(&blocks, lens).filter(|(block, _)| block.is_err());
            let missing: Vec<u64> = missing.map(|(_, len)| *len).collect();
            let again = self.exchange(Vec::new(), &ahead, &missing)?;
            let unserved = blocks.iter_mut().filter(|block| block.is_err());
            std::iter::zip(unserved, again).for_each(|(block, again)| *block = again);
        }
        let blocks = std::iter::zip(blocks, lens);
        Ok(blocks
            .map(|(block, asked)| block.map_err(|free| self.full(*asked, free)))
            .collect())
    }

    /// Makes the objects visible, and reserves ahead for the next write of this kind.
    fn commit(&self, commits: Vec<Commit<'_>>, lens: &[u64]) -> Result<(), Fault> {
        let wanted = lock(self.window).wanted(lens);
        let ahead = self.exchange(commits, &[], &wanted)?;
        // Where the arena is full, the next write asks again and says so.
        let surplus = lock(self.window).put(ahead.into_iter().flatten());
        if !surplus.is_empty() {
            self.exchange(Vec::new(), &surplus, &[])?;
        }
        Ok(())
    }

    /// Commits objects, gives back blocks and asks for others. Returns a block for each length, or how many bytes are
    /// free.
    fn exchange(
        &self,
        commits: Vec<Commit<'_>>,
        returned: &[Reserved],
        lens: &[u64],
    ) -> Result<Vec<Result<Reserved, u64>>, Fault> {
        let request = Request::Exchange {
            commits,
            releases: returned.iter().map(|block| block.ticket).collect(),
            reserve: lens.to_vec(),
        };
        let block = |reservation| match reservation {
            Reservation::Block { ticket, position } => Ok(Reserved { ticket, position }),
            Reservation::Full { free } => Err(free),
        };
        self.session.ask(&request, |answer, _| match answer {
            Answer::Exchanged { reservations } if reservations.len() == lens.len() => {
                Ok(reservations.into_iter().map(block).collect())
            }
            other => Err(unexpected(&other)),
        })
    }

    fn full(&self, asked: u64, free: u64) -> Fault {
        let capacity = self.session.capacity_bytes;
        let in_bits = if free < asked { "" } else { " in pieces too small" };
        let message = format!(
            "the host's arena is full: {asked} bytes asked, {free} free of {capacity}{in_bits}; \
             remove objects, drop leased tensors, or start the daemon with a larger --max-bytes"
        );
        Fault::new(FaultKind::Full, 0, message)
    }
}

/// Copies the segments, one after the other, to the block.
fn fill(write: &WriteOp<'_>, block: Reserved, slabs: &mut Slabs<'_>, mode: CopyMode) -> Result<(), Fault> {
    let (shown, start) = slabs.find(block.position)?;
    let len: usize = write.segments.iter().map(tensorlease_memory::Source::len).sum();
    if block.position.len < len as u64 {
        return Err(unavailable("the daemon gave a block that is too short; restart it"));
    }
    shown.prepare(start..start + len);
    let mut at = start;
    for segment in write.segments {
        let target = shown.mapping().target(at..at + segment.len());
        copy(*segment, &target, mode);
        at += segment.len();
    }
    Ok(())
}
