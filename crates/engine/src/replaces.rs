//! Objects in the place of others, for engines that only use the memory of the old one again where both have one size.

/// Which of the writes take the place of an object of another size. That one is removed first: its memory would be lost.
///
/// `found`: size of the object that each key has now. `lens`: size of the object that it gets.
pub fn of_another_size(found: &[Option<u64>], lens: &[u64]) -> Vec<usize> {
    let differs = |at: &usize| found[*at].is_some_and(|found| found != lens[*at]);
    (0..lens.len()).filter(differs).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_of_another_size_are_in_the_way_and_no_others() {
        let found = [Some(10), None, Some(11), Some(9)];
        assert_eq!(of_another_size(&found, &[10, 10, 10, 10]), [2, 3]);
        assert!(of_another_size(&[], &[]).is_empty());
    }
}
