//! Does a process still have memory of a daemon mapped?
use rustix::process::Pid;
use tensorlease_memory::MEMORY_FILE;

/// Asked when a client's socket has ended. An `exec` ends the mappings of a process, then its sockets, and the process
/// lives on as another program. A program that closes its sockets keeps its mappings. True also where the kernel does
/// not say.
pub(super) fn may_touch_memory(pid: Pid) -> bool {
    // If the number is another process's by now, this one is dead and touches nothing.
    let Ok(maps) = std::fs::read(format!("/proc/{}/maps", pid.as_raw_nonzero())) else {
        return true;
    };
    let name = format!("/memfd:{MEMORY_FILE}");
    maps.windows(name.len()).any(|part| part == name.as_bytes())
}
