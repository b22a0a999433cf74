//! A client's connection: one conversation, and the slabs that it has been shown.
use super::claims;
use super::messages::unexpected;
use super::registered::LentExtents;
use super::returns::{Returned, Returns};
use super::shown::{self, Shown};
use crate::descriptors;
use crate::place::{Holder, SocketPath, socket_option};
use crate::socket::{self, Broken, FrameReader};
use crate::watch;
use crate::wire::{Answer, NewSlab, Position, Reply, Report, Request, VERSION};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{SocketAddrUnix, SocketFlags, connect};
use rustix::process::Pid;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, TryLockError, Weak};
use std::time::{Duration, Instant};
use tensorlease_engine::{Capabilities, Fault, FaultKind};
use tensorlease_memory::{Mapping, fork, process::Peer};

/// A daemon answers within microseconds. One that is silent for so long is taken for gone.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// A daemon that has not welcomed a client by then is silent: whoever opens a store waits for less than whoever uses one.
pub const WELCOME_MAX: Duration = Duration::from_secs(5);

/// The thread that waits to give back needs next to nothing.
const STACK_BYTES: usize = 64 << 10;

/// Who holds what on a host.
pub type HostReport = Report;

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
    /// There is one that nobody can reach: its socket was removed, or is not there yet, or no longer.
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
    /// Neither process has a number in the other's namespace, by which it could be watched.
    #[error(
        "the daemon at {socket:?} runs in another PID namespace, where it can't watch this process; let both share one (containers: --pid=host), or \
         let this process use a place of its own (XDG_RUNTIME_DIR)"
    )]
    OtherNamespace {
        /// Where.
        socket: PathBuf,
    },
    /// Nothing came from it: the system has stopped it (SIGSTOP, a debugger), or it hangs.
    #[error(
        "the daemon at {socket:?} ({daemon}) does not answer; see whether it is stopped, continue or end it, and try again"
    )]
    Silent {
        /// Where.
        socket: PathBuf,
        /// Who that is.
        daemon: Holder,
    },
    /// It does not speak our version of the protocol, or turned us away.
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

/// A daemon at another place than this user's own is started by nobody's `open`.
fn how_to_start(socket: &Path) -> String {
    if SocketPath::of_this_user().is_ok_and(|own| own.as_path() == socket) {
        return "start one with `tensorlease serve`, or open host:// to have one started".to_owned();
    }
    format!("start one with `tensorlease serve {}`", socket_option(socket))
}

/// Lives as long as the engine, and as long as anything that the daemon has lent: the socket's end would end those.
pub(super) struct Session {
    path: PathBuf,
    socket: OwnedFd,
    /// Both are set by the daemon's welcome, before anybody else has the session.
    number: OnceLock<u64>,
    capacity_bytes: OnceLock<u64>,
    conversation: Mutex<Conversation>,
    slabs: RwLock<HashMap<u32, Arc<Shown>>>,
    lent: LentExtents,
    returns: Returns,
    fork_generation: u64,
    /// For a thread that outlives the call which starts it.
    this: Weak<Self>,
    /// Does a thread wait for the daemon to take what goes back?
    giving_back: AtomicBool,
}

/// Finds slabs by their numbers: most objects of a call lie in one.
pub(super) struct Slabs<'s> {
    session: &'s Session,
    last: Option<(u32, Arc<Shown>)>,
}

impl Slabs<'_> {
    /// The slab in which these bytes lie, and where in it they begin. A daemon that names others is not to be trusted.
    pub(super) fn find(&mut self, position: Position) -> Result<(&Arc<Shown>, usize), Fault> {
        let known = self.last.take().filter(|(number, _)| *number == position.slab);
        let shown = match known {
            Some((_, shown)) => shown,
            None => self.session.slab(position.slab).ok_or_else(shown::never_shown)?,
        };
        let (_, shown) = self.last.insert((position.slab, shown));
        let start = shown.start_of(position)?;
        Ok((shown, start))
    }
}

/// One request and its answer at a time.
struct Conversation {
    reader: FrameReader,
    out: Vec<u8>,
    /// Why it has ended; every later call gets the same.
    broken: Option<Fault>,
}

/// A connection to the daemon, who is this very user, that has not said hello.
pub(super) fn connected(place: &SocketPath) -> Result<(OwnedFd, Pid), ConnectError> {
    let path = place.as_path().to_owned();
    let system = |errno: Errno| match errno {
        Errno::NOENT | Errno::CONNREFUSED => {
            let socket = path.clone();
            match place.holder() {
                Some(holder) => ConnectError::Hidden { socket, holder },
                None => ConnectError::NoDaemon { socket },
            }
        }
        // It has taken in no client for a while, and no more can wait.
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
    retry_on_intr(|| connect(&socket, &address)).map_err(system)?;
    // Whoever listens could be another user where the folder is not this user's alone.
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

/// The engine behind a daemon, as it said hello.
pub(super) struct Engine {
    pub(super) name: String,
    pub(super) capabilities: Capabilities,
}

impl Session {
    /// With the engine behind the daemon, if there is one.
    pub(super) fn connect(place: &SocketPath) -> Result<(Arc<Self>, Option<Engine>), ConnectError> {
        let (socket, daemon) = connected(place)?;
        let started = Instant::now();
        let session = Arc::new_cyclic(|this| Self {
            path: place.as_path().to_owned(),
            socket,
            number: OnceLock::new(),
            capacity_bytes: OnceLock::new(),
            conversation: Mutex::new(Conversation {
                reader: FrameReader::new(true),
                out: Vec::new(),
                broken: None,
            }),
            slabs: RwLock::default(),
            lent: LentExtents::default(),
            returns: Returns::default(),
            fork_generation: fork::generation(),
            this: this.clone(),
            giving_back: AtomicBool::new(false),
        });
        let hello = Request::Hello {
            version: VERSION,
            lane_of: 0,
        };
        let welcome = session.ask(&hello, |answer, _| match answer {
            Answer::Welcome {
                capacity_bytes,
                session,
                engine,
            } => {
                let engine = engine.map(|claimed| Engine {
                    name: claimed.name.to_owned(),
                    capabilities: claims::behind(&claimed),
                });
                Ok((capacity_bytes, session, engine))
            }
            other => Err(unexpected(&other)),
        });
        let socket = || session.path.clone();
        let (capacity_bytes, number, engine) = welcome.map_err(|fault| {
            let process = daemon.as_raw_nonzero().get();
            if WELCOME_MAX <= started.elapsed() {
                let process = Some(process.unsigned_abs());
                return ConnectError::Silent {
                    socket: socket(),
                    daemon: Holder { process },
                };
            }
            let message = fault.message.trim_start_matches(REFUSED).to_owned();
            ConnectError::Refused {
                socket: socket(),
                process,
                message,
            }
        })?;
        bound(&session.socket, SILENCE_MAX).map_err(|errno| ConnectError::System {
            socket: socket(),
            source: errno.into(),
        })?;
        session.capacity_bytes.get_or_init(|| capacity_bytes);
        session.number.get_or_init(|| number);
        Ok((session, engine))
    }

    /// What the daemon calls it.
    pub(super) fn number(&self) -> u64 {
        self.number.get().copied().unwrap_or_default()
    }

    /// Extents that the daemon has lent it.
    pub(super) fn lent(&self) -> &LentExtents {
        &self.lent
    }

    pub(super) fn socket_path(&self) -> &Path {
        &self.path
    }

    pub(super) fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes.get().copied().unwrap_or_default()
    }

    /// One round trip. `read` sees the answer where it lies, and the slabs that it may name.
    pub(super) fn ask<T>(
        &self,
        request: &Request<'_>,
        read: impl FnOnce(Answer<'_>, &Self) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let result = self.ask_now(request, read);
        // What others wanted to send meanwhile was left to whoever had the conversation.
        self.flush();
        result
    }

    fn ask_now<T>(
        &self,
        request: &Request<'_>,
        read: impl FnOnce(Answer<'_>, &Self) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let mut conversation = self.conversation.lock().unwrap_or_else(PoisonError::into_inner);
        let Conversation { reader, out, broken } = &mut *conversation;
        if let Some(fault) = broken {
            return Err(fault.clone());
        }
        out.clear();
        request.encode(out);
        match round_trip(self.socket.as_fd(), out, reader) {
            Ok((
                Reply {
                    answer: Answer::Refused { why },
                    ..
                },
                _,
            )) => {
                let fault = refused(why);
                *broken = Some(fault.clone());
                Err(fault)
            }
            Ok((Reply { slabs, answer }, descriptors)) => {
                if let Err(fault) = self.take_slabs(&slabs, descriptors) {
                    socket::shut_down(&self.socket);
                    *broken = Some(fault.clone());
                    return Err(fault);
                }
                read(answer, self)
            }
            Err(error) => {
                let fault = self.gone(&error);
                socket::shut_down(&self.socket);
                *broken = Some(fault.clone());
                Err(fault)
            }
        }
    }

    /// Is this the process that connected? A forked child has a copy of everything; the connection, and what is lent, are its parent's.
    pub(super) fn is_own(&self) -> bool {
        fork::generation() == self.fork_generation
    }

    /// What the daemon lent goes back, soon: never waits, so that any thread may call it at any time. Does nothing in a forked child.
    pub(super) fn give_back(&self, returned: Returned) {
        if self.is_own() && self.returns.add(returned) {
            self.flush();
        }
    }

    /// Also what is not due yet.
    pub(super) fn return_everything(&self) {
        if self.is_own() && self.returns.try_again() {
            self.flush();
        }
    }

    /// Room for what this many more loans will give back, so that giving back allocates nothing.
    pub(super) fn lend(&self, views: usize) {
        self.returns.lend(views);
    }

    /// Sends what is to be given back, unless somebody has the conversation, who will look after it.
    fn flush(&self) {
        while self.returns.is_due() {
            let mut conversation = match self.conversation.try_lock() {
                Ok(conversation) => conversation,
                Err(TryLockError::Poisoned(conversation)) => conversation.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            let Conversation { out, broken, .. } = &mut *conversation;
            let returned = self.returns.take();
            if broken.is_some() {
                // What is given back has ended with the connection.
                continue;
            }
            out.clear();
            returned.encode(out);
            match socket::send_if_room(self.socket.as_fd(), out) {
                Ok(true) => {}
                Ok(false) => {
                    // A daemon that takes nothing just now.
                    self.returns.put_back(returned);
                    drop(conversation);
                    self.give_back_later();
                    return;
                }
                Err(error) => {
                    *broken = Some(self.gone(&error));
                    socket::shut_down(&self.socket);
                }
            }
        }
    }

    /// Perhaps nobody talks to the daemon any more: a thread waits until it takes messages again. Without one, whoever talks to it next sends the rest.
    fn give_back_later(&self) {
        let Some(session) = self.this.upgrade() else { return };
        if self.giving_back.swap(true, Ordering::AcqRel) {
            return;
        }
        let waiting = std::thread::Builder::new()
            .name("tensorlease-returns".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                session.wait_for_room();
                session.giving_back.store(false, Ordering::Release);
                if session.returns.try_again() {
                    session.flush();
                }
            });
        if waiting.is_err() {
            self.giving_back.store(false, Ordering::Release);
        }
    }

    /// Until the socket takes bytes, has ended, or was full for longer than a daemon is ever silent.
    fn wait_for_room(&self) {
        let bound = Timespec {
            tv_sec: SILENCE_MAX.as_secs().cast_signed(),
            tv_nsec: 0,
        };
        let mut watched = [PollFd::new(&self.socket, PollFlags::OUT)];
        // Whatever ends the wait, what is there is sent if it can be.
        let _ended = watch::wait(&mut watched, Some(&bound));
    }

    pub(super) fn report(&self) -> Result<HostReport, Fault> {
        self.ask(&Request::Report, |answer, _| match answer {
            Answer::Report(report) => Ok(report),
            other => Err(unexpected(&other)),
        })
    }

    /// Asks for nothing more. What is still lent keeps the connection.
    pub(super) fn leave(&self) {
        self.give_back(Returned::Rest);
    }

    /// Ends the connection under whoever waits on it.
    pub(super) fn break_off(&self) {
        socket::shut_down(&self.socket);
    }

    /// The slabs in which the objects of one call lie.
    pub(super) fn slabs(&self) -> Slabs<'_> {
        Slabs {
            session: self,
            last: None,
        }
    }

    fn slab(&self, number: u32) -> Option<Arc<Shown>> {
        let slabs = self.slabs.read().unwrap_or_else(PoisonError::into_inner);
        slabs.get(&number).cloned()
    }

    /// Maps the slabs that an answer names for the first time. Their pages come with the first touch.
    fn take_slabs(&self, slabs: &[NewSlab], descriptors: Vec<OwnedFd>) -> Result<(), Fault> {
        let unusable = |message: String| Fault::new(FaultKind::Unavailable, 0, message);
        if slabs.len() != descriptors.len() {
            let message = format!("the daemon sent {} of {} descriptors", descriptors.len(), slabs.len());
            return Err(unusable(message));
        }
        for (new, descriptor) in slabs.iter().zip(descriptors) {
            let len = usize::try_from(new.len).unwrap_or(usize::MAX);
            let mapped = Mapping::of_sealed(descriptor, len).and_then(|mapping| {
                // A child must not see memory whose owners it can't follow.
                mapping.exclude_from_fork()?;
                Ok(mapping)
            });
            let mapping = mapped.map_err(|error| unusable(format!("the daemon's memory can't be used: {error}")))?;
            let mut known = self.slabs.write().unwrap_or_else(PoisonError::into_inner);
            known.insert(new.slab, Arc::new(Shown::new(mapping)));
        }
        Ok(())
    }

    pub(super) fn gone(&self, error: &Broken) -> Fault {
        let message = format!(
            "the daemon at {} can't be reached: {error}; open a new store",
            self.path.display()
        );
        Fault::new(FaultKind::Unavailable, 0, message)
    }
}

fn round_trip<'r>(
    socket: BorrowedFd<'_>,
    message: &[u8],
    reader: &'r mut FrameReader,
) -> Result<(Reply<'r>, Vec<OwnedFd>), Broken> {
    match socket::send(socket, message) {
        // One that turns clients away goes at once, and has said why.
        Ok(()) | Err(Broken::Gone) => {}
        Err(broken) => return Err(broken),
    }
    let (body, descriptors) = reader.next_with_descriptors(socket)?;
    Ok((Reply::decode(body)?, descriptors))
}

/// How a refusal begins.
const REFUSED: &str = "the daemon refused this client: ";

pub(super) fn refused(why: &str) -> Fault {
    Fault::new(FaultKind::Unavailable, 0, format!("{REFUSED}{why}"))
}
