//! What the kernel sees of the embedded engine: pinned pages, and memory given back.
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tensorlease_engine::conformance::Rig;
use tensorlease_engine::{Embedded, EmbeddedOptions, FaultKind, ReadOp, Registration, Tag};
use tensorlease_memory::{Mapping, MappingKind};

/// The kernel counts for the whole process: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static RUNNING: Mutex<()> = Mutex::new(());
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// None where memory can't be pinned here; in CI that is a failure.
fn pinned() -> Option<Rig> {
    let options = EmbeddedOptions {
        capacity_bytes: 4 << 20,
        pinned: true,
    };
    match Embedded::new(&options) {
        Ok(engine) => Some(Rig::new(Arc::new(engine))),
        Err(error) => {
            assert!(
                std::env::var_os("CI").is_none(),
                "CI must be able to pin memory: {error:?}"
            );
            eprintln!("skipped, memory can't be pinned here: {error:?}");
            None
        }
    }
}

/// As [`pinned`], and the kernel counts its pages in VmPin. Some count none for a thread that may lock any amount.
fn counted_pinned() -> Option<Rig> {
    let held = capabilities(None).expect("a thread may ask for its own");
    let mut fewer = held;
    fewer.effective.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, fewer).expect("a thread may give one up");
    let rig = pinned();
    set_capabilities(None, held).expect("it is still permitted");
    rig
}

/// Kilobytes that the kernel counts for this process under `name`.
fn kernel_kib(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
    number.expect("a number of kB")
}

#[test]
fn registered_memory_is_pinned_in_the_kernel_until_close() {
    let _alone = alone();
    let Some(rig) = counted_pinned() else { return };
    assert_eq!(rig.engine().capabilities().registration, Registration::Required);
    let before = kernel_kib("VmPin:");
    let memory = rig.memory(1 << 20);
    assert!(kernel_kib("VmPin:") >= before + 1024, "one MiB more is pinned");
    assert_eq!(rig.engine().stats().registered_bytes, 1 << 20);
    rig.engine().close().expect("the engine closes");
    assert!(kernel_kib("VmPin:") <= before, "nothing is pinned after close");
    drop(memory);
}

#[test]
fn the_refusal_of_unregistered_memory_says_what_to_do() {
    let _alone = alone();
    let Some(rig) = pinned() else { return };
    rig.write("key", &[1; 100], &Tag::new(b"")).expect("registered memory");
    let memory = Mapping::new(MappingKind::Anonymous, 4096).expect("one page");
    let read = ReadOp::whole("key", memory.target(0..100));
    let results = rig.engine().read_batch(&[read]);
    let fault = results[0].as_ref().expect_err("unregistered memory");
    assert_eq!(fault.kind, FaultKind::Unregistered);
    assert_eq!(
        fault.message,
        "100 bytes of memory are not inside one registration; register them first"
    );
    assert_eq!(memory.source(0..100).to_vec(), [0; 100], "nothing moved");
}

#[test]
fn closing_gives_the_memory_of_objects_back() {
    let _alone = alone();
    let options = EmbeddedOptions {
        capacity_bytes: 128 << 20,
        pinned: false,
    };
    let rig = Rig::new(Arc::new(
        Embedded::new(&options).expect("an engine that registers nothing needs nothing"),
    ));
    rig.put("large", &vec![1; 120 << 20]);
    let before = kernel_kib("VmRSS:");
    rig.engine().close().expect("the engine closes");
    let freed = before.saturating_sub(kernel_kib("VmRSS:"));
    assert!(freed > 100 << 10, "{freed} KiB of 120 MiB were given back");
}
