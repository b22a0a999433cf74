//! What holds of a running daemon for any client that speaks to it: it stays up, what the client held goes back when its process is dead, and others
//! keep what they have.

mod honest;
mod hostile;
mod script;

use honest::{Honest, OWN_KEYS};
use hostile::Hostile;
use script::Script;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tensorlease_host::{Daemon, DaemonOptions, SocketPath};

/// Small enough for a client to take all of it.
const CAPACITY_BYTES: u64 = 4 << 20;
/// Whatever comes about at all does so sooner, also on a busy machine.
const SOON: Duration = Duration::from_secs(8);

/// One daemon for all inputs: what one leaves behind, the next ones find.
struct Host {
    daemon: Daemon,
    honest: Honest,
}

static HOST: OnceLock<Mutex<Host>> = OnceLock::new();

impl Host {
    fn start() -> Self {
        let folder = std::env::temp_dir().join(format!("tensorlease-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder for the socket");
        let socket = SocketPath::new(folder.join("host.sock")).expect("a short path");
        let daemon = Daemon::start(DaemonOptions {
            socket: socket.clone(),
            max_bytes: CAPACITY_BYTES,
            idle_end: None,
        });
        let daemon = daemon.expect("a daemon starts");
        let honest = Honest::come(&socket);
        // Both ends are open: nobody needs the name any more.
        let _gone = std::fs::remove_dir_all(&folder);
        Self { daemon, honest }
    }
}

/// How far an input got.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reached {
    /// Messages that the daemon answered.
    pub answers: usize,
    /// Did the daemon end the conversation?
    pub refused: bool,
}

/// Plays one input as a client's side of a conversation. Panics where the daemon fails anybody else.
pub fn replay(input: &[u8]) -> Reached {
    let host = HOST.get_or_init(|| Mutex::new(Host::start()));
    let mut host = host.lock().unwrap_or_else(PoisonError::into_inner);
    let Host { daemon, honest } = &mut *host;
    let mut hostile = Hostile::come(daemon);
    for step in Script::new(input) {
        hostile.act(&step);
    }
    let touched = hostile.names(&OWN_KEYS);
    honest.is_unharmed(touched);
    let reached = hostile.reached();
    hostile.end();
    // Its process is dead: nothing of it is left but the objects that it wrote, which are everybody's.
    let started = Instant::now();
    loop {
        let left = daemon.sessions() != 1 || !honest.holds_all_that_is_out();
        if !left {
            break;
        }
        assert!(
            started.elapsed() < SOON,
            "something is left of a dead client: {}",
            honest.account()
        );
        std::thread::yield_now();
    }
    honest.is_unharmed(false);
    reached
}
