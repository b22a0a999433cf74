//! Serves one client's requests, one after the other.
use super::extent::Extent;
use super::holdings::{Foreign, position};
use super::memory::{Full, Refusal};
use super::relay::{self, Absurd, Relay};
use super::session::Session;
use super::{Object, Shared, lock_of, namespaces};
use crate::descriptors::DESCRIPTORS_MAX;
use crate::place::socket_option;
use crate::socket::{Broken, FrameReader, KEPT_BYTES_MAX, send_if_room, send_with};
use crate::wire::{
    Answer, Commit, Described, NewSlab, Pinned, Reply, Report, Request, Reservation, StoreCounts, VERSION,
    version_of_hello,
};
use std::os::fd::AsFd;
use std::sync::Arc;
use tensorlease_arena::SlabId;
use tensorlease_engine::{Fault, ObjectInfo, Tag};
use tensorlease_memory::{InFlight, SlabMemory, limits};

/// Until the client goes, or does what no client does.
pub(super) fn run(shared: &Shared, session: &Arc<Session>) {
    let mut serving = Serving {
        shared,
        session,
        reader: FrameReader::new(false),
        out: Vec::new(),
        welcomed: false,
        lane_of: None,
    };
    match serving.until_the_end() {
        Broken::Gone => {}
        broken => log::warn!(
            "client {} (process {}) was disconnected: {broken}",
            session.number,
            session.row().pid
        ),
    }
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

/// The client named what is not its own, or asked out of turn.
struct Lie(&'static str);

impl From<Foreign> for Lie {
    fn from(_: Foreign) -> Self {
        Self("it named a block that is not its own")
    }
}

impl From<Absurd> for Lie {
    fn from(Absurd(why): Absurd) -> Self {
        Self(why)
    }
}

/// An answer that borrows from the objects that it is about.
enum Outcome {
    /// With the session that the connection is a lane of.
    Welcome(Option<Arc<Session>>),
    Pinned(u64, Vec<Option<Arc<Object>>>),
    Exchanged(Vec<Reservation>),
    Extent(Reservation),
    NoExtent(Refusal),
    Flags(Vec<bool>),
    Removed(u64),
    Described(Vec<Option<Arc<Object>>>),
    Results(Vec<Result<u64, Fault>>),
    Known(Vec<Result<Option<ObjectInfo>, Fault>>),
    Counts,
    Report,
    /// The message gets none.
    Nothing,
}

impl<'s> Serving<'s> {
    fn until_the_end(&mut self) -> Broken {
        loop {
            if let Err(broken) = self.serve_one() {
                return broken;
            }
            if self.shared.is_stopping() {
                return Broken::Gone;
            }
        }
    }

    fn serve_one(&mut self) -> Result<(), Broken> {
        let body = self.reader.next(self.session.socket.as_fd())?;
        if !self.welcomed
            && let Some(version) = version_of_hello(body).filter(|version| *version != VERSION)
        {
            return self.refuse(&self.shared.other_version(version));
        }
        let request = Request::decode(body)?;
        if self.welcomed == matches!(request, Request::Hello { .. }) {
            return self.refuse("its first message, and no other, says hello");
        }
        let asker = Asker {
            shared: self.shared,
            session: self.lane_of.as_ref().unwrap_or(self.session),
        };
        let done = match (&request, &self.lane_of, &self.shared.relay) {
            (Request::Hello { lane_of, .. }, ..) => hello(self.shared, self.session, *lane_of),
            (request, Some(_), Some(relay)) => asker.relayed(relay, request),
            (request, None, Some(_)) if !is_about_memory(request) => {
                Err(Lie("it asked for objects, which are asked for on a lane"))
            }
            (request, ..) => asker.done(request),
        };
        match done {
            // Only messages without an answer give something back.
            Ok(Outcome::Nothing) if self.session.holdings().is_over() => Err(Broken::Gone),
            Ok(Outcome::Nothing) => Ok(()),
            Ok(outcome) => {
                if let Outcome::Welcome(lane_of) = &outcome {
                    self.welcomed = true;
                    self.lane_of.clone_from(lane_of);
                }
                self.answer(&outcome)
            }
            Err(Lie(why)) => self.refuse(why),
        }
    }

    fn refuse(&mut self, why: &str) -> Result<(), Broken> {
        let client = self.lane_of.as_ref().unwrap_or(self.session);
        log::warn!("client {} is cut off: {why}", client.number);
        let reply = Reply {
            slabs: Vec::new(),
            answer: Answer::Refused { why },
        };
        self.out.clear();
        reply.encode(&mut self.out);
        // Without waiting: a client that does not listen is cut off all the same.
        let told = send_if_room(self.session.socket.as_fd(), &self.out);
        if let Some(client) = &self.lane_of {
            // Whoever lies on one of its lanes loses all of them.
            self.shared.cut_off(client);
        }
        told.and(Err(Broken::Gone))
    }

    fn answer(&mut self, outcome: &Outcome) -> Result<(), Broken> {
        let new = self.new_slabs(outcome);
        let slabs = new.iter().map(|(slab, memory)| NewSlab {
            slab: slab.0,
            len: memory.mapping().len() as u64,
        });
        let reply = Reply {
            slabs: slabs.collect(),
            answer: self.worded(outcome),
        };
        self.out.clear();
        if KEPT_BYTES_MAX < self.out.capacity() {
            self.out.shrink_to(KEPT_BYTES_MAX);
        }
        reply.encode(&mut self.out);
        let descriptors: Vec<_> = new.iter().filter_map(|(_, memory)| memory.mapping().memfd()).collect();
        send_with(self.session.socket.as_fd(), &self.out, &descriptors)
    }

    /// The slabs that this answer is the first to name to this client.
    fn new_slabs(&self, outcome: &Outcome) -> Vec<(SlabId, SlabMemory)> {
        let mut named: Vec<SlabId> = match outcome {
            Outcome::Pinned(_, objects) => objects
                .iter()
                .flatten()
                .map(|object| object.lease.block().slab)
                .collect(),
            Outcome::Exchanged(reservations) => reservations.iter().filter_map(slab_of).collect(),
            Outcome::Extent(reservation) => slab_of(reservation).into_iter().collect(),
            _ => Vec::new(),
        };
        named.dedup();
        let mut holdings = self.session.holdings();
        named.retain(|slab| holdings.show(*slab));
        drop(holdings);
        debug_assert!(named.len() <= DESCRIPTORS_MAX);
        let memory = |slab: SlabId| Some((slab, self.shared.memory.slab(slab)?));
        named.into_iter().filter_map(memory).collect()
    }

    fn worded<'o>(&self, outcome: &'o Outcome) -> Answer<'o>
    where
        's: 'o,
    {
        let shared = self.shared;
        match outcome {
            Outcome::Welcome(_) => Answer::Welcome {
                capacity_bytes: self.shared.memory.capacity_bytes(),
                session: self.session.number,
                engine: shared.relay.as_ref().map(|relay| relay.claims()),
            },
            Outcome::Pinned(ticket, objects) => Answer::Pinned {
                ticket: *ticket,
                objects: objects.iter().map(|object| object.as_deref().map(pinned)).collect(),
            },
            Outcome::Exchanged(reservations) => Answer::Exchanged {
                reservations: reservations.clone(),
            },
            Outcome::Extent(reservation) => Answer::Extent {
                reservation: *reservation,
            },
            Outcome::NoExtent(Refusal { why, registration }) => Answer::NoExtent {
                why,
                registration: *registration,
            },
            Outcome::Flags(flags) => Answer::Flags { flags: flags.clone() },
            Outcome::Removed(count) => Answer::Removed { count: *count },
            Outcome::Described(objects) => Answer::Described {
                objects: objects.iter().map(|object| object.as_deref().map(described)).collect(),
            },
            Outcome::Results(results) => Answer::Results {
                results: results
                    .iter()
                    .map(|result| result.as_ref().copied().map_err(relay::failure))
                    .collect(),
            },
            Outcome::Known(objects) => {
                let object = |found: &'o Option<ObjectInfo>| found.as_ref().map(relay::known);
                Answer::Known {
                    objects: objects
                        .iter()
                        .map(|found| found.as_ref().map(object).map_err(relay::failure))
                        .collect(),
                }
            }
            Outcome::Counts => Answer::Counts(self.shared.counts()),
            Outcome::Report => Answer::Report(self.shared.report()),
            Outcome::Nothing => unreachable!("a message without an answer is not answered"),
        }
    }
}

fn pinned(object: &Object) -> Pinned<'_> {
    Pinned {
        position: position(object.lease.block(), object.len),
        version: object.version,
        tag: object.tag.as_bytes(),
    }
}

fn described(object: &Object) -> Described<'_> {
    Described {
        len: object.len,
        version: object.version,
        tag: object.tag.as_bytes(),
    }
}

fn slab_of(reservation: &Reservation) -> Option<SlabId> {
    match reservation {
        Reservation::Block { position, .. } => Some(SlabId(position.slab)),
        Reservation::Full { .. } => None,
    }
}

/// Who asks, and whom.
#[derive(Clone, Copy)]
struct Asker<'s> {
    shared: &'s Shared,
    session: &'s Session,
}

impl Asker<'_> {
    fn done(self, request: &Request<'_>) -> Result<Outcome, Lie> {
        let index = &self.shared.index;
        Ok(match request {
            Request::Hello { .. } | Request::Fetch { .. } | Request::Store { .. } => {
                return Err(Lie("it asked out of turn"));
            }
            Request::Pin { separate, keys } => {
                let objects: Vec<_> = keys.iter().map(|key| index.get(key)).collect();
                let ticket = self.session.holdings().pin(objects.clone(), *separate);
                Outcome::Pinned(ticket, objects)
            }
            Request::Unpin { tickets } => {
                for ticket in tickets {
                    let unpinned = self.session.holdings().unpin(*ticket)?;
                    drop(unpinned);
                }
                Outcome::Nothing
            }
            Request::Exchange {
                commits,
                releases,
                reserve,
            } => Outcome::Exchanged(self.exchange(commits, releases, reserve)?),
            Request::Extent { len } => self.extent(*len)?,
            Request::ReleaseExtent { ticket } => {
                let released = self.session.holdings().take_extent(*ticket)?;
                self.shared.take_back(vec![released]);
                Outcome::Nothing
            }
            Request::Remove { keys } => Outcome::Flags(keys.iter().map(|key| index.remove(key).is_some()).collect()),
            Request::RemovePrefix { prefix } => Outcome::Removed(index.remove_prefix(prefix)),
            Request::Contains { keys } => Outcome::Flags(keys.iter().map(|key| index.get(key).is_some()).collect()),
            Request::Describe { keys } => Outcome::Described(keys.iter().map(|key| index.get(key)).collect()),
            Request::Counts => Outcome::Counts,
            Request::Report => Outcome::Report,
            Request::Leave => {
                let held = self.session.holdings().leave();
                drop(held);
                Outcome::Nothing
            }
        })
    }

    /// What the engine behind the daemon is asked, on a lane.
    fn relayed(self, relay: &Relay, request: &Request<'_>) -> Result<Outcome, Lie> {
        let engine = relay.engine();
        let flags = |results: Vec<Result<bool, Fault>>| {
            let number = |result: Result<bool, Fault>| result.map(u64::from);
            Outcome::Results(results.into_iter().map(number).collect())
        };
        Ok(match request {
            Request::Fetch { reads } => Outcome::Results(relay.fetch(self.session, reads)?),
            Request::Store { writes } => Outcome::Results(relay.store(self.session, writes)?),
            Request::Remove { keys } => flags(engine.remove_batch(keys)),
            Request::RemovePrefix { prefix } => Outcome::Results(vec![engine.remove_prefix(prefix)]),
            Request::Contains { keys } => flags(engine.contains_batch(keys)),
            Request::Describe { keys } => Outcome::Known(engine.describe_batch(keys)),
            _ => return Err(Lie("a lane is for objects, and nothing else")),
        })
    }

    /// Everything is checked before anything is done.
    fn exchange(self, commits: &[Commit<'_>], releases: &[u64], reserve: &[u64]) -> Result<Vec<Reservation>, Lie> {
        let mut blocks = self.taken(commits, releases)?;
        // Those that are released stand after those that become objects.
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

    /// The blocks of all reservations that a message names. Of a message that is not to be believed everything stays as it was: what its client
    /// holds it may still write.
    fn taken(self, commits: &[Commit<'_>], releases: &[u64]) -> Result<Vec<InFlight>, Lie> {
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
                    Err(Lie("it wrote an object that is longer than its block, or empty"))
                }
                _ => Ok(()),
            }
        });
        if let Err(lie) = believed {
            taken
                .into_iter()
                .for_each(|(ticket, block)| holdings.put_back(ticket, block));
            return Err(lie);
        }
        holdings.counted.written_objects += commits.len() as u64;
        holdings.counted.written_bytes += commits.iter().map(|commit| commit.len).sum::<u64>();
        Ok(taken.into_iter().map(|(_, block)| block).collect())
    }

    fn reserve(self, lens: &[u64]) -> Vec<Reservation> {
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

    fn extent(self, len: u64) -> Result<Outcome, Lie> {
        if len == 0 || !len.is_multiple_of(limits::page_bytes() as u64) {
            return Err(Lie("it asked for an extent that is no whole number of pages"));
        }
        Ok(match self.shared.memory.pages(len) {
            Ok(block) => {
                let lease = self.shared.memory.lease(vec![block]).remove(0);
                let place = lease.block();
                let slab = self.shared.memory.slab(place.slab);
                let extent = slab
                    .and_then(|slab| Extent::new(lease, slab))
                    .expect("a leased block lies in its slab");
                if self.shared.relay.is_some() {
                    // It is the engine that writes here, in this process.
                    extent.prefault();
                }
                Outcome::Extent(Reservation::Block {
                    ticket: self.session.holdings().lend(extent),
                    position: position(place, len),
                })
            }
            Err(Full {
                refusal: Some(refusal), ..
            }) => Outcome::NoExtent(refusal),
            Err(Full { free, .. }) => Outcome::Extent(Reservation::Full { free }),
        })
    }
}

/// What a connection that is no lane may ask of a daemon with an engine behind it.
fn is_about_memory(request: &Request<'_>) -> bool {
    matches!(
        request,
        Request::Extent { .. } | Request::ReleaseExtent { .. } | Request::Counts | Request::Report | Request::Leave
    )
}

/// The first message: a session of its own, or a lane of one that this process has.
fn hello(shared: &Shared, session: &Arc<Session>, lane_of: u64) -> Result<Outcome, Lie> {
    if lane_of == 0 {
        return Ok(Outcome::Welcome(None));
    }
    let of = shared.session_of(lane_of, session.pid);
    let of = of.filter(|of| shared.relay.is_some() && of.add_lane(session));
    let of = of.ok_or(Lie(
        "it asked for a lane of a session that is not its own, or has ended",
    ))?;
    // It holds nothing of its own, and ends with that session.
    shared.forget(session);
    Ok(Outcome::Welcome(Some(of)))
}

impl Shared {
    /// What a client of another version must know to go on.
    fn other_version(&self, theirs: u16) -> String {
        let StoreCounts { objects, object_bytes } = self.counts();
        let plural = if objects == 1 { "" } else { "s" };
        let to_do = if VERSION < theirs {
            "the daemon runs older code: restart it after upgrading"
        } else {
            "the client runs older code: upgrade it, or start the daemon from the client's version"
        };
        format!(
            "it speaks version {theirs} of the protocol, and the daemon (process {}, tensorlease {}) speaks version {VERSION}; \
             {to_do}. `tensorlease stop {}` ends the daemon, which loses the {objects} object{plural} of {object_bytes} bytes \
             that it holds",
            std::process::id(),
            env!("CARGO_PKG_VERSION"),
            socket_option(self.options.socket.as_path()),
        )
    }

    fn counts(&self) -> StoreCounts {
        if let Some(relay) = &self.relay {
            let stats = relay.engine().stats();
            return StoreCounts {
                objects: stats.objects,
                object_bytes: stats.object_bytes,
            };
        }
        StoreCounts {
            objects: self.index.objects(),
            object_bytes: self.index.object_bytes(),
        }
    }

    fn report(&self) -> Report {
        let sessions: Vec<_> = lock_of(&self.sessions).values().cloned().collect();
        let mut clients: Vec<_> = sessions.iter().map(|session| session.row()).collect();
        clients.sort_unstable_by_key(|row| row.session);
        clients.truncate(crate::wire::LIST_MAX);
        let relay = self.relay.as_deref();
        Report {
            engine: relay.map_or("embedded", |relay| relay.claims().name).to_owned(),
            quarantined_bytes: relay.map_or(0, |relay| relay.quarantine.bytes()),
            late_bytes: relay.map_or(0, |relay| relay.quarantine.late_bytes()),
            register_calls: relay.map_or(0, |relay| relay.engine().stats().register_calls),
            capacity_bytes: self.memory.capacity_bytes(),
            held_bytes: self.memory.held_bytes(),
            counts: self.counts(),
            pid: std::process::id(),
            age_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            clients,
            namespaces: namespaces::rows(&self.index),
        }
    }
}
