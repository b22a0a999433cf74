//! A host as the bottom of an engine: a daemon in this process, the client that the store runs on, other clients, and what befalls them.

use crate::{
    checking::{Checking, Claims},
    leaks::eventually,
    neighbour::Meddling,
    program::{Base, Fault, Program},
    random::Random,
    steps::{Act, Get, Step},
    stranger::Stranger,
    value::Shape,
};
use std::{
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};
use tempfile::TempDir;
use tensorlease::engine::{
    Embedded, EmbeddedOptions, Engine,
    decorators::{Choice, LateWriting},
};
use tensorlease_host::{Daemon, DaemonOptions, HostEngine, SocketPath};

const KIB: u64 = 1 << 10;
/// More than any program stores and leases.
const ROOMY_BYTES: u64 = 128 << 20;
/// For the engine behind a daemon, whose calls end by themselves.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// What a program's host is like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// Of the daemon, for everything that all its clients hold.
    pub(crate) max_bytes: u64,
    /// As the engine that the host stands in for: registration is required, and checked in software.
    pub(crate) registers: bool,
    /// A client in a process of its own holds and writes things of its own.
    pub(crate) stranger: bool,
    /// The objects are those of an engine behind the daemon, which checks what the daemon promises.
    pub(crate) relayed: bool,
}

impl Terms {
    /// May anybody be refused memory?
    pub(crate) fn is_scarce(self) -> bool {
        self.max_bytes < ROOMY_BYTES
    }
}

/// What befalls a host in the middle of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blow {
    /// The connection of the store's client ends.
    Disconnect,
    /// The daemon ends.
    StopDaemon,
    /// The process of the stranger is killed.
    KillStranger,
}

/// Gives one program in four a host to run on. Its numbers are its own, so that the other programs stay what they are.
pub(crate) fn perhaps(program: &mut Program, shapes: &[Shape]) {
    let random = &mut Random::new(program.seed ^ 0x686f_7374);
    if !random.one_in(4) {
        return;
    }
    let snug = program.options.max_bytes + 256 * KIB;
    let terms = Terms {
        max_bytes: random.pick(&[ROOMY_BYTES, ROOMY_BYTES, ROOMY_BYTES, snug, snug, 128 * KIB]),
        registers: program.base.registers(),
        stranger: random.one_in(6),
        relayed: false,
    };
    // A client of such a daemon has memory registered, whatever is behind it.
    let relayed = terms.registers && Random::new(program.seed ^ 0x7265_6c61).one_in(2);
    let terms = Terms {
        stranger: terms.stranger && !relayed,
        relayed,
        ..terms
    };
    if relayed {
        // No registration is longer than the host's memory, and a reserve that is larger is refused at open.
        let bounce = &mut program.options.bounce_bytes;
        *bounce = bounce.map(|bytes| bytes.min(terms.max_bytes));
    }
    program.base = Base::Host(terms);
    program.faults.retain(|fault| {
        let of_loans = matches!(fault, Fault::RefuseLoan { .. } | Fault::OverflowLoans);
        !of_loans
    });
    if terms.max_bytes < snug {
        // Whoever finds no memory waits for others to give theirs back: a second for each try.
        program.options.retries = program.options.retries.min(1);
        program.threads.iter_mut().for_each(|steps| steps.truncate(6));
    }
    if !relayed {
        for step in program.threads.iter_mut().flatten() {
            read_in_place(step, random);
        }
    }
    if random.one_in(2) {
        let steps = random.between(4, 30);
        program.neighbour = (0..steps)
            .map(|_| Meddling::random(random, program.keys.len(), shapes))
            .collect();
    }
    if terms.stranger {
        strike(program, Blow::KillStranger, random);
    }
    if random.one_in(6) {
        let blow = random.pick(&[Blow::Disconnect, Blow::StopDaemon]);
        strike(program, blow, random);
    }
}

/// Some reads become views.
fn read_in_place(step: &mut Step, random: &mut Random) {
    let Act::Get(get) = &mut step.act else { return };
    if get.batches.is_empty() && random.one_in(3) {
        let Get {
            keys, described, keeps, ..
        } = get.clone();
        step.act = Act::View { keys, described, keeps };
    }
}

/// Some step becomes the blow, unless it is one already.
fn strike(program: &mut Program, blow: Blow, random: &mut Random) {
    let thread = random.index(program.threads.len());
    let steps = &mut program.threads[thread];
    let at = random.index(steps.len());
    if !matches!(steps[at].act, Act::Strike(_)) {
        steps[at].act = Act::Strike(blow);
    }
}

/// A running host.
pub(crate) struct Host {
    daemon: Daemon,
    socket: SocketPath,
    /// The store's.
    pub(crate) client: Arc<HostEngine>,
    /// Another client, on which nothing goes wrong but the daemon's end.
    pub(crate) neighbour: HostEngine,
    stranger: Mutex<Option<Stranger>>,
    disconnected: AtomicBool,
    stopped: AtomicBool,
    behind: Option<Behind>,
    _folder: TempDir,
}

impl Host {
    pub(crate) fn start(terms: Terms, program: &Program) -> Self {
        let folder = tempfile::tempdir().expect("a folder for the socket");
        let socket = SocketPath::new(folder.path().join("host.sock")).expect("a short path");
        let options = DaemonOptions {
            socket: socket.clone(),
            max_bytes: terms.max_bytes,
            idle_end: None,
        };
        let behind = terms.relayed.then(|| Behind::of(program));
        let daemon = match &behind {
            Some(behind) => {
                let engine = Arc::clone(&behind.checking) as Arc<dyn Engine>;
                let behind = tensorlease_host::Behind {
                    engine,
                    quarantine_bytes: terms.max_bytes,
                    close_timeout: CLOSE_TIMEOUT,
                };
                Daemon::start_before(options, behind)
            }
            None => Daemon::start(options),
        };
        let connect = || HostEngine::connect(&socket).expect("the daemon takes a client in");
        let daemon = daemon.expect("a daemon starts");
        Self {
            daemon,
            client: Arc::new(connect()),
            neighbour: connect(),
            stranger: Mutex::new(None),
            disconnected: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            behind,
            socket,
            _folder: folder,
        }
    }

    /// Starts the stranger, who holds these objects as far as they are there.
    pub(crate) fn add_stranger(&self, keys: &[String]) -> Result<(), String> {
        let stranger = Stranger::start(&self.socket, keys)?;
        *self.stranger.lock().unwrap_or_else(PoisonError::into_inner) = Some(stranger);
        Ok(())
    }

    /// The way to the objects past all that may go wrong.
    pub(crate) fn objects(&self) -> &dyn Engine {
        match &self.behind {
            Some(behind) => &*behind.objects,
            None => &self.neighbour,
        }
    }

    /// Has the daemon been told to end?
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(SeqCst)
    }

    pub(crate) fn strike(&self, blow: Blow) -> Result<(), String> {
        match blow {
            Blow::Disconnect => {
                self.disconnected.store(true, SeqCst);
                self.client.disconnect();
                Ok(())
            }
            Blow::StopDaemon => {
                self.stopped.store(true, SeqCst);
                self.daemon.stop();
                Ok(())
            }
            Blow::KillStranger => self.kill_stranger(),
        }
    }

    fn kill_stranger(&self) -> Result<(), String> {
        let stranger = self.stranger.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(stranger) = stranger else { return Ok(()) };
        let pid = stranger.pid();
        stranger.kill()?;
        eventually(|| {
            if self.is_stopped() {
                return None;
            }
            match self.neighbour.report() {
                Ok(report) => {
                    let row = report.clients.into_iter().find(|row| row.pid == pid);
                    row.map(|row| format!("the daemon keeps what a dead process held: {row:?}"))
                }
                Err(fault) => (!self.is_stopped()).then(|| format!("the daemon does not report: {fault}")),
            }
        })
    }

    /// When the store and its engine are gone: by the daemon's own account nobody holds anything.
    pub(crate) fn end(&self) -> Result<(), String> {
        self.kill_stranger()?;
        self.neighbour.close().map_err(|error| error.to_string())?;
        let left = if self.is_stopped() {
            Ok(())
        } else {
            self.nothing_is_held()
        };
        self.daemon.stop();
        if !self.daemon.wait(Duration::ZERO) {
            return Err("the daemon has not ended when its stop returned".to_owned());
        }
        let path: &Path = self.socket.as_path();
        if path.exists() {
            return Err("the daemon's socket outlives it".to_owned());
        }
        if !self.daemon.has_closed() {
            return Err("the engine behind the daemon has not closed when its stop returned".to_owned());
        }
        let broken = self.behind.as_ref().map(|behind| behind.checking.broken());
        let broken = broken.unwrap_or_default();
        if let Some(first) = broken.first() {
            return Err(format!("the daemon broke a promise to its engine: {first}"));
        }
        left
    }

    fn nothing_is_held(&self) -> Result<(), String> {
        let judge =
            HostEngine::connect(&self.socket).map_err(|error| format!("the daemon takes nobody in: {error}"))?;
        judge.remove_prefix("").map_err(|fault| fault.to_string())?;
        eventually(|| match judge.report() {
            Err(fault) => Some(format!("the daemon does not report: {fault}")),
            Ok(report) => {
                let mut rows = report.clients;
                // The last that came is who asks.
                rows.sort_unstable_by_key(|row| row.session);
                rows.pop();
                // This process lives, and might still touch what it held when its connection ended.
                let kept = self.disconnected.load(SeqCst);
                let strange = rows.iter().find(|row| !(kept && row.quarantined));
                let strange = strange.map(|row| format!("the daemon still has a client, which holds {row:?}"));
                // What a transfer may still write is kept until the engine behind the daemon is closed.
                let held = report.held_bytes - report.late_bytes;
                let unowned = (rows.is_empty() && 0 < held).then(|| format!("{held} bytes are out that nobody holds"));
                strange.or(unowned)
            }
        })
    }
}

/// The engine behind a daemon.
struct Behind {
    /// Where the objects are.
    objects: Arc<dyn Engine>,
    /// What the daemon must keep its promises to. Memory must be registered with it.
    checking: Arc<Checking>,
}

impl Behind {
    /// Whatever writes late does so here, where a client that is gone can't wait for it.
    fn of(program: &Program) -> Self {
        let options = EmbeddedOptions {
            capacity_bytes: program.capacity_bytes,
            pinned: false,
        };
        let objects: Arc<dyn Engine> = Arc::new(Embedded::new(&options).expect("an embedded store opens"));
        let mut engine = Arc::clone(&objects);
        let mut random = Random::new(program.seed ^ 0x6265_6869);
        for fault in &program.faults {
            let seed = random.number();
            if let Fault::Late { micros, probability } = *fault {
                let choice = Choice::Chance { probability, seed };
                engine = Arc::new(LateWriting::new(engine, Duration::from_micros(micros), choice));
            }
        }
        let checking = Arc::new(Checking::new(engine, Claims::registering()));
        Self { objects, checking }
    }
}
