//! A client's connection: one conversation, and the slabs that it has been shown.
use super::connect::{Behind, ConnectError, Connection, bound, round_trip, welcomed};
use super::messages::{refused, unavailable};
use super::returns::{Returned, Returns};
use super::shown::{self, Shown};
use crate::place::SocketPath;
use crate::socket::{self, Broken, FrameReader};
use crate::watch;
use crate::wire::{Answer, NewSlab, Position, Reply, Report, Request};
use rustix::event::{PollFd, PollFlags};
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, TryLockError, Weak};
use std::time::Duration;
use tensorlease_engine::Fault;
use tensorlease_memory::{Mapping, RegionMap, fork, lock};

/// A daemon answers within microseconds. One that is silent for so long is taken for gone.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// The thread that waits to give back needs next to nothing.
const STACK_BYTES: usize = 64 << 10;

/// Who holds what on a host.
pub type HostReport = Report;

/// Lives as long as the engine and anything that the daemon has lent. The socket's end would end those.
pub(super) struct Session {
    pub(super) place: SocketPath,
    socket: OwnedFd,
    /// What the daemon calls it.
    pub(super) number: u64,
    /// The daemon's bound of everything, bytes.
    pub(super) capacity_bytes: u64,
    conversation: Mutex<Conversation>,
    slabs: RwLock<HashMap<u32, Arc<Shown>>>,
    /// Extents that the daemon has lent it, with their tickets.
    pub(super) lent: Mutex<RegionMap<u64>>,
    /// What goes back to the daemon.
    pub(super) returns: Returns,
    fork_generation: u64,
    /// For a thread that outlives the call which starts it.
    this: Weak<Self>,
    /// Does a thread wait for the daemon to take what goes back?
    giving_back: AtomicBool,
}

/// Finds slabs by their numbers. Most objects of a call lie in one slab, so the last one is kept.
pub(super) struct Slabs<'s> {
    session: &'s Session,
    last: Option<(u32, Arc<Shown>)>,
}

impl Slabs<'_> {
    /// The slab in which these bytes lie, and where in it they begin. Refuses bytes that the daemon never showed.
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
    /// Why it has ended. Every later call gets the same fault.
    broken: Option<Fault>,
}

impl Session {
    /// With the engine behind the daemon, if there is one.
    pub(super) fn connect(place: &SocketPath) -> Result<(Arc<Self>, Option<Behind>), ConnectError> {
        let (Connection { socket, reader, out }, welcome) = welcomed(place, 0)?;
        bound(&socket, SILENCE_MAX).map_err(|errno| ConnectError::System {
            socket: place.as_path().to_owned(),
            source: errno.into(),
        })?;
        let session = Arc::new_cyclic(|this| Self {
            place: place.clone(),
            socket,
            number: welcome.session,
            capacity_bytes: welcome.capacity_bytes,
            conversation: Mutex::new(Conversation {
                reader,
                out,
                broken: None,
            }),
            slabs: RwLock::default(),
            lent: Mutex::default(),
            returns: Returns::default(),
            fork_generation: fork::generation(),
            this: this.clone(),
            giving_back: AtomicBool::new(false),
        });
        Ok((session, welcome.engine))
    }

    /// One round trip. `read` sees the answer where it lies, and the slabs that it may name.
    pub(super) fn ask<T>(
        &self,
        request: &Request<'_>,
        read: impl FnOnce(Answer<'_>, &Self) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let result = self.ask_now(request, read);
        // Meanwhile other threads left what they give back to this one.
        self.flush();
        result
    }

    fn ask_now<T>(
        &self,
        request: &Request<'_>,
        read: impl FnOnce(Answer<'_>, &Self) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        debug_assert!(request.is_answered());
        let mut conversation = lock(&self.conversation);
        let Conversation { reader, out, broken } = &mut *conversation;
        if let Some(fault) = broken {
            return Err(fault.clone());
        }
        out.clear();
        request.encode(out);
        let told = match round_trip(self.socket.as_fd(), out, reader) {
            Ok((
                Reply {
                    answer: Answer::Refused { why },
                    ..
                },
                _,
            )) => Err(refused(why)),
            Ok((Reply { slabs, answer }, descriptors)) => self.take_slabs(&slabs, descriptors).map(|()| answer),
            Err(error) => Err(self.gone(&error)),
        };
        match told {
            Ok(answer) => read(answer, self),
            Err(fault) => {
                socket::shut_down(&self.socket);
                *broken = Some(fault.clone());
                Err(fault)
            }
        }
    }

    /// Is this the process that connected? In a forked child the connection, and what is lent, are its parent's.
    pub(super) fn is_own(&self) -> bool {
        fork::generation() == self.fork_generation
    }

    /// Gives back what the daemon lent, soon. Never waits, so any thread may call it at any time. Does nothing in a
    /// forked child.
    pub(super) fn give_back(&self, returned: Returned) {
        if self.is_own() && self.returns.add(returned) {
            self.flush();
        }
    }

    /// Gives back also what is not due yet.
    pub(super) fn return_everything(&self) {
        if self.is_own() && self.returns.try_again() {
            self.flush();
        }
    }

    /// Sends what is to be given back. If another thread has the conversation, that thread sends it.
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
                    // The daemon takes nothing now.
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

    /// Starts a thread that waits until the daemon takes messages again, because perhaps no call follows. Without a
    /// thread the next call sends the rest.
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

    /// Waits until the socket takes bytes, has ended, or was full for longer than a daemon is ever silent.
    fn wait_for_room(&self) {
        let mut watched = [PollFd::new(&self.socket, PollFlags::OUT)];
        // It does not matter what ended the wait. What is there is sent if it can be.
        let _ended = watch::wait(&mut watched, Some(SILENCE_MAX));
    }

    /// Ends the connection. Calls that wait on it fail.
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
        if slabs.len() != descriptors.len() {
            let come = descriptors.len();
            return Err(unavailable(format!(
                "the daemon sent {come} of {} descriptors",
                slabs.len()
            )));
        }
        for (new, descriptor) in slabs.iter().zip(descriptors) {
            let len = usize::try_from(new.len).unwrap_or(usize::MAX);
            let mapped = Mapping::of_sealed(descriptor, len).and_then(|mapping| {
                // A child must not see memory whose owners it can't follow.
                mapping.exclude_from_fork()?;
                Ok(mapping)
            });
            let mapping = mapped.map_err(|error| unavailable(format!("the daemon's memory can't be used: {error}")))?;
            let mut known = self.slabs.write().unwrap_or_else(PoisonError::into_inner);
            known.insert(new.slab, Arc::new(Shown::new(mapping)));
        }
        Ok(())
    }

    pub(super) fn gone(&self, error: &Broken) -> Fault {
        let place = self.place.as_path().display();
        unavailable(format!(
            "the daemon at {place} can't be reached: {error}; open a new store"
        ))
    }
}
