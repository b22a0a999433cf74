//! Where a host's daemon listens: the socket, and the lock beside it.
use crate::descriptors;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, ftruncate};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, SocketFlags, connect};
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// `sun_path` has 108 bytes, with the NUL.
const PATH_BYTES_MAX: usize = 107;
/// A process that only looks who has the lock holds it for less than this.
const LOOKED_AT_MAX: Duration = Duration::from_millis(100);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Why there is no place for a socket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// The kernel would refuse it.
    #[error(
        "the path of a socket has at most {PATH_BYTES_MAX} bytes, {path:?} is longer; choose a shorter one \
         (for host:// set XDG_RUNTIME_DIR)"
    )]
    TooLong {
        /// As asked.
        path: PathBuf,
    },
    /// A relative path would mean another place in every process.
    #[error("{path:?} is not absolute; write host:///run/user/1000/tensorlease/host.sock, for example")]
    Relative {
        /// As asked.
        path: PathBuf,
    },
    /// The folder for sockets is named by a variable, relatively.
    #[error("{variable}={folder:?} is not absolute; set {variable} to an absolute path, or unset it")]
    RelativeVariable {
        /// Of the environment.
        variable: &'static str,
        /// As it says.
        folder: PathBuf,
    },
    /// The folder for sockets belongs to somebody else, or others may write to it.
    #[error("{folder:?} is not a folder of this user alone; remove it, or set XDG_RUNTIME_DIR")]
    NotYours {
        /// The folder.
        folder: PathBuf,
    },
    /// Something else than a socket has the name.
    #[error("{path:?} is there already and no socket; choose another path, or remove it")]
    Occupied {
        /// The path.
        path: PathBuf,
    },
    /// The folder or the lock could not be made.
    #[error("cannot use {path:?}; choose another path, or correct XDG_RUNTIME_DIR where it says so")]
    Io {
        /// What was to be used.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// The option that names this socket to `tensorlease serve` and `stop`, quoted for a shell.
pub(crate) fn socket_option(socket: &Path) -> String {
    let path = socket.display().to_string();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"@%+=:,./-_".contains(&byte);
    if path.bytes().all(plain) {
        format!("--socket {path}")
    } else {
        format!("--socket '{}'", path.replace('\'', r"'\''"))
    }
}

/// Path of a daemon's socket. Beside it lies its lock: `<path>.lock`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SocketPath(PathBuf);

impl SocketPath {
    /// A path of the caller's choice.
    ///
    /// # Errors
    /// [`PlaceError::TooLong`], [`PlaceError::Relative`].
    pub fn new(path: impl Into<PathBuf>) -> Result<Self, PlaceError> {
        let path = path.into();
        if !path.is_absolute() {
            return Err(PlaceError::Relative { path });
        }
        if PATH_BYTES_MAX < path.as_os_str().len() {
            return Err(PlaceError::TooLong { path });
        }
        Ok(Self(path))
    }

    /// This user's own daemon: `$XDG_RUNTIME_DIR/tensorlease/host.sock`. Without that variable the socket lies in a
    /// folder of this user in the folder for temporary files.
    ///
    /// # Errors
    /// [`PlaceError::TooLong`], [`PlaceError::RelativeVariable`].
    pub fn of_this_user() -> Result<Self, PlaceError> {
        let own = || format!("tensorlease-{}", rustix::process::getuid().as_raw());
        let (variable, folder, name) = match std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty()) {
            Some(folder) => ("XDG_RUNTIME_DIR", PathBuf::from(folder), "tensorlease".to_owned()),
            None => ("TMPDIR", std::env::temp_dir(), own()),
        };
        if !folder.is_absolute() {
            return Err(PlaceError::RelativeVariable { variable, folder });
        }
        Self::new(folder.join(name).join("host.sock"))
    }

    /// The path.
    pub fn as_path(&self) -> &Path {
        &self.0
    }

    /// The file that the daemon keeps locked while it starts and runs.
    pub fn lock_path(&self) -> PathBuf {
        let mut path = self.0.clone().into_os_string();
        path.push(".lock");
        PathBuf::from(path)
    }

    /// Makes the folder for this user alone, if there is none.
    ///
    /// # Errors
    /// [`PlaceError::NotYours`] where others could put their own socket there.
    pub fn make_folder(&self) -> Result<(), PlaceError> {
        let folder = self.0.parent().unwrap_or_else(|| Path::new("/"));
        let failed = |source| PlaceError::Io {
            path: folder.to_owned(),
            source,
        };
        if !folder.is_dir() {
            let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
            made.map_err(failed)?;
        }
        let own = rustix::process::getuid().as_raw();
        // The owner of a link decides where it leads, so the link is checked too.
        let name = std::fs::symlink_metadata(folder).map_err(failed)?;
        let facts = std::fs::metadata(folder).map_err(failed)?;
        let trusted = |owner: u32| owner == own || owner == 0;
        // Others may write to a sticky folder like /tmp, but can't replace what is not theirs. Its owner can.
        let sticky = facts.mode() & 0o1000 != 0;
        let writable_by_others = facts.mode() & 0o022 != 0;
        let safe = if sticky {
            trusted(facts.uid())
        } else {
            facts.uid() == own && !writable_by_others
        };
        if !safe || !trusted(name.uid()) {
            return Err(PlaceError::NotYours {
                folder: folder.to_owned(),
            });
        }
        Ok(())
    }

    /// Does a daemon listen there? Never waits: a daemon with a full queue listens.
    pub fn is_listening(&self) -> bool {
        let connected = descriptors::unix_socket(SocketFlags::NONBLOCK)
            .and_then(|socket| connect(&socket, &SocketAddrUnix::new(&self.0)?));
        matches!(connected, Ok(()) | Err(Errno::AGAIN))
    }

    /// The daemon that holds the lock of this place, also where its socket was removed.
    pub fn holder(&self) -> Option<Holder> {
        let file = descriptors::file(&self.lock_path(), OFlags::RDWR | OFlags::NOFOLLOW, Mode::empty()).ok()?;
        // The lock is shared with others who look. It ends with `file`. A daemon that starts at this moment tries
        // again.
        if flock(&file, FlockOperation::NonBlockingLockShared) != Err(Errno::WOULDBLOCK) {
            return None;
        }
        let mut text = [0; 16];
        let read = rustix::io::pread(&file, &mut text[..], 0).unwrap_or_default();
        let text = std::str::from_utf8(&text[..read]).unwrap_or_default();
        Some(Holder {
            process: text.trim().parse().ok(),
        })
    }

    /// Takes the lock, and writes the number of this process to its file. None: another process holds it. The lock ends
    /// with the process.
    ///
    /// # Errors
    /// [`PlaceError::Io`] where the file can't be made.
    pub(crate) fn try_lock(&self) -> Result<Option<OwnedFd>, PlaceError> {
        let path = self.lock_path();
        let failed = |errno: Errno| PlaceError::Io {
            path: path.clone(),
            source: errno.into(),
        };
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW;
        let until = Instant::now() + LOOKED_AT_MAX;
        loop {
            let file = descriptors::file(&path, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                // Perhaps a process only looks who holds it.
                Err(Errno::WOULDBLOCK) if Instant::now() < until => {
                    std::thread::sleep(LOOK_AGAIN);
                    continue;
                }
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(errno) => return Err(failed(errno)),
            }
            // The number is only for messages, which do without it on a full disk.
            let _told = ftruncate(&file, 0)
                .and_then(|()| rustix::io::pwrite(&file, format!("{}\n", std::process::id()).as_bytes(), 0));
            // The file may have been removed meanwhile. A lock that no name leads to keeps no other daemon out.
            if FileId::at(&path) == FileId::of(&file) {
                return Ok(Some(file));
            }
        }
    }
}

/// The daemon that holds the lock of a place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// Its process, as numbered in its own PID namespace. None: it could not write the number.
    pub process: Option<u32>,
}

impl fmt::Display for Holder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.process {
            Some(process) => write!(formatter, "process {process}"),
            None => write!(formatter, "a process that its lock does not name"),
        }
    }
}

/// Which file a name leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// None: there is no such file, or it can't be read. A link is not followed.
    pub(crate) fn at(path: &Path) -> Option<Self> {
        let facts = std::fs::symlink_metadata(path).ok()?;
        Some(Self {
            device: facts.dev(),
            inode: facts.ino(),
        })
    }

    fn of(file: &OwnedFd) -> Option<Self> {
        let facts = fstat(file).ok()?;
        Some(Self {
            device: facts.st_dev,
            inode: facts.st_ino,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// Only root can give a file away.
    fn give_to_nobody(path: &Path) -> bool {
        std::os::unix::fs::lchown(path, Some(65534), Some(65534)).is_ok()
    }

    #[test]
    fn a_sticky_folder_of_another_user_and_a_link_of_another_user_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (sticky, link) = (folder.path().join("sticky"), folder.path().join("link"));
        std::fs::create_dir(&sticky).unwrap();
        std::fs::set_permissions(&sticky, std::fs::Permissions::from_mode(0o1777)).unwrap();
        let place = SocketPath::new(sticky.join("host.sock")).unwrap();
        place.make_folder().unwrap();
        std::os::unix::fs::symlink(folder.path(), &link).unwrap();
        let linked = SocketPath::new(link.join("host.sock")).unwrap();
        linked.make_folder().unwrap();
        if !(give_to_nobody(&sticky) && give_to_nobody(&link)) {
            return;
        }
        for place in [place, linked] {
            let refused = place.make_folder();
            assert!(matches!(refused, Err(PlaceError::NotYours { .. })), "{refused:?}");
        }
    }

    #[test]
    fn a_path_that_no_socket_can_have_is_refused() {
        assert!(matches!(
            SocketPath::new("run/host.sock"),
            Err(PlaceError::Relative { .. })
        ));
        let long = format!("/{}", "x".repeat(PATH_BYTES_MAX));
        assert!(matches!(SocketPath::new(long), Err(PlaceError::TooLong { .. })));
        let longest = format!("/{}", "x".repeat(PATH_BYTES_MAX - 1));
        assert!(SocketPath::new(longest).is_ok());
    }

    #[test]
    fn a_folder_that_others_may_write_to_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let open = folder.path().join("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
        let refused = SocketPath::new(open.join("host.sock")).unwrap().make_folder();
        assert!(matches!(refused, Err(PlaceError::NotYours { .. })), "{refused:?}");
    }

    #[test]
    fn a_new_folder_is_this_users_alone_and_its_lock_is_held_once() {
        let folder = tempfile::tempdir().unwrap();
        let place = SocketPath::new(folder.path().join("new/host.sock")).unwrap();
        place.make_folder().unwrap();
        let mode = std::fs::metadata(folder.path().join("new")).unwrap().mode();
        assert_eq!(mode & 0o777, 0o700);
        let lock = place.try_lock().unwrap();
        assert!(lock.is_some());
        assert!(place.try_lock().unwrap().is_none(), "one holds it");
        drop(lock);
        assert!(place.try_lock().unwrap().is_some(), "it ended with its holder");
    }
}
