//! Daemons and clients for tests, in this process and in others.
#![allow(dead_code, reason = "each test program uses some of it")]
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tensorlease_host::wire::{LENGTH_BYTES, Reply, Request, VERSION, body_len};
use tensorlease_host::{Daemon, DaemonOptions, HostEngine, SocketPath};

pub(crate) const CAPACITY_BYTES: u64 = 32 << 20;
/// Environment variables that tell a started test program what it is.
const ROLE: &str = "TENSORLEASE_TEST_ROLE";
const SOCKET: &str = "TENSORLEASE_TEST_SOCKET";

/// A folder with a place for a socket.
pub(crate) struct Place {
    pub(crate) socket: SocketPath,
    _folder: TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder for the socket");
        Self {
            socket: SocketPath::new(folder.path().join("host.sock")).expect("a short path"),
            _folder: folder,
        }
    }

    pub(crate) fn options(&self) -> DaemonOptions {
        DaemonOptions {
            socket: self.socket.clone(),
            max_bytes: CAPACITY_BYTES,
            idle_end: None,
        }
    }

    pub(crate) fn daemon(&self) -> Daemon {
        Daemon::start(self.options()).expect("a daemon starts")
    }

    pub(crate) fn client(&self) -> HostEngine {
        HostEngine::connect(&self.socket).expect("a client connects")
    }

    /// Starts this test program again, as `role`, and waits until it says that it is ready.
    pub(crate) fn process(&self, role: &str) -> Process {
        self.started(role, &mut Command::new(this_program()))
    }

    /// Starts it in a PID namespace of its own. None: this system makes none for this user.
    pub(crate) fn process_in_a_namespace(&self, role: &str) -> Option<Process> {
        let unshare = |more: &[&str]| {
            let mut command = Command::new("unshare");
            command.args(["--pid", "--fork", "--kill-child"]).args(more);
            command
        };
        // A user who is not root needs a user namespace for it.
        let ways: [&[&str]; 2] = [&[], &["--map-root-user"]];
        let works = |more: &&&[&str]| unshare(more).arg("true").status().is_ok_and(|status| status.success());
        let more = ways.iter().find(works)?;
        Some(self.started(role, unshare(more).arg(this_program())))
    }

    fn started(&self, role: &str, program: &mut Command) -> Process {
        let mut child = program
            .args(["--exact", "plays_a_role", "--nocapture"])
            .env(ROLE, role)
            .env(SOCKET, self.socket.as_path())
            .stdout(Stdio::piped())
            .stdin(Stdio::piped())
            .spawn()
            .expect("this program starts again");
        let stdout = child.stdout.take().expect("piped");
        let ready = BufReader::new(stdout)
            .lines()
            .map_while(Result::ok)
            .any(|line| line.ends_with("ready"));
        assert!(ready, "{role} ended before it was ready: {:?}", child.wait());
        Process { child }
    }
}

fn this_program() -> std::path::PathBuf {
    std::env::current_exe().expect("this program has a path")
}

/// The role as which a test started this program, and the socket. None: no test started it.
pub(crate) fn role() -> Option<(String, SocketPath)> {
    let role = std::env::var(ROLE).ok()?;
    let socket = std::env::var_os(SOCKET).expect("a role has a socket");
    Some((role, SocketPath::new(socket).expect("a short path")))
}

/// Another process, killed at the latest when it is dropped.
pub(crate) struct Process {
    pub(crate) child: Child,
}

impl Process {
    /// Ends it at once, as `kill -9` does.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a child ends");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _dead_already = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Tells the parent that it may go on, then waits to be killed.
pub(crate) fn ready_until_killed() -> ! {
    println!("ready");
    std::io::stdout().flush().expect("the parent listens");
    let mut nothing = [0; 1];
    // Ends also when the parent dies.
    let _end = std::io::stdin().read(&mut nothing);
    std::process::exit(0);
}

/// Waits for what other processes and threads bring about.
pub(crate) fn eventually(what: &str, holds: impl Fn() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < Duration::from_secs(20), "{what} did not come about");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A client that sends whatever it likes.
pub(crate) struct RawClient {
    stream: UnixStream,
    body: Vec<u8>,
}

impl RawClient {
    /// Before its hello.
    pub(crate) fn silent(socket: &SocketPath) -> Self {
        let stream = UnixStream::connect(socket.as_path()).expect("the daemon listens");
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .expect("a bound can be set");
        Self {
            stream,
            body: Vec::new(),
        }
    }

    pub(crate) fn welcomed(socket: &SocketPath) -> Self {
        let mut client = Self::silent(socket);
        client.ask(&Request::Hello {
            version: VERSION,
            lane_of: 0,
        });
        client
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        // The daemon may have ended the connection already.
        let _ended = self.stream.write_all(bytes);
    }

    pub(crate) fn tell(&mut self, request: &Request<'_>) {
        let mut frame = Vec::new();
        request.encode(&mut frame);
        self.send(&frame);
    }

    /// Panics where the daemon ends the connection instead of answering.
    pub(crate) fn ask(&mut self, request: &Request<'_>) -> Reply<'_> {
        self.tell(request);
        self.answer().expect("an answer")
    }

    /// None: the connection has ended.
    pub(crate) fn answer(&mut self) -> Option<Reply<'_>> {
        let mut length = [0; LENGTH_BYTES];
        self.stream.read_exact(&mut length).ok()?;
        let len = body_len(length).expect("a length that is allowed");
        self.body.resize(len, 0);
        self.stream.read_exact(&mut self.body).ok()?;
        Some(Reply::decode(&self.body).expect("a reply"))
    }

    /// Nothing more is sent.
    pub(crate) fn hang_up(&self) {
        self.stream
            .shutdown(std::net::Shutdown::Write)
            .expect("an open connection");
    }
}
