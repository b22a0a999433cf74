//! What the machine allows: page size, memory, memlock.

use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};
use std::path::{Component, Path, PathBuf};

/// Bytes of one page, asked, never assumed.
pub fn page_bytes() -> usize {
    rustix::param::page_size()
}

/// Bytes that this process may still take: the least of MemAvailable and, for its cgroup (v1 or v2) and every parent of it
/// that has a limit, limit - use. File pages that the kernel would drop don't count as use. None where /proc can't be read.
pub fn available_bytes() -> Option<u64> {
    let available = meminfo_bytes(&read("/proc/meminfo".as_ref())?, "MemAvailable")?;
    let cgroup = memory_groups(&read)
        .iter()
        .filter_map(|group| group.left_bytes(&read))
        .min();
    Some(cgroup.map_or(available, |left| left.min(available)))
}

/// Bytes of RAM, also bounded by the cgroup limit. None where /proc can't be read.
pub fn total_bytes() -> Option<u64> {
    let total = meminfo_bytes(&read("/proc/meminfo".as_ref())?, "MemTotal")?;
    let cgroup = memory_groups(&read)
        .iter()
        .filter_map(|group| group.limit_bytes(&read))
        .min();
    Some(cgroup.map_or(total, |limit| limit.min(total)))
}

/// RLIMIT_MEMLOCK, the soft limit, bytes. None = unlimited, or CAP_IPC_LOCK held.
pub fn memlock_bytes() -> Option<u64> {
    let exempt = capabilities(None).is_ok_and(|held| held.effective.contains(CapabilitySet::IPC_LOCK));
    if exempt { None } else { memlock_limit_bytes() }
}

/// RLIMIT_MEMLOCK, the soft limit, bytes, whoever asks. None = unlimited.
pub(crate) fn memlock_limit_bytes() -> Option<u64> {
    getrlimit(Resource::Memlock).current
}

/// Reads a file of /proc or /sys; a test answers from a table.
type Read<'a> = &'a dyn Fn(&Path) -> Option<String>;

fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// A line `Name:   123 kB` of /proc/meminfo, in bytes.
fn meminfo_bytes(meminfo: &str, name: &str) -> Option<u64> {
    let value = meminfo
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kibibytes: u64 = value.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// Which files of a control group hold what.
#[derive(Debug, PartialEq, Eq)]
struct GroupFiles {
    limit: &'static str,
    usage: &'static str,
    /// Line of memory.stat with the file pages that the kernel drops first.
    reclaimable: &'static str,
}

const VERSION_1: GroupFiles = GroupFiles {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    reclaimable: "total_inactive_file",
};
const VERSION_2: GroupFiles = GroupFiles {
    limit: "memory.max",
    usage: "memory.current",
    reclaimable: "inactive_file",
};

/// One directory of the control group tree that this process is under.
#[derive(Debug, PartialEq, Eq)]
struct MemoryGroup {
    directory: PathBuf,
    files: &'static GroupFiles,
}

impl MemoryGroup {
    /// None: no limit ("max" is no number; version 1 says a number near 2^63).
    fn limit_bytes(&self, read: Read<'_>) -> Option<u64> {
        let limit: u64 = read(&self.directory.join(self.files.limit))?.trim().parse().ok()?;
        (limit < 1 << 62).then_some(limit)
    }

    fn left_bytes(&self, read: Read<'_>) -> Option<u64> {
        let limit = self.limit_bytes(read)?;
        let usage: u64 = read(&self.directory.join(self.files.usage))?.trim().parse().ok()?;
        let stat = read(&self.directory.join("memory.stat")).unwrap_or_default();
        let reclaimable = stat.lines().find_map(|line| {
            let value = line.strip_prefix(self.files.reclaimable)?.strip_prefix(' ')?;
            value.trim().parse().ok()
        });
        Some(limit.saturating_sub(usage.saturating_sub(reclaimable.unwrap_or(0))))
    }
}

/// The memory group of this process and all its parents, as far as they are mounted here.
fn memory_groups(read: Read<'_>) -> Vec<MemoryGroup> {
    let membership = read("/proc/self/cgroup".as_ref()).unwrap_or_default();
    let mounts = read("/proc/self/mountinfo".as_ref()).unwrap_or_default();
    let mut groups = Vec::new();
    for mount in mounts.lines().filter_map(group_mount) {
        let own = membership.lines().find_map(|line| group_path(line, mount.files));
        let Some(own) = own else { continue };
        // A container often sees its own group mounted as the root, under a path that names the group from outside.
        let below = Path::new(own)
            .strip_prefix(mount.root)
            .unwrap_or_else(|_| Path::new(""));
        let plain = below.components().all(|part| matches!(part, Component::Normal(_)));
        let below = if plain { below } else { Path::new("") };
        let parents = below.ancestors().map(|path| Path::new(mount.point).join(path));
        groups.extend(parents.map(|directory| MemoryGroup {
            directory,
            files: mount.files,
        }));
    }
    groups
}

/// A mount of a tree of memory groups.
struct GroupMount<'a> {
    /// Group that is seen at `point`.
    root: &'a str,
    point: &'a str,
    files: &'static GroupFiles,
}

/// A line `36 35 98:0 /root /point options [optional...] - type source options` of mountinfo.
fn group_mount(line: &str) -> Option<GroupMount<'_>> {
    let (mount, file_system) = line.split_once(" - ")?;
    let mut mount = mount.split(' ').skip(3);
    let (root, point) = (mount.next()?, mount.next()?);
    let mut file_system = file_system.split(' ');
    let files = match file_system.next()? {
        "cgroup2" => &VERSION_2,
        "cgroup" if file_system.nth(1)?.split(',').any(|option| option == "memory") => &VERSION_1,
        _ => return None,
    };
    Some(GroupMount { root, point, files })
}

/// The path in a line `number:controllers:/path` of /proc/self/cgroup, if the line is about these files' tree.
fn group_path<'a>(line: &'a str, files: &'static GroupFiles) -> Option<&'a str> {
    let mut parts = line.splitn(3, ':');
    let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let matches = if files == &VERSION_2 {
        number == "0" && controllers.is_empty()
    } else {
        controllers.split(',').any(|controller| controller == "memory")
    };
    matches.then_some(path)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn table<'a>(files: &'a [(&'a str, &'a str)]) -> impl Fn(&Path) -> Option<String> + 'a {
        move |path| {
            let (_, text) = files.iter().find(|(name, _)| Path::new(name) == path)?;
            Some((*text).to_owned())
        }
    }

    const MEMINFO: &str = "MemTotal:       16303116 kB\nMemFree:         1000 kB\nMemAvailable:   12000000 kB\nHugePages_Total:       0\n";

    #[test]
    fn meminfo_is_read_in_kibibytes() {
        assert_eq!(meminfo_bytes(MEMINFO, "MemTotal"), Some(16_303_116 * 1024));
        assert_eq!(meminfo_bytes(MEMINFO, "MemAvailable"), Some(12_000_000 * 1024));
        for unusable in ["HugePages_Total", "Mem", "SwapFree"] {
            assert_eq!(meminfo_bytes(MEMINFO, unusable), None, "{unusable}");
        }
        assert_eq!(meminfo_bytes("MemTotal: 99999999999999999 kB", "MemTotal"), None);
    }

    #[test]
    fn the_parents_of_a_version_2_group_count() {
        let files = [
            ("/proc/self/cgroup", "0::/jobs/train\n"),
            (
                "/proc/self/mountinfo",
                "25 1 0:22 / /proc rw - proc proc rw\n30 25 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n",
            ),
            ("/sys/fs/cgroup/jobs/train/memory.max", "max\n"),
            ("/sys/fs/cgroup/jobs/train/memory.current", "5\n"),
            ("/sys/fs/cgroup/jobs/memory.max", "1000000\n"),
            ("/sys/fs/cgroup/jobs/memory.current", "700000\n"),
            (
                "/sys/fs/cgroup/jobs/memory.stat",
                "anon 1\ninactive_file 100000\nactive_file 7\n",
            ),
        ];
        let read = table(&files);
        let groups = memory_groups(&read);
        let directories: Vec<_> = groups.iter().map(|group| group.directory.to_str().unwrap()).collect();
        assert_eq!(
            directories,
            ["/sys/fs/cgroup/jobs/train", "/sys/fs/cgroup/jobs", "/sys/fs/cgroup/"]
        );
        let left: Vec<_> = groups.iter().map(|group| group.left_bytes(&read)).collect();
        assert_eq!(left, [None, Some(400_000), None]);
    }

    #[test]
    fn a_version_1_group_seen_from_inside_its_container_counts() {
        let files = [
            ("/proc/self/cgroup", "11:cpu,cpuacct:/a\n9:memory:/docker/abc\n0::/\n"),
            (
                "/proc/self/mountinfo",
                "40 30 0:30 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n41 30 0:31 / /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n",
            ),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1000\n"),
            ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1500\n"),
            (
                "/sys/fs/cgroup/memory/memory.stat",
                "inactive_file 1\ntotal_inactive_file 100\n",
            ),
        ];
        let read = table(&files);
        let groups = memory_groups(&read);
        assert_eq!(groups.len(), 1);
        assert_eq!(groups[0].limit_bytes(&read), Some(1000));
        assert_eq!(
            groups[0].left_bytes(&read),
            Some(0),
            "more used than allowed leaves nothing"
        );
    }

    #[test]
    fn no_limit_is_no_limit() {
        let files = [
            ("/g/memory.limit_in_bytes", "9223372036854771712\n"),
            ("/g/memory.usage_in_bytes", "5"),
        ];
        let group = MemoryGroup {
            directory: "/g".into(),
            files: &VERSION_1,
        };
        assert_eq!(group.left_bytes(&table(&files)), None);
        assert_eq!(memory_groups(&table(&[])), []);
    }

    #[test]
    fn a_path_outside_the_mounted_tree_means_its_root() {
        let files = [
            ("/proc/self/cgroup", "0::/../other\n"),
            ("/proc/self/mountinfo", "30 25 0:26 / /c rw - cgroup2 cgroup2 rw\n"),
        ];
        let groups = memory_groups(&table(&files));
        assert_eq!(groups.len(), 1);
        assert_eq!(groups[0].directory, Path::new("/c/"));
    }

    #[test]
    fn this_machine_answers() {
        let (available, total) = (available_bytes().unwrap(), total_bytes().unwrap());
        assert!(available > 0 && available <= total, "{available} of {total}");
        assert!(page_bytes().is_power_of_two());
    }
}
