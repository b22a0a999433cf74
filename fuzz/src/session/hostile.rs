//! The client that sends anything.

use super::script::{Ask, Harm, Step, Ticket};
use super::{Reached, SOON};
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use tensorlease_host::Daemon;
use tensorlease_host::wire::{Answer, Commit, LENGTH_BYTES, Reply, Request, Reservation, VERSION, body_len};

/// Keys by number: few, so that they meet; the last are another client's.
const KEYS: [&str; 9] = [
    "a",
    "b",
    "c",
    "",
    "long long long long long long long long long long long long long long",
    "nul\0and \u{fffd}",
    "a/b",
    super::OWN_KEYS[0],
    super::OWN_KEYS[1],
];
const PREFIXES: [&str; 4] = ["a", "b", "nobody's/", ""];
/// Nobody takes what is sent: then it is not sent.
const PUSH: Duration = Duration::from_millis(20);
/// A tag as every client writes them, and others.
const TAGS: [&[u8]; 3] = [b"", b"a tag", &[7; 1024]];

/// One end of a conversation with the daemon.
pub struct Hostile {
    stream: UnixStream,
    /// Shut down when its process is dead; the daemon closes the other end with the session.
    life: UnixStream,
    /// Every byte that was sent, in order.
    sent: Vec<u8>,
    frames: Vec<Vec<u8>>,
    tickets: Vec<u64>,
    /// Can the daemon still tell where a message begins, and does it listen?
    in_step: bool,
    /// Nothing more is taken.
    deaf: bool,
    reached: Reached,
}

impl Hostile {
    pub fn come(daemon: &Daemon) -> Self {
        let pair = || UnixStream::pair().expect("two connected sockets");
        let ((stream, theirs), (life, death)) = (pair(), pair());
        stream.set_write_timeout(Some(PUSH)).expect("a bound can be set");
        stream.set_read_timeout(Some(SOON)).expect("a bound can be set");
        daemon.attach(OwnedFd::from(theirs), OwnedFd::from(death));
        Self {
            stream,
            life,
            sent: Vec::new(),
            frames: Vec::new(),
            tickets: Vec::new(),
            in_step: true,
            deaf: false,
            reached: Reached::default(),
        }
    }

    pub fn act(&mut self, step: &Step) {
        match step {
            Step::Ask(ask, harm) => self.ask(ask, *harm),
            Step::Again(number) => {
                let at = usize::from(*number) % self.frames.len().max(1);
                if let Some(frame) = self.frames.get(at).cloned() {
                    self.send_frame(&frame);
                }
            }
            Step::Raw(bytes) => {
                self.in_step = false;
                self.send(bytes);
            }
            Step::Flood(count) => {
                self.in_step = false;
                let mut frame = Vec::new();
                Request::Report.encode(&mut frame);
                self.send(&frame.repeat(8 * usize::from(*count)));
            }
            // It fails where the daemon has ended the conversation.
            Step::HangUp => drop(self.stream.shutdown(Shutdown::Write)),
            Step::Die => self.die(),
        }
    }

    fn ask(&mut self, ask: &Ask, harm: Harm) {
        let mut frame = self.frame(ask);
        match harm {
            Harm::None => {}
            Harm::Change { at, with } => {
                let at = usize::from(at) % frame.len();
                frame[at] = with;
            }
            Harm::Cut { keep } => frame.truncate(usize::from(keep)),
            Harm::Twice => self.send_frame(&frame),
            Harm::Length { len } => frame[..LENGTH_BYTES].copy_from_slice(&len.to_le_bytes()),
        }
        self.send_frame(&frame);
        self.frames.push(frame);
    }

    fn frame(&self, ask: &Ask) -> Vec<u8> {
        let keys = |keys: &[u8]| keys.iter().map(|key| key_of(*key)).collect();
        let tickets = |tickets: &[Ticket]| tickets.iter().map(|ticket| self.ticket(*ticket)).collect();
        let request = match ask {
            Ask::Hello { away } => Request::Hello {
                version: VERSION.wrapping_add(u16::from(*away & 0xf)),
                lane_of: u64::from(*away >> 4),
            },
            Ask::Pin { separate, keys: asked } => Request::Pin {
                separate: *separate,
                keys: keys(asked),
            },
            Ask::Unpin { tickets: asked } => Request::Unpin {
                tickets: tickets(asked),
            },
            Ask::Exchange {
                commits,
                releases,
                reserve,
            } => Request::Exchange {
                commits: commits
                    .iter()
                    .map(|(ticket, len, key)| Commit {
                        ticket: self.ticket(*ticket),
                        len: *len,
                        key: key_of(*key),
                        tag: TAGS[usize::from(*key) % TAGS.len()],
                    })
                    .collect(),
                releases: tickets(releases),
                reserve: reserve.clone(),
            },
            Ask::Extent { len } => Request::Extent { len: *len },
            Ask::ReleaseExtent { ticket } => Request::ReleaseExtent {
                ticket: self.ticket(*ticket),
            },
            Ask::Remove { keys: asked } => Request::Remove { keys: keys(asked) },
            Ask::RemovePrefix { prefix } => Request::RemovePrefix {
                prefix: PREFIXES[usize::from(*prefix) % PREFIXES.len()],
            },
            Ask::Contains { keys: asked } => Request::Contains { keys: keys(asked) },
            Ask::Describe { keys: asked } => Request::Describe { keys: keys(asked) },
            Ask::Counts => Request::Counts,
            Ask::Report => Request::Report,
            Ask::Leave => Request::Leave,
        };
        let mut frame = Vec::new();
        request.encode(&mut frame);
        frame
    }

    fn ticket(&self, ticket: Ticket) -> u64 {
        let known = |back: u8| self.tickets.iter().rev().nth(usize::from(back)).copied().unwrap_or(1);
        match ticket {
            Ticket::Known(back) => known(back),
            Ticket::Beside(back, by) => known(back).wrapping_add_signed(i64::from(by)),
            Ticket::Number(number) => number,
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() && !self.deaf {
            match self.stream.write(rest) {
                Ok(taken) => {
                    self.sent.extend_from_slice(&rest[..taken]);
                    rest = &rest[taken..];
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The daemon has ended the conversation, or waits for its answers to be taken.
                Err(_) => (self.in_step, self.deaf) = (false, true),
            }
        }
    }

    /// Sends one frame and takes its answer, where there is to be one.
    fn send_frame(&mut self, frame: &[u8]) {
        let body = frame.first_chunk().and_then(|length| {
            let len = body_len(*length).ok()?;
            frame.get(LENGTH_BYTES..).filter(|body| body.len() == len)
        });
        let request = body.and_then(|body| Request::decode(body).ok());
        self.send(frame);
        match request {
            None => self.in_step = false,
            Some(request) if !request.is_answered() => {}
            Some(_) => while self.in_step && !self.take_answer() {},
        }
    }

    /// Takes one answer; true: it was one, or there is none to come.
    fn take_answer(&mut self) -> bool {
        let mut length = [0; LENGTH_BYTES];
        if !self.read(&mut length) {
            return true;
        }
        let len = body_len(length).expect("the daemon sends no message that is too long");
        let mut body = vec![0; len];
        if !self.read(&mut body) {
            return true;
        }
        let reply = Reply::decode(&body).expect("what the daemon sends is an answer");
        match reply.answer {
            Answer::Pinned { ticket, objects } => self.tickets.extend((ticket..).take(objects.len().max(1))),
            Answer::Exchanged { reservations } => self.tickets.extend(reservations.iter().filter_map(ticket_of)),
            Answer::Extent { reservation } => self.tickets.extend(ticket_of(&reservation)),
            Answer::Refused { .. } => {
                self.in_step = false;
                self.reached.refused = true;
            }
            _ => {}
        }
        self.reached.answers += 1;
        true
    }

    /// False: the conversation has ended. Panics where the daemon just does not answer.
    fn read(&mut self, bytes: &mut [u8]) -> bool {
        match self.stream.read_exact(bytes) {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("the daemon is silent"),
            Err(_) => {
                self.in_step = false;
                self.reached.refused = true;
                false
            }
        }
    }

    /// Did it, in a message that the daemon may have understood, ask to write or remove one of these?
    pub fn names(&self, keys: &[&str]) -> bool {
        let mut rest = self.sent.as_slice();
        while let Some((length, behind)) = rest.split_first_chunk() {
            let Some(body) = body_len(*length).ok().and_then(|len| behind.get(..len)) else {
                return false;
            };
            let touches = match Request::decode(body) {
                Ok(Request::Remove { keys: removed }) => removed.iter().any(|key| keys.contains(key)),
                Ok(Request::RemovePrefix { prefix }) => keys.iter().any(|key| key.starts_with(prefix)),
                Ok(Request::Exchange { commits, .. }) => commits.iter().any(|commit| keys.contains(&commit.key)),
                _ => false,
            };
            if touches {
                return true;
            }
            rest = &behind[body.len()..];
        }
        false
    }

    pub fn reached(&self) -> Reached {
        self.reached
    }

    fn die(&self) {
        self.life.shutdown(Shutdown::Write).expect("an open connection");
    }

    /// Its socket ends and its process is dead, unless it was so before. Panics where the daemon does not forget it.
    pub fn end(self) {
        self.die();
        drop(self.stream);
        let mut life = self.life;
        life.set_read_timeout(Some(SOON)).expect("a bound can be set");
        let forgotten = life.read_to_end(&mut Vec::new());
        assert!(
            matches!(forgotten, Ok(0)),
            "a dead client is not forgotten: {forgotten:?}"
        );
    }
}

fn key_of(number: u8) -> &'static str {
    KEYS[usize::from(number) % KEYS.len()]
}

fn ticket_of(reservation: &Reservation) -> Option<u64> {
    match reservation {
        Reservation::Block { ticket, .. } => Some(*ticket),
        Reservation::Full { .. } => None,
    }
}
