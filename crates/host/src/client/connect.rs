//! A new connection to a daemon: its place is found, its user checked, hello said.
use super::claims;
use super::messages::unexpected;
use crate::descriptors;
use crate::place::{Holder, SocketPath, socket_option};
use crate::socket::{self, Broken, FrameReader};
use crate::wire::{Answer, Reply, Request, VERSION};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{SocketAddrUnix, SocketFlags, connect as connect_to};
use rustix::process::Pid;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tensorlease_engine::Capabilities;
use tensorlease_memory::process::Peer;

/// A daemon that has not welcomed a client by then is silent. A program waits less for a store to open than for a call
/// on one.
pub const WELCOME_MAX: Duration = Duration::from_secs(5);

/// Why a daemon could not be reached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// There is none.
    #[error("no daemon listens at {socket:?}; {}", how_to_start(socket))]
    NoDaemon {
        /// Where it was looked for.
        socket: PathBuf,
    },
    /// There is a daemon that can't be reached: its socket was removed, or is not there yet, or no longer.
    #[error(
        "nothing listens at {socket:?}, and a daemon ({holder}) has its lock: somebody removed the socket, or the daemon \
         starts or ends just now. Clients that are connected can go on. Try again, or end it with \
         `tensorlease stop {}`, which loses what it holds",
        socket_option(socket)
    )]
    Hidden {
        /// Where it was looked for.
        socket: PathBuf,
        /// Who that is.
        holder: Holder,
    },
    /// The socket belongs to another user.
    #[error("the daemon at {socket:?} belongs to another user")]
    WrongOwner {
        /// Where.
        socket: PathBuf,
    },
    /// The daemon can't watch a process of another PID namespace.
    #[error(
        "the daemon at {socket:?} runs in another PID namespace, where it can't watch this process; let both share one (containers: --pid=host), or \
         let this process use a place of its own (XDG_RUNTIME_DIR)"
    )]
    OtherNamespace {
        /// Where.
        socket: PathBuf,
    },
    /// It does not answer: it is stopped (SIGSTOP, a debugger), or it hangs.
    #[error(
        "the daemon at {socket:?} ({daemon}) does not answer; see whether it is stopped, continue or end it, and try again"
    )]
    Silent {
        /// Where.
        socket: PathBuf,
        /// Who that is.
        daemon: Holder,
    },
    /// It speaks another version of the protocol, or turned this client away.
    #[error("the daemon at {socket:?} (process {process}) refused this client: {message}")]
    Refused {
        /// Where.
        socket: PathBuf,
        /// Of the daemon.
        process: i32,
        /// In words.
        message: String,
    },
    /// The system refused.
    #[error("cannot connect to {socket:?}")]
    System {
        /// Where.
        socket: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}

/// `open` starts a daemon only at this user's own place.
fn how_to_start(socket: &Path) -> String {
    if SocketPath::of_this_user().is_ok_and(|own| own.as_path() == socket) {
        return "start one with `tensorlease serve`, or open host:// to have one started".to_owned();
    }
    format!("start one with `tensorlease serve {}`", socket_option(socket))
}

/// One connection, with its buffers.
pub(super) struct Connection {
    pub(super) socket: OwnedFd,
    pub(super) reader: FrameReader,
    pub(super) out: Vec<u8>,
}

/// What the daemon said of itself.
pub(super) struct Welcome {
    /// Number of the session.
    pub(super) session: u64,
    pub(super) capacity_bytes: u64,
    pub(super) engine: Option<Behind>,
}

/// The name of the engine behind a daemon, and what a client claims for it.
pub(super) type Behind = (String, Capabilities);

/// Connects and says hello. `lane_of`: the session that the connection is a lane of, or 0 for a new session.
pub(super) fn welcomed(place: &SocketPath, lane_of: u64) -> Result<(Connection, Welcome), ConnectError> {
    let (socket, daemon) = reached(place)?;
    let started = Instant::now();
    let (mut reader, mut out) = (FrameReader::new(lane_of == 0), Vec::new());
    Request::Hello {
        version: VERSION,
        lane_of,
    }
    .encode(&mut out);
    let message = match round_trip(socket.as_fd(), &out, &mut reader).map(|(reply, _)| reply.answer) {
        Ok(Answer::Welcome {
            capacity_bytes,
            session,
            engine,
        }) => {
            let engine = engine.map(|claimed| (claimed.name.to_owned(), claims::behind(&claimed)));
            let welcome = Welcome {
                session,
                capacity_bytes,
                engine,
            };
            return Ok((Connection { socket, reader, out }, welcome));
        }
        Ok(Answer::Refused { why }) => why.to_owned(),
        Ok(other) => unexpected(&other).message.into_owned(),
        Err(_) if WELCOME_MAX <= started.elapsed() => {
            let process = Some(daemon.as_raw_nonzero().get().unsigned_abs());
            return Err(ConnectError::Silent {
                socket: place.as_path().to_owned(),
                daemon: Holder { process },
            });
        }
        Err(broken) => broken.to_string(),
    };
    Err(ConnectError::Refused {
        socket: place.as_path().to_owned(),
        process: daemon.as_raw_nonzero().get(),
        message,
    })
}

/// A connection to the daemon before its hello. The daemon runs as this user.
fn reached(place: &SocketPath) -> Result<(OwnedFd, Pid), ConnectError> {
    let path = place.as_path().to_owned();
    let system = |errno: Errno| match errno {
        Errno::NOENT | Errno::CONNREFUSED => {
            let socket = path.clone();
            match place.holder() {
                Some(holder) => ConnectError::Hidden { socket, holder },
                None => ConnectError::NoDaemon { socket },
            }
        }
        // Its queue is full: it has taken in no client for a while.
        Errno::AGAIN => ConnectError::Silent {
            socket: path.clone(),
            daemon: place.holder().unwrap_or_default(),
        },
        errno => ConnectError::System {
            socket: path.clone(),
            source: errno.into(),
        },
    };
    let socket = descriptors::unix_socket(SocketFlags::empty()).map_err(system)?;
    bound(&socket, WELCOME_MAX).map_err(system)?;
    let address = SocketAddrUnix::new(&path).map_err(system)?;
    retry_on_intr(|| connect_to(&socket, &address)).map_err(system)?;
    // Where the folder is not this user's alone, another user's process could listen.
    let peer = Peer::of(&socket).map_err(|source| ConnectError::System {
        socket: path.clone(),
        source,
    })?;
    if peer.user != rustix::process::getuid() {
        return Err(ConnectError::WrongOwner { socket: path });
    }
    match peer.pid {
        Some(pid) => Ok((socket, pid)),
        None => Err(ConnectError::OtherNamespace { socket: path }),
    }
}

/// How long one receive or send on the socket may take.
pub(super) fn bound(socket: &OwnedFd, most: Duration) -> Result<(), Errno> {
    for timeout in [Timeout::Send, Timeout::Recv] {
        sockopt::set_socket_timeout(socket, timeout, Some(most))?;
    }
    Ok(())
}

pub(super) fn round_trip<'r>(
    socket: BorrowedFd<'_>,
    message: &[u8],
    reader: &'r mut FrameReader,
) -> Result<(Reply<'r>, Vec<OwnedFd>), Broken> {
    match socket::send(socket, message) {
        // A daemon that turns clients away hangs up at once, and has said why.
        Ok(()) | Err(Broken::Gone) => {}
        Err(broken) => return Err(broken),
    }
    let (body, descriptors) = reader.next_with_descriptors(socket)?;
    Ok((Reply::decode(body)?, descriptors))
}
