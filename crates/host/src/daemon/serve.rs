//! Serves one client's requests, one after the other.
use super::extent::Extent;
use super::memory::Full;
use super::object::{Object, position};
use super::relay::{self, Relay};
use super::session::Session;
use super::shared::Shared;
use super::violation::{ProtocolViolation, violation};
use crate::descriptors::DESCRIPTORS_MAX;
use crate::socket::{Broken, FrameReader, KEPT_BYTES_MAX, send_if_room, send_with};
use crate::wire::{Answer, Commit, NewSlab, Reply, Request, Reservation, VERSION, WireError, version_of_hello};
use std::borrow::Cow;
use std::os::fd::AsFd;
use std::sync::Arc;
use tensorlease_arena::SlabId;
use tensorlease_engine::{Fault, Tag};
use tensorlease_memory::{InFlight, SlabMemory, limits};

/// Why a client is served no longer.
enum End {
    /// It broke the protocol, or speaks another version of it. It is told so in these words.
    Refused(Cow<'static, str>),
    /// The connection has ended.
    Broken(Broken),
}

impl From<ProtocolViolation> for End {
    fn from(ProtocolViolation { why }: ProtocolViolation) -> Self {
        Self::Refused(why.into())
    }
}

impl From<Broken> for End {
    fn from(broken: Broken) -> Self {
        Self::Broken(broken)
    }
}

impl From<WireError> for End {
    fn from(error: WireError) -> Self {
        Self::Broken(error.into())
    }
}

/// Serves until the client goes or breaks the protocol.
pub(super) fn run(shared: &Shared, session: &Arc<Session>) {
    let mut serving = Serving {
        shared,
        session,
        reader: FrameReader::new(false),
        out: Vec::new(),
        welcomed: false,
        lane_of: None,
    };
    let end = loop {
        match serving.serve_one() {
            Ok(()) if shared.is_stopping() => return,
            Ok(()) => {}
            Err(end) => break end,
        }
    };
    match end {
        End::Refused(why) => serving.refuse(&why),
        End::Broken(Broken::Gone) => {}
        End::Broken(broken) => log::warn!(
            "client {} (process {}) was disconnected: {broken}",
            session.number,
            session.pid.as_raw_nonzero()
        ),
    }
}

/// Sends why a client is refused. It does not wait: a client that does not listen is cut off all the same.
pub(super) fn send_refusal(socket: impl AsFd, why: &str) {
    let mut bytes = Vec::new();
    let answer = Answer::Refused { why };
    Reply {
        slabs: Vec::new(),
        answer,
    }
    .encode(&mut bytes);
    let _gone = send_if_room(socket.as_fd(), &bytes);
}

struct Serving<'s> {
    shared: &'s Shared,
    session: &'s Arc<Session>,
    reader: FrameReader,
    out: Vec<u8>,
    welcomed: bool,
    /// This connection is a lane of another one's session.
    lane_of: Option<Arc<Session>>,
}

impl Serving<'_> {
    fn serve_one(&mut self) -> Result<(), End> {
        let body = self.reader.next(self.session.socket.as_fd())?;
        if !self.welcomed
            && let Some(version) = version_of_hello(body).filter(|version| *version != VERSION)
        {
            return Err(End::Refused(self.shared.other_version(version).into()));
        }
        let request = Request::decode(body)?;
        let mut asker = Asker {
            shared: self.shared,
            connection: self.session,
            session: self.lane_of.as_ref().unwrap_or(self.session),
            out: &mut self.out,
        };
        match (&request, self.welcomed, &self.lane_of, &self.shared.relay) {
            (Request::Hello { lane_of, .. }, false, ..) => {
                let lane_of = asker.hello(*lane_of)?;
                self.welcomed = true;
                self.lane_of = lane_of;
                Ok(())
            }
            (Request::Hello { .. }, true, ..) | (_, false, ..) => {
                Ok(violation("its first message, and no other, says hello")?)
            }
            (request, _, Some(_), Some(relay)) => asker.relayed(relay, request),
            (request, _, None, Some(_)) if !is_about_memory(request) => {
                Ok(violation("it asked for objects, which are asked for on a lane")?)
            }
            (request, ..) => asker.done(request),
        }
    }

    fn refuse(&self, why: &str) {
        let client = self.lane_of.as_ref().unwrap_or(self.session);
        log::warn!("client {} is cut off: {why}", client.number);
        send_refusal(&self.session.socket, why);
        if let Some(client) = &self.lane_of {
            // A client that breaks the protocol on one of its lanes loses all of them.
            self.shared.cut_off(client);
        }
    }
}

/// Who asks, and where the answer goes.
struct Asker<'s> {
    shared: &'s Shared,
    /// The answer goes here.
    connection: &'s Arc<Session>,
    /// Holds what is asked for. For a lane this is not the connection's own session.
    session: &'s Session,
    out: &'s mut Vec<u8>,
}

impl Asker<'_> {
    /// Answers the first message. The connection is a session of its own, or a lane of the session that is returned.
    fn hello(&mut self, lane_of: u64) -> Result<Option<Arc<Session>>, End> {
        let shared = self.shared;
        let mut of = None;
        if lane_of != 0 {
            of = shared.session_of(lane_of, self.connection.pid);
            if !of
                .as_ref()
                .is_some_and(|of| shared.relay.is_some() && of.add_lane(self.connection))
            {
                violation("it asked for a lane of a session that is not its own, or has ended")?;
            }
            // A lane holds nothing of its own, and ends with that session.
            shared.forget(self.connection);
        }
        self.answer(Answer::Welcome {
            capacity_bytes: shared.memory.capacity_bytes(),
            session: self.connection.number,
            engine: shared.relay.as_ref().map(|relay| relay.claims()),
        })?;
        Ok(of)
    }

    fn done(&mut self, request: &Request<'_>) -> Result<(), End> {
        let index = &self.shared.index;
        let found = |keys: &[&str]| -> Vec<Option<Arc<Object>>> { keys.iter().map(|key| index.get(key)).collect() };
        match request {
            Request::Hello { .. } | Request::Fetch { .. } | Request::Store { .. } => {
                Ok(violation("it asked out of turn")?)
            }
            Request::Pin { separate, keys } => {
                let objects = found(keys);
                let ticket = self.session.holdings().pin(objects.clone(), *separate);
                let objects = objects
                    .iter()
                    .map(|object| object.as_deref().map(Object::pinned))
                    .collect();
                self.answer(Answer::Pinned { ticket, objects })
            }
            Request::Unpin { tickets } => {
                for ticket in tickets {
                    let unpinned = self.session.holdings().unpin(*ticket)?;
                    drop(unpinned);
                }
                self.unanswered()
            }
            Request::Exchange {
                commits,
                releases,
                reserve,
            } => {
                let reservations = self.exchange(commits, releases, reserve)?;
                self.answer(Answer::Exchanged { reservations })
            }
            Request::Extent { len } => self.extent(*len),
            Request::ReleaseExtent { ticket } => {
                let released = self.session.holdings().take_extent(*ticket)?;
                self.shared.take_back(vec![released]);
                self.unanswered()
            }
            Request::Remove { keys } => self.flags(keys.iter().map(|key| index.remove(key).is_some())),
            Request::RemovePrefix { prefix } => self.results(&[Ok(index.remove_prefix(prefix))]),
            Request::Contains { keys } => self.flags(keys.iter().map(|key| index.get(key).is_some())),
            Request::Describe { keys } => {
                let objects = found(keys);
                let objects = objects
                    .iter()
                    .map(|object| Ok(object.as_deref().map(Object::described)));
                self.answer(Answer::Described {
                    objects: objects.collect(),
                })
            }
            Request::Counts => self.answer(Answer::Counts(self.shared.counts())),
            Request::Report => self.answer(Answer::Report(self.shared.report())),
            Request::Leave => {
                let held = self.session.holdings().leave();
                drop(held);
                self.unanswered()
            }
        }
    }

    /// What the engine behind the daemon is asked, on a lane.
    fn relayed(&mut self, relay: &Relay, request: &Request<'_>) -> Result<(), End> {
        let engine = relay.engine();
        let number = |result: Result<bool, Fault>| result.map(u64::from);
        let results = match request {
            Request::Fetch { reads } => relay.fetch(self.session, reads)?,
            Request::Store { writes } => relay.store(self.session, writes)?,
            Request::Remove { keys } => engine.remove_batch(keys).into_iter().map(number).collect(),
            Request::RemovePrefix { prefix } => vec![engine.remove_prefix(prefix)],
            Request::Contains { keys } => engine.contains_batch(keys).into_iter().map(number).collect(),
            Request::Describe { keys } => {
                let found = engine.describe_batch(keys);
                let objects = found.iter().map(|found| match found {
                    Ok(object) => Ok(object.as_ref().map(relay::described)),
                    Err(fault) => Err(relay::failure(fault)),
                });
                return self.answer(Answer::Described {
                    objects: objects.collect(),
                });
            }
            _ => violation("a lane is for objects, and nothing else")?,
        };
        self.results(&results)
    }

    fn flags(&mut self, flags: impl Iterator<Item = bool>) -> Result<(), End> {
        let results = flags.map(|flag| Ok(u64::from(flag))).collect();
        self.answer(Answer::Results { results })
    }

    fn results(&mut self, results: &[Result<u64, Fault>]) -> Result<(), End> {
        let results = results
            .iter()
            .map(|result| result.as_ref().copied().map_err(relay::failure));
        self.answer(Answer::Results {
            results: results.collect(),
        })
    }

    fn answer(&mut self, answer: Answer<'_>) -> Result<(), End> {
        let new = self.new_slabs(&answer);
        let slabs = new.iter().map(|(slab, memory)| NewSlab {
            slab: slab.0,
            len: memory.mapping().len() as u64,
        });
        let reply = Reply {
            slabs: slabs.collect(),
            answer,
        };
        self.out.clear();
        if KEPT_BYTES_MAX < self.out.capacity() {
            self.out.shrink_to(KEPT_BYTES_MAX);
        }
        reply.encode(self.out);
        let descriptors: Vec<_> = new.iter().filter_map(|(_, memory)| memory.mapping().memfd()).collect();
        Ok(send_with(self.connection.socket.as_fd(), self.out, &descriptors)?)
    }

    /// Ends a message that gets no answer. Only such messages give something back. It may have been the last of a
    /// client that has left.
    fn unanswered(&self) -> Result<(), End> {
        if self.connection.holdings().is_over() {
            return Err(Broken::Gone.into());
        }
        Ok(())
    }

    /// The slabs that this answer names to the client for the first time.
    fn new_slabs(&self, answer: &Answer<'_>) -> Vec<(SlabId, SlabMemory)> {
        let slab_of = |reservation: &Reservation| match reservation {
            Reservation::Block { position, .. } => Some(position.slab),
            Reservation::Full { .. } => None,
        };
        let mut named: Vec<u32> = match answer {
            Answer::Pinned { objects, .. } => objects.iter().flatten().map(|object| object.position.slab).collect(),
            Answer::Exchanged { reservations } => reservations.iter().filter_map(slab_of).collect(),
            Answer::Extent { reservation } => slab_of(reservation).into_iter().collect(),
            Answer::Welcome { .. }
            | Answer::NoExtent { .. }
            | Answer::Results { .. }
            | Answer::Described { .. }
            | Answer::Counts(_)
            | Answer::Report(_)
            | Answer::Refused { .. } => return Vec::new(),
        };
        named.dedup();
        let mut holdings = self.session.holdings();
        named.retain(|slab| holdings.show(SlabId(*slab)));
        drop(holdings);
        debug_assert!(named.len() <= DESCRIPTORS_MAX);
        let memory = |slab: u32| Some((SlabId(slab), self.shared.memory.slab(SlabId(slab))?));
        named.into_iter().filter_map(memory).collect()
    }

    /// Everything is checked before anything is done.
    fn exchange(
        &self,
        commits: &[Commit<'_>],
        releases: &[u64],
        reserve: &[u64],
    ) -> Result<Vec<Reservation>, ProtocolViolation> {
        let mut blocks = self.taken(commits, releases)?;
        // The released blocks stand after those that become objects.
        drop(blocks.split_off(commits.len()));
        let mut last = Tag::new(&[]);
        for (commit, lease) in commits.iter().zip(self.shared.memory.lease(blocks)) {
            if last.as_bytes() != commit.tag {
                last = Tag::new(commit.tag);
            }
            let object = Object {
                lease,
                len: commit.len,
                version: self.shared.next_version(),
                tag: last.clone(),
            };
            self.shared.index.insert(commit.key, Arc::new(object));
        }
        Ok(self.reserve(reserve))
    }

    /// The blocks of all reservations that a message names. A message that breaks the protocol changes nothing, because
    /// its client may still write what it holds.
    fn taken(&self, commits: &[Commit<'_>], releases: &[u64]) -> Result<Vec<InFlight>, ProtocolViolation> {
        let mut holdings = self.session.holdings();
        let mut taken = Vec::with_capacity(commits.len() + releases.len());
        let written = commits.iter().map(|commit| (commit.ticket, Some(commit.len)));
        let named = written.chain(releases.iter().map(|ticket| (*ticket, None)));
        let believed = named.into_iter().try_for_each(|(ticket, written)| {
            // A reservation that is named twice is not there the second time.
            let block = holdings.take_reserved(ticket)?;
            let whole = block.block().len;
            taken.push((ticket, block));
            match written {
                Some(len) if len == 0 || whole < len => {
                    violation("it wrote an object that is longer than its block, or empty")
                }
                _ => Ok(()),
            }
        });
        if let Err(violation) = believed {
            taken
                .into_iter()
                .for_each(|(ticket, block)| holdings.put_back(ticket, block));
            return Err(violation);
        }
        holdings.counted.written_objects += commits.len() as u64;
        holdings.counted.written_bytes += commits.iter().map(|commit| commit.len).sum::<u64>();
        Ok(taken.into_iter().map(|(_, block)| block).collect())
    }

    fn reserve(&self, lens: &[u64]) -> Vec<Reservation> {
        let blocks = self.shared.memory.blocks(lens);
        let mut holdings = self.session.holdings();
        let reservation = |block: Result<InFlight, Full>| match block {
            Ok(block) => {
                let place = block.block();
                Reservation::Block {
                    ticket: holdings.reserve(block),
                    position: position(place, place.len),
                }
            }
            Err(Full { free, .. }) => Reservation::Full { free },
        };
        blocks.into_iter().map(reservation).collect()
    }

    fn extent(&mut self, len: u64) -> Result<(), End> {
        if len == 0 || !len.is_multiple_of(limits::page_bytes() as u64) {
            violation("it asked for an extent that is no whole number of pages")?;
        }
        let memory = &self.shared.memory;
        let reservation = match memory.pages(len) {
            Ok(block) => {
                let lease = memory.lease(vec![block]).remove(0);
                let place = lease.block();
                let extent = memory.slab(place.slab).and_then(|slab| Extent::new(lease, slab));
                let extent = extent.expect("a leased block lies in its slab");
                if self.shared.relay.is_some() {
                    // The engine writes here, in this process.
                    extent.prefault();
                }
                Reservation::Block {
                    ticket: self.session.holdings().lend(extent),
                    position: position(place, len),
                }
            }
            Err(Full {
                refusal: Some(refusal), ..
            }) => {
                return self.answer(Answer::NoExtent {
                    why: &refusal.why,
                    registration: refusal.registration,
                });
            }
            Err(Full { free, .. }) => Reservation::Full { free },
        };
        self.answer(Answer::Extent { reservation })
    }
}

/// Messages that are allowed on a session's own connection where an engine has the objects.
fn is_about_memory(request: &Request<'_>) -> bool {
    match request {
        Request::Extent { .. } | Request::ReleaseExtent { .. } | Request::Counts | Request::Report | Request::Leave => {
            true
        }
        Request::Hello { .. }
        | Request::Pin { .. }
        | Request::Unpin { .. }
        | Request::Exchange { .. }
        | Request::Remove { .. }
        | Request::RemovePrefix { .. }
        | Request::Contains { .. }
        | Request::Describe { .. }
        | Request::Fetch { .. }
        | Request::Store { .. } => false,
    }
}
