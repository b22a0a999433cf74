//! A client of a program's host in a process of its own, made to be killed: whatever a client can hold, it holds, and it is always in the middle of
//! something.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    process::{self, Child, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};
use tensorlease::{
    CallerMemory,
    engine::{Engine, FaultKind, ReadOp, Tag, WriteOp},
};
use tensorlease_host::{HostEngine, SocketPath};

/// The argument that makes this program a stranger; the socket follows.
pub(crate) const STRANGER: &str = "--stranger";
/// What it says when it holds everything.
const READY: &str = "ready";
/// A stranger that nobody kills ends by then.
const LIFE: Duration = Duration::from_secs(60);
/// Large enough to be in the middle of a copy, and small enough for a reservation ahead.
const OBJECT_LENS: [usize; 2] = [700_000, 3_000];

/// The process.
pub(crate) struct Stranger {
    process: Child,
    said: BufReader<ChildStdout>,
}

impl Stranger {
    /// Waits until it holds what it can of its own, and these objects as far as they are there.
    pub(crate) fn start(socket: &SocketPath, keys: &[String]) -> Result<Self, String> {
        let program = std::env::current_exe().expect("this program has a path");
        let started = Command::new(program)
            .arg(STRANGER)
            .arg(socket.as_path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut process = started.map_err(|error| format!("this program does not start again: {error}"))?;
        let said = BufReader::new(process.stdout.take().expect("asked for"));
        let mut stranger = Self { process, said };
        let mut lines = keys.join("\n");
        lines.push_str("\n\n");
        let told = stranger.process.stdin.as_mut().expect("asked for");
        let mut line = String::new();
        let ready = told.write_all(lines.as_bytes()).is_ok() && stranger.said.read_line(&mut line).is_ok();
        if ready && line.trim_end() == READY {
            return Ok(stranger);
        }
        Err(format!("a stranger did not get ready, it said {line:?}"))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// As `kill -9`. An error is what it had to complain of.
    pub(crate) fn kill(mut self) -> Result<(), String> {
        let killed = self.process.kill().and_then(|()| self.process.wait());
        killed.map_err(|error| format!("a child can't be killed: {error}"))?;
        let mut said = String::new();
        let heard = self.said.read_to_string(&mut said);
        heard.map_err(|error| error.to_string())?;
        if said.is_empty() {
            Ok(())
        } else {
            Err(format!("the stranger said: {said}"))
        }
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _dead_already = self.process.kill();
        let _reaped = self.process.wait();
    }
}

/// What the process does, until it is killed or the one that started it ends.
pub(crate) fn live(socket: &str) {
    let socket = SocketPath::new(socket).expect("the path of a socket");
    let engine = HostEngine::connect(&socket).expect("the daemon takes a client in");
    let mut input = io::stdin().lock().lines();
    let keys: Vec<String> = input
        .by_ref()
        .map_while(Result::ok)
        .take_while(|key| !key.is_empty())
        .collect();
    drop(input);
    thread::spawn(|| {
        let _end = io::stdin().lock().read(&mut [0]);
        process::exit(0);
    });
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let views = engine.views().expect("a host shows its objects");
    let _held = views.view_batch(&keys);
    let _slab = engine.slabs().expect("a host lends slabs").make(64 << 10);
    work(&engine, 0);
    say(READY);
    let start = Instant::now();
    for number in (1..=u8::MAX).cycle() {
        if LIFE < start.elapsed() {
            return;
        }
        work(&engine, number);
        thread::sleep(Duration::from_micros(100));
    }
}

/// Writes, views and removes objects of its own, which nobody else touches but by clearing the whole store.
fn work(engine: &HostEngine, number: u8) {
    let tag = Tag::new(b"a stranger's");
    for (at, len) in OBJECT_LENS.into_iter().enumerate() {
        let key = format!("a stranger's/{at}");
        let memory = CallerMemory::from_vec(vec![number; len]);
        let write = WriteOp {
            key: &key,
            segments: &[memory.source(0..len)],
            tag: &tag,
        };
        let written = engine.write_batch(&[write]).remove(0);
        if written.is_err_and(|fault| {
            !matches!(
                fault.kind,
                FaultKind::Full | FaultKind::TooLarge | FaultKind::Unavailable
            )
        }) {
            say("a write failed that nothing was wrong with");
        }
        let memory = CallerMemory::from_vec(vec![!number; len]);
        let read = ReadOp {
            key: &key,
            offset: 0,
            target: memory.target(0..len),
            object_len: len as u64,
            tag: Some(&tag),
            by_transport: false,
        };
        let read = engine.read_batch(&[read]).remove(0);
        let bytes = memory.source(0..len).to_vec();
        if read.is_ok() && bytes.iter().any(|byte| *byte != bytes[0]) {
            say("an object was of two writes");
        }
    }
    if number.is_multiple_of(4) {
        let _count = engine.remove_prefix("a stranger's/");
    }
}

fn say(line: &str) {
    let mut out = io::stdout().lock();
    // Without its reader nobody needs it.
    if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
        process::exit(0);
    }
}
