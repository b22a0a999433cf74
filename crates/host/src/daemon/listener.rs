//! Takes clients in, and ends the daemon when nobody needs it.
use super::serve;
use super::session::Session;
use super::shared::Shared;
use super::start::{StartError, system};
use super::threads::{self, ENGINE_STACK_BYTES, STACK_BYTES};
use crate::descriptors;
use crate::place::{FileId, Holder, PlaceError, SocketPath};
use crate::watch;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, SocketFlags, bind as bind_to, listen};
use rustix::process::{Pid, Resource, getrlimit, getuid};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tensorlease_memory::lock;
use tensorlease_memory::process::Peer;

/// Clients that may wait to be taken in. All processes of a host may come at once.
const BACKLOG: i32 = 1024;
/// More are turned away.
const SESSIONS_MAX: usize = 4096;
/// How often it looks whether anybody needs the daemon.
const LOOK: Duration = Duration::from_millis(200);
/// Pause after a client could not be taken in.
const AGAIN: Duration = Duration::from_millis(100);
/// Time that a daemon waits for its first client, which somebody may start by hand.
const FIRST_CLIENT: Duration = Duration::from_secs(60);
/// Time for running requests to end when the daemon stops.
const DRAIN: Duration = Duration::from_secs(1);

/// A socket that clients find by its name.
pub(super) struct Listener {
    socket: OwnedFd,
    /// What the name leads to, unless another daemon has taken it.
    file: Option<FileId>,
}

/// The caller holds the lock, so a socket that is there is a dead daemon's.
pub(super) fn bind(place: &SocketPath) -> Result<Listener, StartError> {
    let path = place.as_path();
    let listener = descriptors::unix_socket(SocketFlags::NONBLOCK).map_err(system("make a socket"))?;
    let address = SocketAddrUnix::new(path).map_err(system("name the socket"))?;
    if let Ok(there) = std::fs::symlink_metadata(path) {
        if !there.file_type().is_socket() {
            return Err(PlaceError::Occupied { path: path.to_owned() }.into());
        }
        // The lock file of a living daemon may have been removed. This process has then locked a new one.
        if place.is_listening() {
            let (socket, holder) = (place.clone(), Holder::default());
            return Err(StartError::Running { socket, holder });
        }
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(system("remove the socket that a dead daemon left")(error));
            }
            _ => {}
        }
    }
    bind_to(&listener, &address).map_err(system("bind the socket"))?;
    // The rights are set before it listens, so nobody connects under other rights.
    rustix::fs::chmod(path, Mode::RUSR | Mode::WUSR).map_err(system("protect the socket"))?;
    listen(&listener, BACKLOG).map_err(system("listen"))?;
    Ok(Listener {
        socket: listener,
        file: FileId::at(path),
    })
}

/// Runs until the daemon stops. Then `lock_file` is closed.
pub(super) fn run(shared: &Arc<Shared>, listener: &Listener, lock_file: OwnedFd) {
    let mut needed = Instant::now();
    let mut found = true;
    let mut spare = None;
    while !shared.is_stopping() {
        let mut watched = [PollFd::new(&listener.socket, PollFlags::IN), shared.stopped.polled()];
        // It does not matter what ended the wait. Everything is looked at below.
        let _woken = watch::wait(&mut watched, Some(LOOK));
        // Clients may come faster than they are taken in, so the loop also ends when the daemon stops.
        while !shared.is_stopping()
            && let Some(client) = accept(&listener.socket, &mut spare)
        {
            take_in(shared, client);
        }
        if found && !listener.is_found(&shared.options.socket) {
            found = false;
            log::warn!(
                "somebody removed {:?}: nobody can come any more, those who are here stay",
                shared.options.socket.as_path()
            );
        }
        // Without `idle_end` the objects are not counted: an engine behind the daemon may have to ask for them.
        let Some(idle) = shared.options.idle_end else { continue };
        if !lock(&shared.sessions).is_empty() || shared.has_objects() {
            needed = Instant::now();
        }
        let came = shared.sessions_made.load(Ordering::Relaxed) != 0;
        let patience = if came { idle } else { idle.max(FIRST_CLIENT) };
        if patience <= needed.elapsed() {
            log::info!("nobody needs this daemon: it ends");
            shared.stop();
        }
    }
    finish(shared, listener, lock_file);
}

impl Listener {
    /// Does the name still lead to it?
    fn is_found(&self, place: &SocketPath) -> bool {
        self.file.is_some() && FileId::at(place.as_path()) == self.file
    }
}

/// Removes the socket first, so that a new client finds none. Unlocks last, so that no other daemon starts meanwhile.
fn finish(shared: &Shared, listener: &Listener, lock_file: OwnedFd) {
    // Another daemon may have taken the name.
    if listener.is_found(&shared.options.socket) {
        let _gone = std::fs::remove_file(shared.options.socket.as_path());
    }
    shared.all_sessions().iter().for_each(|session| session.hang_up());
    let deadline = Instant::now() + DRAIN;
    // Each session's thread holds the shared state. A thread that is stuck does not keep the daemon from ending.
    while shared.serving.load(Ordering::Acquire) != 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(2));
    }
    if let Some(relay) = &shared.relay {
        let idle = shared.serving.load(Ordering::Acquire) == 0;
        relay.begin_to_close(if idle { shared.memory.regions() } else { Vec::new() });
        if !relay.has_closed(relay.close_timeout()) {
            log::warn!(
                "the engine behind the daemon has not closed: a call on it hangs, or whom it asks does not answer"
            );
        }
    }
    drop(lock_file);
    shared.ended.set(());
}

/// Takes in the next client. Where no descriptor is left, `spare` is closed for a moment, so that the client hears why
/// it is turned away.
fn accept(listener: &OwnedFd, spare: &mut Option<OwnedFd>) -> Option<OwnedFd> {
    if spare.is_none() {
        *spare = descriptors::event().ok();
    }
    loop {
        match descriptors::accepted(listener) {
            Ok(client) => return Some(client),
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(Errno::AGAIN) => return None,
            Err(Errno::MFILE | Errno::NFILE) if spare.take().is_some() => {
                if let Ok(client) = descriptors::accepted(listener) {
                    turn_away(&client, &no_descriptor_left());
                    drop(client);
                    *spare = descriptors::event().ok();
                }
            }
            Err(errno) => {
                // The clients that wait are taken in later.
                log::warn!("a client can't be taken in just now: {errno}");
                std::thread::sleep(AGAIN);
                return None;
            }
        }
    }
}

fn no_descriptor_left() -> String {
    let most = getrlimit(Resource::Nofile).current;
    let most = most.map_or_else(|| "the system's limit".to_owned(), |most| format!("a limit of {most}"));
    format!(
        "the daemon (process {}) has no descriptor left under {most}, and a client takes two; end clients that are not \
         needed, or restart the daemon with a higher limit (ulimit -n)",
        std::process::id()
    )
}

/// Turns away a client of another user, and one whose process can't be watched.
fn take_in(shared: &Arc<Shared>, client: OwnedFd) {
    let peer = match Peer::of(&client) {
        Ok(peer) if peer.user == getuid() => peer,
        Ok(peer) => {
            let why = format!("it is process {:?} of another user, {:?}", peer.pid, peer.user);
            return turn_away(&client, &why);
        }
        Err(error) => return turn_away(&client, &format!("the kernel does not say who it is: {error}")),
    };
    let Some(pid) = peer.pid else {
        let why = "its process runs in another PID namespace, where the daemon can't watch it; let both share one (containers: --pid=host)";
        return turn_away(&client, why);
    };
    if SESSIONS_MAX <= lock(&shared.sessions).len() {
        return turn_away(
            &client,
            &format!("{SESSIONS_MAX} clients are connected, which is the most"),
        );
    }
    match descriptors::process(pid) {
        Ok(pidfd) => admit(shared, client, pid, pidfd),
        Err(Errno::MFILE | Errno::NFILE) => turn_away(&client, &no_descriptor_left()),
        Err(errno) => turn_away(
            &client,
            &format!("its process {} can't be watched: {errno}", pid.as_raw_nonzero()),
        ),
    }
}

/// The client hears why, if it listens.
fn turn_away(client: impl AsFd, why: &str) {
    log::warn!("a client was turned away: {why}");
    serve::send_refusal(client, why);
}

/// Serves a client in a thread of its own. The client is dead when `pidfd` is readable.
pub(super) fn admit(shared: &Arc<Shared>, client: OwnedFd, pid: Pid, pidfd: OwnedFd) {
    let number = shared.sessions_made.fetch_add(1, Ordering::Relaxed) + 1;
    let session = Arc::new(Session::new(number, pid, pidfd, client));
    shared.add_session(&session);
    shared.serving.fetch_add(1, Ordering::AcqRel);
    let serving = {
        let (shared, session) = (Arc::clone(shared), Arc::clone(&session));
        move || {
            // A panic must not keep what the client holds.
            let served = catch_unwind(AssertUnwindSafe(|| serve::run(&shared, &session)));
            if served.is_err() {
                log::error!("serving client {} failed; it was disconnected", session.number);
            }
            shared.cut_off(&session);
            shared.serving.fetch_sub(1, Ordering::AcqRel);
        }
    };
    let calls_an_engine = shared.relay.is_some();
    let stack_bytes = if calls_an_engine {
        ENGINE_STACK_BYTES
    } else {
        STACK_BYTES
    };
    if let Err(error) = threads::spawn(format!("tensorlease-{number}"), stack_bytes, serving) {
        turn_away(&session.socket, &format!("there is no thread to serve it: {error}"));
        shared.serving.fetch_sub(1, Ordering::AcqRel);
        shared.cut_off(&session);
    }
}
