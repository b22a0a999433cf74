//! Descriptors of this project keep away from the numbers of closed standard streams.
use rustix::io::Errno;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use tensorlease_memory::descriptor::NUMBER_MIN;
use tensorlease_memory::pin::Pinner;
use tensorlease_memory::{Mapping, MappingKind, limits};

/// What is open below 3, while standard input is not.
fn below_three<T>(make: impl FnOnce() -> T) -> (T, bool) {
    let before = rustix::io::fcntl_dupfd_cloexec(std::io::stdin(), NUMBER_MIN).expect("standard input is open");
    // SAFETY: no part of a test uses standard input, and its number is open again below, before anything can.
    drop(unsafe { OwnedFd::from_raw_fd(0) });
    let made = make();
    let taken = std::fs::symlink_metadata("/proc/self/fd/0").is_ok();
    // SAFETY: where something has taken the number against the rule, it loses it here, and the test fails.
    let mut stdin = unsafe { OwnedFd::from_raw_fd(0) };
    rustix::io::dup2(&before, &mut stdin).expect("it can be put back");
    std::mem::forget(stdin);
    (made, taken)
}

#[test]
fn what_is_made_while_standard_streams_are_closed_does_not_take_their_numbers() {
    let (mapping, taken) = below_three(|| Mapping::new(MappingKind::Sealed, 1).expect("a page can be mapped"));
    assert!(!taken, "a memory file is standard input");
    assert!(NUMBER_MIN <= mapping.memfd().expect("a memory file").as_raw_fd());
    let (pinner, taken) = below_three(Pinner::new);
    assert!(!taken, "a ring is standard input");
    if let Ok(pinner) = pinner {
        let mapping = Mapping::new(MappingKind::Anonymous, limits::page_bytes()).expect("a page can be mapped");
        mapping.populate().expect("there is a page");
        pinner.pin(mapping.region()).expect("a ring that was moved pins");
        assert!(pinner.covers(mapping.region()));
        pinner.unpin(mapping.region()).expect("and unpins");
    }
}

#[test]
fn nothing_is_written_through_the_descriptor_of_a_sealed_memory_file() {
    let mapping = Mapping::new(MappingKind::Sealed, limits::page_bytes()).expect("a page can be mapped");
    // As it is passed to another process.
    let passed = mapping
        .memfd()
        .expect("a memory file")
        .try_clone_to_owned()
        .expect("it can be duplicated");
    assert_eq!(rustix::io::write(&passed, b"a line of a C library\n"), Err(Errno::PERM));
    assert_eq!(
        rustix::io::pwrite(&passed, b"a line of a C library\n", 0),
        Err(Errno::PERM)
    );
    let other = Mapping::of_sealed(passed, limits::page_bytes()).expect("it is sealed, and long enough");
    assert!(other.source(0..other.len()).to_vec().iter().all(|byte| *byte == 0));
}
