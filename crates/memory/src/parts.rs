//! A mapping that several buffers are cut from is taken apart, so that one of them that lives long keeps little more than its own memory.

use crate::limits;
use std::ops::Range;

/// Buffers of so many bytes together share one part of a mapping. A longer one has a part of its own.
const PART_BYTES_MAX: usize = 4 << 20;

/// Does a part begin before these bytes, where the part before began at `part`?
fn begins(part: usize, next: &Range<usize>) -> bool {
    part < next.start && PART_BYTES_MAX < next.end - part
}

/// Where pieces of these lengths begin in a mapping, one after the other, so that it can be taken apart; and how long it is for all of them.
pub fn lay_out(lens: &[usize]) -> (Vec<usize>, usize) {
    let (mut part, mut end) = (0, 0);
    let starts = lens.iter().map(|len| {
        if begins(part, &(end..end + len)) {
            end = end.next_multiple_of(limits::page_bytes());
            part = end;
        }
        end += len;
        end - len
    });
    (starts.collect(), end)
}

/// Where the parts begin, in order, and which of the disjoint `cuts` lie in each.
pub(crate) fn parts(cuts: &[Range<usize>]) -> Vec<(usize, Vec<usize>)> {
    let mut ordered: Vec<usize> = (0..cuts.len()).collect();
    ordered.sort_unstable_by_key(|&at| cuts[at].start);
    let (mut begin, mut parts) = (0, vec![(0, Vec::new())]);
    for at in ordered {
        let cut = &cuts[at];
        if !cut.is_empty() && cut.start.is_multiple_of(limits::page_bytes()) && begins(begin, cut) {
            begin = cut.start;
            parts.push((begin, Vec::new()));
        }
        let (_, of_part) = parts.last_mut().expect("there is a first part");
        of_part.push(at);
    }
    parts
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_laid_out_is_taken_apart_at_the_same_places() {
        let mib = 1 << 20;
        let lens = [mib, mib + 1, 5 * mib, 3, 4 * mib - 3, 7, 64 << 10];
        let (starts, end) = lay_out(&lens);
        let cuts: Vec<_> = starts
            .iter()
            .zip(lens)
            .map(|(start, len)| *start..start + len)
            .collect();
        assert_eq!(end, cuts[6].end);
        let parts = parts(&cuts);
        let members: Vec<&[usize]> = parts.iter().map(|(_, members)| members.as_slice()).collect();
        assert_eq!(members, [&[0, 1][..], &[2], &[3, 4], &[5, 6]]);
        for (begin, members) in &parts {
            assert!(begin.is_multiple_of(limits::page_bytes()));
            assert_eq!(*begin, cuts[members[0]].start);
        }
    }

    #[test]
    fn cuts_of_any_order_and_empty_ones_are_kept_together_where_no_page_begins() {
        let mib = 1 << 20;
        let cuts = [5 * mib + 1..6 * mib, 0..0, 0..5 * mib + 1, 6 * mib..6 * mib];
        assert_eq!(parts(&cuts), [(0, vec![1, 2, 0, 3])]);
    }
}
