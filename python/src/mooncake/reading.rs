//! Reads: whole objects in one call of Mooncake's, ranges of large objects in one call each.
use super::{
    calls::{Calls, Placement, Transfer},
    codes::{self, Direction, asked, fault},
    own_segment::{Outcome, OwnSegment},
};
use std::time::Duration;
use tensorlease_engine::{Fault, FaultKind, ReadOp};

/// How this process reads.
pub(super) struct Reads<'a> {
    pub(super) calls: &'a Calls,
    pub(super) own_segment: Option<&'a OwnSegment>,
    /// The caller has registered the memory.
    pub(super) registers: bool,
}

impl Reads<'_> {
    /// Whole objects: what lies in this process is copied here, the rest comes in one call.
    pub(super) fn whole(&self, reads: &[&ReadOp<'_>]) -> Vec<Result<u64, Fault>> {
        let Some(own_segment) = self.own_segment else {
            return self.fetch(reads);
        };
        let done = own_segment.read(self.calls, reads);
        let missing = reads.iter().zip(&done).filter(|(_, done)| done.is_none());
        let missing: Vec<&ReadOp<'_>> = missing.map(|(read, _)| *read).collect();
        let mut fetched = self.fetch(&missing).into_iter();
        let result = |done: Outcome| done.unwrap_or_else(|| fetched.next().expect("one result per object fetched"));
        done.into_iter().map(result).collect()
    }

    fn fetch(&self, reads: &[&ReadOp<'_>]) -> Vec<Result<u64, Fault>> {
        if reads.is_empty() {
            return Vec::new();
        }
        let transfers: Vec<Transfer<'_>> = reads.iter().map(|read| transfer(read)).collect();
        let bytes = transfers.iter().map(|transfer| transfer.region.len).sum();
        let _turn = self.calls.turn_of_read(transfers.len(), bytes);
        let (codes, elapsed) = match self.calls.get_into(&transfers) {
            Ok(done) => done,
            Err(fault) => return vec![Err(fault); reads.len()],
        };
        let results = reads.iter().zip(codes);
        let mut results: Vec<_> = results.map(|(read, code)| self.result(read, code, elapsed)).collect();
        self.find_offloaded(reads, &mut results);
        results
    }

    /// A size, or the fault of a code. Mooncake gives a shorter object's size and leaves the rest of the memory as it
    /// is.
    fn result(&self, read: &ReadOp<'_>, code: i64, elapsed: Duration) -> Result<u64, Fault> {
        if let Ok(len) = u64::try_from(code) {
            return of_size(len, read).map(|()| len);
        }
        if code == codes::INVALID_PARAMS {
            // The one code for a longer object and for anything else that is wrong with a key.
            let len = self.calls.size(read.key)?;
            if len == codes::OBJECT_NOT_FOUND {
                return Err(fault(len, Direction::Read, elapsed));
            }
            if let Ok(len) = u64::try_from(len) {
                of_size(len, read)?;
            }
        }
        Err(fault(code, Direction::Read, elapsed))
    }

    /// A failed read of an object that its owner has offloaded to an SSD may still be written.
    fn find_offloaded(&self, reads: &[&ReadOp<'_>], results: &mut [Result<u64, Fault>]) {
        let doubtful = |result: &Result<u64, Fault>| {
            matches!(result, Err(fault) if matches!(fault.kind, FaultKind::Transient | FaultKind::Refused)
                && !codes::ended_before_moving(i64::from(fault.code)))
        };
        let failed: Vec<usize> = (0..reads.len()).filter(|at| doubtful(&results[*at])).collect();
        if failed.is_empty() {
            return;
        }
        let keys: Vec<&str> = failed.iter().map(|at| reads[*at].key).collect();
        for (at, offloaded) in failed.into_iter().zip(self.calls.offloaded(&keys)) {
            if let (true, Err(fault)) = (offloaded, &mut results[at]) {
                fault.kind = FaultKind::MayStillWrite;
                fault.message = format!("{}; its owner may still send it from an SSD", fault.message).into();
            }
        }
    }

    /// A range of a large object.
    pub(super) fn range(&self, read: &ReadOp<'_>) -> Result<u64, Fault> {
        let (region, offset, object_len) = (read.target.region(), read.offset, read.object_len);
        let before = self.placement(read)?;
        let end = offset.checked_add(region.len as u64);
        if end.is_none_or(|end| object_len < end) {
            let len = region.len;
            let message = format!("{len} bytes from {offset} on are past the end of {object_len} bytes");
            return Err(Fault::new(FaultKind::Mismatch, 0, message));
        }
        // Mooncake demands it of ranges, also where it demands it of nothing else.
        let registered = !self.registers && self.calls.register(region)? == 0;
        let turn = self.calls.turn_of_read(1, region.len);
        let read_range = self.calls.get_range(&transfer(read), offset);
        drop(turn);
        let elapsed = read_range.as_ref().map_or(Duration::ZERO, |(_, elapsed)| *elapsed);
        let size = |(code, _)| u64::try_from(code).map_err(|_| fault(code, Direction::Read, elapsed));
        let mut results = [read_range.and_then(size)];
        self.find_offloaded(&[read], &mut results);
        let undone = match registered {
            true => self.calls.unregister(region).map(drop),
            false => Ok(()),
        };
        let [result] = results;
        let len = Fault::of_both(result, undone)?;
        if self.placement(read)? == before {
            return Ok(len);
        }
        // The object went away or moved while its bytes were read: what came may be another's.
        Err(fault(codes::LEASE_EXPIRED, Direction::Read, elapsed))
    }

    /// Where the object of a read lies now. Another size is a mismatch, none is not found.
    fn placement(&self, read: &ReadOp<'_>) -> Result<Placement, Fault> {
        let found = self.calls.placement(read.key)?;
        let placement = found.ok_or_else(|| asked(codes::OBJECT_NOT_FOUND))?;
        let len = match placement.len() {
            Some(len) => len,
            None => {
                let len = self.calls.size(read.key)?;
                u64::try_from(len).map_err(|_| asked(len))?
            }
        };
        of_size(len, read).map(|()| placement)
    }
}

fn transfer<'a>(read: &ReadOp<'a>) -> Transfer<'a> {
    Transfer {
        key: read.key,
        region: read.target.region(),
    }
}

/// Is the object as long as the read wants it?
fn of_size(found: u64, read: &ReadOp<'_>) -> Result<(), Fault> {
    let wanted = read.object_len;
    if found == wanted {
        return Ok(());
    }
    let message = format!("holds {found} bytes, asked for {wanted}; ask for what it holds");
    Err(Fault::new(FaultKind::Mismatch, 0, message))
}
