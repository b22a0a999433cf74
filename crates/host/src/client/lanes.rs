//! Lanes: further connections of a client whose daemon has an engine behind it. A call on that engine may last, so each
//! has a lane to itself.
use super::connect::{self, ConnectError, Connection};
use super::messages::{refused, unavailable};
use super::session::Session;
use crate::socket::{self, Broken, FrameReader};
use crate::wire::{Answer, Reply, Request};
use rustix::net::sockopt::{self, Timeout};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;
use tensorlease_engine::Fault;
use tensorlease_memory::lock;

/// Most calls at once. A further call waits for one to end. A client gives its engine up long before that many hang.
const LANES_MAX: usize = 48;
/// How often a waiting call checks whether the engine was closed.
const SLICE: Duration = Duration::from_millis(200);

/// One connection, one call at a time.
struct Lane {
    socket: Arc<OwnedFd>,
    reader: FrameReader,
    out: Vec<u8>,
}

/// The lanes of one session, made when they are needed.
#[derive(Default)]
pub(super) struct Lanes {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    idle: Vec<Lane>,
    /// Of all lanes, also those that are in a call.
    sockets: Vec<Weak<OwnedFd>>,
    open: usize,
    closed: bool,
}

/// Why a call brought no answer.
pub(super) enum Unanswered {
    /// It never reached the engine.
    Unasked(Fault),
    /// It may have reached the engine, and may still run there.
    Unknown(Fault),
}

impl Unanswered {
    /// For calls that move no bytes both are the same.
    pub(super) fn fault(self) -> Fault {
        match self {
            Self::Unasked(fault) | Self::Unknown(fault) => fault,
        }
    }
}

impl Lanes {
    /// One call on the daemon's engine. Waits for as long as that takes, or until `close`.
    pub(super) fn ask<T>(
        &self,
        session: &Session,
        request: &Request<'_>,
        read: impl FnOnce(Answer<'_>) -> Result<T, Fault>,
    ) -> Result<T, Unanswered> {
        let mut lane = self.take(session).map_err(Unanswered::Unasked)?;
        let answered = lane.round_trip(session, request, read);
        self.put_back(answered.is_ok().then_some(lane));
        answered
    }

    /// Ends all lanes. Calls that wait on one fail.
    pub(super) fn close(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        state.idle.clear();
        state
            .sockets
            .iter()
            .filter_map(Weak::upgrade)
            .for_each(|socket| socket::shut_down(&*socket));
        drop(state);
        self.changed.notify_all();
    }

    fn take(&self, session: &Session) -> Result<Lane, Fault> {
        let mut state = lock(&self.state);
        loop {
            if state.closed {
                return Err(Fault::closed());
            }
            if let Some(lane) = state.idle.pop() {
                return Ok(lane);
            }
            if state.open < LANES_MAX {
                break;
            }
            let waited = self.changed.wait_timeout(state, SLICE);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.open += 1;
        drop(state);
        let made = Lane::connect(session, || !lock(&self.state).closed);
        let mut state = lock(&self.state);
        let made = made.and_then(|lane| if state.closed { Err(Fault::closed()) } else { Ok(lane) });
        match made {
            Ok(lane) => {
                state.sockets.retain(|socket| 0 < socket.strong_count());
                state.sockets.push(Arc::downgrade(&lane.socket));
                Ok(lane)
            }
            Err(fault) => {
                state.open -= 1;
                Err(fault)
            }
        }
    }

    /// None: it has ended.
    fn put_back(&self, lane: Option<Lane>) {
        let mut state = lock(&self.state);
        match lane {
            Some(lane) if !state.closed => state.idle.push(lane),
            _ => state.open -= 1,
        }
        drop(state);
        self.changed.notify_one();
    }
}

impl Lane {
    /// A daemon that is silent is asked again while the lanes are `open`: the caller knows how long it waits.
    fn connect(session: &Session, open: impl Fn() -> bool) -> Result<Self, Fault> {
        let welcomed = loop {
            match connect::welcomed(&session.place, session.number) {
                Err(ConnectError::Silent { .. }) if open() => {}
                made => break made,
            }
        };
        let (connection, _) = welcomed.map_err(|error| unavailable(format!("{error}; open a new store")))?;
        let Connection { socket, reader, out } = connection;
        // From now on calls may last. A waiting call wakes up now and then.
        sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(SLICE))
            .map_err(|errno| unavailable(format!("the daemon's socket can't be used: {errno}")))?;
        let socket = Arc::new(socket);
        Ok(Self { socket, reader, out })
    }

    /// Why the daemon hung up, if it said so.
    fn turned_away(&mut self) -> Option<Fault> {
        let body = self.reader.next(self.socket.as_fd()).ok()?;
        match Reply::decode(body).ok()?.answer {
            Answer::Refused { why } => Some(refused(why)),
            _ => None,
        }
    }

    fn round_trip<T>(
        &mut self,
        session: &Session,
        request: &Request<'_>,
        read: impl FnOnce(Answer<'_>) -> Result<T, Fault>,
    ) -> Result<T, Unanswered> {
        self.out.clear();
        request.encode(&mut self.out);
        let socket = self.socket.as_fd();
        // A message that was not sent whole is never served.
        if let Err(error) = socket::send(socket, &self.out) {
            let why = self.turned_away().unwrap_or_else(|| session.gone(&error));
            return Err(Unanswered::Unasked(why));
        }
        let unknown = |error: Broken| Unanswered::Unknown(session.gone(&error));
        let body = self.reader.next_however_long(socket).map_err(unknown)?;
        match Reply::decode(body).map_err(|error| unknown(error.into()))?.answer {
            Answer::Refused { why } => Err(Unanswered::Unasked(refused(why))),
            // After a fault here the call may run: what came is no answer to it.
            answer => read(answer).map_err(Unanswered::Unknown),
        }
    }
}
