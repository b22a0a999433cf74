//! An engine behind the daemon moves bytes in and out of memory that clients were lent, also where the clients die
//! meanwhile.
#[path = "support/requiring.rs"]
mod requiring;
mod support;
#[path = "support/with_daemon.rs"]
mod with_daemon;

use requiring::{Requiring, STORE_BYTES};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use support::{CAPACITY_BYTES, Place, Process, RawClient, eventually, ready_until_killed, role};
use tensorlease_engine::conformance::Rig;
use tensorlease_engine::decorators::{Choice, Gate, Gated, LateWriting};
use tensorlease_engine::{Engine, Fault, FaultKind, ReadOp, Tag, WriteOp, conformance_tests};
use tensorlease_host::wire::{Answer, Fetch, Request, Reservation, Span, Store, VERSION};
use tensorlease_host::{Behind, Daemon, HostEngine, SocketPath, StartError};
use tensorlease_memory::{CopyMode, NoSlab, SlabMemory, copy};
use with_daemon::WithDaemon;

const MIB: usize = 1 << 20;
const KEY: &str = "shared";
const CLOSE: Duration = Duration::from_millis(300);

fn behind(engine: &Arc<impl Engine + 'static>) -> Behind {
    Behind {
        engine: engine.clone(),
        quarantine_bytes: CAPACITY_BYTES,
        close_timeout: CLOSE,
    }
}

fn daemon(place: &Place, behind: Behind) -> Daemon {
    Daemon::start_before(place.options(), behind).expect("a daemon starts")
}

/// Transfers stand still while the gate is shut.
fn gated_daemon(place: &Place) -> (Daemon, Gate) {
    let gate = Gate::new();
    let engine = Gated::new(Requiring::new(u64::MAX), gate.clone());
    (daemon(place, behind(&Arc::new(engine))), gate)
}

/// A client that reads and writes as a store does: in memory of the daemon's.
struct Client {
    engine: HostEngine,
    slab: SlabMemory,
}

impl Client {
    fn connect(socket: &SocketPath, bytes: usize) -> Self {
        let engine = HostEngine::connect(socket).expect("a client connects");
        let slab = extent(&engine, bytes).expect("there is room");
        engine.register(slab.region()).expect("its own memory");
        Self { engine, slab }
    }

    fn write(&self, key: &str, bytes: &[u8]) -> Result<(), Fault> {
        copy(bytes.into(), &self.slab.target(0..bytes.len()), CopyMode::Cached);
        let write = WriteOp {
            key,
            segments: &[self.slab.source(0..bytes.len())],
            tag: &Tag::new(b"any"),
        };
        self.engine.write_batch(&[write]).remove(0)
    }

    fn read(&self, key: &str, len: usize) -> Result<Vec<u8>, Fault> {
        let read = ReadOp {
            key,
            offset: 0,
            target: self.slab.target(0..len),
            object_len: len as u64,
            tag: None,
            by_transport: false,
        };
        let read = self.engine.read_batch(&[read]).remove(0)?;
        assert_eq!(read, len as u64);
        Ok(self.slab.source(0..len).to_vec())
    }
}

fn extent(engine: &HostEngine, bytes: usize) -> Option<SlabMemory> {
    let slabs = engine.slabs().expect("a host lends slabs");
    match slabs.make(bytes) {
        Ok(slab) => Some(slab),
        Err(NoSlab::Full { .. }) => None,
        Err(none) => panic!("{none}"),
    }
}

/// All memory that the daemon has left, filled with one byte.
fn takes_everything(engine: &HostEngine) -> Vec<SlabMemory> {
    let slabs: Vec<_> = std::iter::from_fn(|| extent(engine, MIB)).collect();
    for slab in &slabs {
        copy([0x5a; MIB][..].into(), &slab.target(0..MIB), CopyMode::Cached);
    }
    slabs
}

fn assert_unchanged(slabs: &[SlabMemory]) {
    for slab in slabs {
        assert!(
            slab.source(0..MIB).to_vec().iter().all(|byte| *byte == 0x5a),
            "a byte has changed"
        );
    }
}

fn in_front_of_required_memory() -> Option<Rig> {
    let engine = Requiring::new(u64::MAX);
    Some(Rig::new(Arc::new(WithDaemon::before(behind(&engine)))).with_capacity(STORE_BYTES))
}

fn in_front_of_late_writes() -> Option<Rig> {
    let engine = LateWriting::new(Requiring::new(u64::MAX), Duration::from_millis(1), Choice::never());
    Some(Rig::new(Arc::new(WithDaemon::before(behind(&Arc::new(engine))))).with_capacity(STORE_BYTES))
}

conformance_tests!(on_a_relay, in_front_of_required_memory);
conformance_tests!(on_a_relay_to_late_writes, in_front_of_late_writes);

/// Not a test: what this program does when a test starts it again.
#[test]
fn plays_a_role() {
    let Some((role, socket)) = role() else { return };
    match role.as_str() {
        "reader" => {
            let client = Client::connect(&socket, 4 * MIB);
            let _idle = extent(&client.engine, 2 * MIB).expect("there is room");
            println!("ready");
            let _killed_meanwhile = client.read(KEY, MIB);
            ready_until_killed();
        }
        "late reader" => {
            let client = Client::connect(&socket, 4 * MIB);
            let _idle = extent(&client.engine, 2 * MIB).expect("there is room");
            let fault = client.read(KEY, MIB).expect_err("it ends late");
            assert_eq!(fault.kind, FaultKind::MayStillWrite, "{fault}");
            ready_until_killed();
        }
        "stuck daemon" => {
            let gate = Gate::new();
            gate.shut();
            let engine = Gated::new(Requiring::new(u64::MAX), gate);
            let options = tensorlease_host::DaemonOptions {
                socket,
                max_bytes: CAPACITY_BYTES,
                idle_end: None,
            };
            let _daemon = Daemon::start_before(options, behind(&Arc::new(engine))).expect("a daemon starts");
            ready_until_killed();
        }
        other => panic!("no such role: {other}"),
    }
}

#[test]
fn the_daemon_registers_each_slab_once_and_clients_nothing() {
    let place = Place::new();
    let engine = Requiring::new(CAPACITY_BYTES / 2);
    let daemon = daemon(&place, behind(&engine));
    let registered = || engine.registered.lock().expect("no test panics here").len();
    assert_eq!(registered(), 1, "the first slab at the start");
    let clients: Vec<_> = (0..8).map(|_| Client::connect(&place.socket, MIB)).collect();
    let bytes = vec![7; MIB];
    clients[0].write(KEY, &bytes).expect("a write");
    for client in &clients {
        assert_eq!(client.read(KEY, MIB).as_ref(), Ok(&bytes));
    }
    assert_eq!(registered(), 1, "eight clients share one registration");
    let report = clients[0].engine.report().expect("the daemon answers");
    assert_eq!((report.register_calls, report.engine.as_str()), (1, "requiring"));
    let large: Vec<_> = std::iter::from_fn(|| extent(&clients[0].engine, 4 * MIB)).collect();
    assert!(4 <= large.len(), "{} extents", large.len());
    assert_eq!(registered(), 2, "as large as a registration may be, and no larger");
    let too_long = usize::try_from(CAPACITY_BYTES / 2).expect("a few MiB") + MIB;
    drop(large);
    eventually("room", || daemon.held_bytes() == 8 << 20);
    assert!(
        extent(&clients[0].engine, too_long).is_none(),
        "no extent crosses two registrations"
    );
    drop(clients);
    eventually("the end of its sessions", || daemon.sessions() == 0);
    daemon.stop();
    assert_eq!(
        *engine.left.lock().expect("no test panics here"),
        Some(0),
        "unregistered before the close"
    );
    assert!(daemon.has_closed());
}

#[test]
fn memory_that_can_not_be_registered_keeps_a_daemon_from_starting() {
    let place = Place::new();
    let engine = Requiring::new(1);
    let refused = Daemon::start_before(place.options(), behind(&engine));
    let Err(StartError::Memory { message, .. }) = refused else {
        panic!("it started: {refused:?}")
    };
    assert!(message.contains("requiring"), "{message}");
    assert!(
        engine.left.lock().expect("no test panics here").is_some(),
        "the engine is closed"
    );
    drop(place.daemon());
}

#[test]
fn what_a_client_registered_elsewhere_is_read_and_written_all_the_same() {
    let place = Place::new();
    let _daemon = daemon(&place, behind(&Requiring::new(u64::MAX)));
    let client = Client::connect(&place.socket, MIB);
    let rig = Rig::new(Arc::new(place.client()));
    let far = rig.memory(3 * MIB);
    drop(far);
    let mut own = vec![0; 70_000];
    let region = tensorlease_memory::Region {
        addr: own.as_ptr() as usize,
        len: own.len(),
    };
    client.write(KEY, &[3; 70_000]).expect("a write");
    let mut read = || {
        let read = ReadOp {
            key: KEY,
            offset: 0,
            target: (&mut own[..]).into(),
            object_len: 70_000,
            tag: None,
            by_transport: false,
        };
        client.engine.read_batch(&[read]).remove(0)
    };
    assert_eq!(read().map_err(|fault| fault.kind), Err(FaultKind::Unregistered));
    client.engine.register(region).expect("any memory");
    assert_eq!(read(), Ok(70_000));
    assert_eq!(own, [3; 70_000]);
    client.engine.unregister(region).expect("it was registered");
}

#[test]
fn a_client_killed_in_a_transfer_gives_back_all_but_what_that_still_writes() {
    let place = Place::new();
    let (daemon, gate) = gated_daemon(&place);
    let client = Client::connect(&place.socket, MIB);
    let bytes: Vec<u8> = (0..=250_u8).cycle().take(MIB).collect();
    client.write(KEY, &bytes).expect("a write");
    gate.shut();
    let mut reader = place.process("reader");
    assert!(gate.wait_for_waiting(1, Duration::from_secs(20)), "the reader reads");
    let report = client.engine.report().expect("a transfer is in nobody's way");
    assert_eq!((report.engine.as_str(), report.quarantined_bytes), ("requiring", 0));
    let row = report
        .clients
        .iter()
        .find(|row| 0 < row.transfer_bytes)
        .expect("the reader");
    assert_eq!((row.transfer_bytes, row.extent_bytes), (MIB as u64, 6 << 20));
    reader.kill();
    eventually("the end of its session", || daemon.sessions() == 1);
    assert_eq!(
        daemon.quarantined_bytes(),
        4 << 20,
        "the extent that is read into, and not the idle one"
    );
    assert_eq!(daemon.held_bytes(), 5 << 20);
    let others = place.client();
    let slabs = takes_everything(&others);
    assert_eq!(daemon.held_bytes(), CAPACITY_BYTES);
    gate.open();
    eventually("the end of the transfer", || daemon.quarantined_bytes() == 0);
    assert_unchanged(&slabs);
    assert_eq!(daemon.held_bytes(), CAPACITY_BYTES - (4 << 20));
    assert!(extent(&others, 4 * MIB).is_some(), "it is anybody's again");
    assert_eq!(client.read(KEY, MIB).as_ref(), Ok(&bytes));
}

fn always_late(delay: Duration) -> Arc<LateWriting> {
    Arc::new(LateWriting::new(Requiring::new(u64::MAX), delay, Choice::always()))
}

#[test]
fn what_may_still_be_written_is_nobody_elses_until_the_engine_is_closed() {
    let place = Place::new();
    let daemon = daemon(&place, behind(&always_late(Duration::from_millis(500))));
    let client = Client::connect(&place.socket, MIB);
    client.write(KEY, &[1; MIB]).expect("a write");
    let mut reader = place.process("late reader");
    let row = |late: u64| {
        let report = client.engine.report().expect("the daemon answers");
        report.clients.iter().any(|row| row.late_bytes == late)
    };
    assert!(row(MIB as u64), "the report says what may still be written");
    reader.kill();
    eventually("the end of its session", || daemon.sessions() == 1);
    let others = place.client();
    let slabs = takes_everything(&others);
    let arena = Arc::clone(slabs[0].mapping());
    let written = || arena.source(0..arena.len()).to_vec().contains(&LateWriting::GARBAGE);
    eventually("the late write", written);
    assert_unchanged(&slabs);
    let report = client.engine.report().expect("the daemon answers");
    assert_eq!((report.quarantined_bytes, report.late_bytes), (4 << 20, 4 << 20));
    assert!(extent(&others, MIB).is_none(), "who knows whether it writes once more");
    daemon.stop();
    assert_unchanged(&slabs);
    assert!(daemon.has_closed());
    assert_eq!(daemon.quarantined_bytes(), 0);
}

#[test]
fn past_the_bound_of_its_quarantine_a_daemon_begins_no_transfer() {
    let place = Place::new();
    let behind = Behind {
        quarantine_bytes: MIB as u64,
        ..behind(&always_late(Duration::from_secs(60)))
    };
    let daemon = daemon(&place, behind);
    let client = Client::connect(&place.socket, MIB);
    client.write(KEY, &[1; MIB]).expect("a write");
    place.process("late reader").kill();
    eventually("the end of its session", || daemon.sessions() == 1);
    let fault = client.write(KEY, &[2; 10]).expect_err("too much is quarantined");
    assert_eq!(fault.kind, FaultKind::Unavailable);
    assert!(fault.message.contains("restart the daemon"), "{fault}");
}

#[test]
fn a_transfer_of_a_closed_client_keeps_its_memory_until_it_ends() {
    let place = Place::new();
    let (daemon, gate) = gated_daemon(&place);
    let client = Client::connect(&place.socket, MIB);
    client.write(KEY, &[1; MIB]).expect("a write");
    gate.shut();
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| client.read(KEY, MIB));
        assert!(gate.wait_for_waiting(1, Duration::from_secs(20)), "it reads");
        client.engine.close().expect("a close waits for nothing that hangs");
        let fault = reading.join().expect("no panic").expect_err("a close ends it");
        assert_eq!(fault.kind, FaultKind::MayStillWrite, "{fault}");
    });
    drop(client);
    eventually("the end of its session", || daemon.sessions() == 0);
    assert_eq!((daemon.quarantined_bytes(), daemon.held_bytes()), (1 << 20, 1 << 20));
    gate.open();
    eventually("the end of the transfer", || daemon.held_bytes() == 0);
}

#[test]
fn a_daemon_killed_in_a_transfer_leaves_its_outcome_open() {
    let place = Place::new();
    let mut daemon: Process = place.process("stuck daemon");
    let client = Client::connect(&place.socket, MIB);
    let watching = place.client();
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| client.read(KEY, MIB));
        eventually("the transfer", || {
            let report = watching.report().expect("the daemon answers");
            report.clients.iter().any(|row| 0 < row.transfer_bytes)
        });
        daemon.kill();
        let fault = reading.join().expect("no panic").expect_err("there is no daemon");
        assert_eq!(fault.kind, FaultKind::MayStillWrite, "{fault}");
    });
    let fault = client.read(KEY, MIB).expect_err("there is no daemon");
    assert_eq!(fault.kind, FaultKind::Unavailable, "{fault}");
}

#[test]
fn a_daemon_stops_within_its_bounds_though_its_engine_hangs() {
    let place = Place::new();
    let engine = Requiring::new(u64::MAX);
    engine.hangs.store(true, SeqCst);
    let gate = Gate::new();
    let daemon = daemon(
        &place,
        Behind {
            engine: Arc::new(Gated::new(Arc::<Requiring>::clone(&engine), gate.clone())),
            ..behind(&engine)
        },
    );
    let client = Client::connect(&place.socket, MIB);
    gate.shut();
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| client.read(KEY, MIB));
        assert!(gate.wait_for_waiting(1, Duration::from_secs(20)), "it reads");
        let started = Instant::now();
        daemon.stop();
        assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
        assert!(!daemon.has_closed(), "it hangs");
        assert!(reading.join().expect("no panic").is_err());
    });
    gate.open();
    engine.hangs.store(false, SeqCst);
    eventually("the end of the engine", || daemon.has_closed());
}

fn lane(socket: &SocketPath, session: u64) -> RawClient {
    let mut lane = RawClient::silent(socket);
    lane.tell(&Request::Hello {
        version: VERSION,
        lane_of: session,
    });
    lane
}

fn welcomed_lane(socket: &SocketPath, session: u64) -> RawClient {
    let mut lane = lane(socket, session);
    let welcome = lane.answer().expect("a welcome");
    assert!(matches!(welcome.answer, Answer::Welcome { .. }), "{welcome:?}");
    lane
}

/// Length of the extents of clients that break the protocol. What they hold stays theirs until this process ends.
const LIED_BYTES: u64 = 64 << 10;

/// A session with one extent: its number, the connection, and the extent's ticket.
fn raw(socket: &SocketPath) -> (u64, RawClient, u64) {
    let mut client = RawClient::silent(socket);
    let hello = client.ask(&Request::Hello {
        version: VERSION,
        lane_of: 0,
    });
    let Answer::Welcome { session, .. } = hello.answer else {
        panic!("no welcome: {:?}", hello.answer)
    };
    let ticket = extent_of(&mut client);
    (session, client, ticket)
}

fn extent_of(client: &mut RawClient) -> u64 {
    let reply = client.ask(&Request::Extent { len: LIED_BYTES });
    let Answer::Extent {
        reservation: Reservation::Block { ticket, .. },
    } = reply.answer
    else {
        panic!("no extent: {:?}", reply.answer)
    };
    ticket
}

/// The ticket of an extent that is the client's no longer.
fn given_back(client: &mut RawClient) -> u64 {
    let ticket = extent_of(client);
    client.tell(&Request::ReleaseExtent { ticket });
    // An answer says that what came before it is done.
    client.ask(&Request::Counts);
    ticket
}

fn fetch(ticket: u64, offset: u64, len: u64) -> Fetch<'static> {
    Fetch {
        key: KEY,
        object_len: len,
        offset: 0,
        to: Span { ticket, offset, len },
        tag: None,
        by_transport: false,
    }
}

fn store(ticket: u64, offset: u64, len: u64) -> Request<'static> {
    let from = vec![Span { ticket, offset, len }];
    Request::Store {
        writes: vec![Store {
            key: "lie",
            from,
            tag: b"",
        }],
    }
}

fn assert_disconnected(what: &str, mut client: RawClient) {
    let words = client.answer().map(|reply| format!("{:?}", reply.answer));
    assert!(
        words.as_ref().is_some_and(|words| words.contains("Refused")),
        "{what}: {words:.200?}"
    );
    assert!(client.answer().is_none(), "{what} did not end the connection");
}

#[test]
fn whoever_lies_on_a_lane_is_disconnected_and_others_go_on() {
    let place = Place::new();
    let _daemon = daemon(&place, behind(&Requiring::new(u64::MAX)));
    let honest = Client::connect(&place.socket, MIB);
    honest.write(KEY, &[1; 1000]).expect("a write");
    let (_, _other, foreign) = raw(&place.socket);
    let end = LIED_BYTES;
    let one = |read| Request::Fetch { reads: vec![read] };
    type Lie<'l> = &'l dyn Fn(u64, u64) -> Request<'static>;
    // The session's number, and the ticket of its extent.
    let lies: [(&str, Lie<'_>); 12] = [
        ("another's extent", &|_, _| one(fetch(foreign + 100, 0, 10))),
        ("bytes past the end", &|_, ticket| one(fetch(ticket, end - 9, 10))),
        ("an offset past every end", &|_, ticket| {
            one(fetch(ticket, u64::MAX, 10))
        }),
        ("a length past every end", &|_, ticket| one(fetch(ticket, 1, u64::MAX))),
        ("no bytes", &|_, ticket| one(fetch(ticket, 0, 0))),
        ("an object past the end", &|_, ticket| store(ticket, 1, end)),
        ("an object out of another's extent", &|_, _| store(foreign + 100, 0, 10)),
        ("an object without bytes", &|_, ticket| store(ticket, 0, 0)),
        ("more bytes than a call has", &|_, ticket| Request::Fetch {
            reads: vec![fetch(ticket, 0, end); 1024],
        }),
        ("hello again", &|session, _| Request::Hello {
            version: VERSION,
            lane_of: session,
        }),
        ("memory", &|_, _| Request::Extent { len: end }),
        ("a pin", &|_, _| Request::Pin {
            separate: false,
            keys: vec![KEY],
        }),
    ];
    for (what, lie) in lies {
        let (session, mut client, ticket) = raw(&place.socket);
        let mut lane = welcomed_lane(&place.socket, session);
        lane.tell(&lie(session, ticket));
        assert_disconnected(what, lane);
        assert!(client.answer().is_none(), "{what} did not end the session");
    }
    let (session, mut client, ticket) = raw(&place.socket);
    let released = given_back(&mut client);
    let mut lane = welcomed_lane(&place.socket, session);
    let many = vec![fetch(ticket, 0, 1); 1024];
    let served = lane.ask(&Request::Fetch { reads: many });
    assert!(
        matches!(&served.answer, Answer::Results { results } if results.len() == 1024),
        "{served:.200?}"
    );
    lane.tell(&one(fetch(released, 0, 10)));
    assert_disconnected("an extent that was given back", lane);
    assert_eq!(honest.read(KEY, 1000), Ok(vec![1; 1000]));
}

#[test]
fn objects_are_asked_for_on_lanes_of_the_same_process_only() {
    let place = Place::new();
    let _daemon = daemon(&place, behind(&always_late(Duration::from_secs(60))));
    let honest = Client::connect(&place.socket, MIB);
    honest.write(KEY, &[1; MIB]).expect("a write");
    let (session, mut client, ticket) = raw(&place.socket);
    let _elsewhere = place.process("late reader");
    let report = honest.engine.report().expect("the daemon answers");
    let foreign = report
        .clients
        .iter()
        .find(|row| row.pid != std::process::id())
        .expect("the reader");
    for (what, of) in [
        ("a lane of another process", foreign.session),
        ("a lane of nobody", 1 << 40),
    ] {
        assert_disconnected(what, lane(&place.socket, of));
    }
    client.tell(&Request::Fetch {
        reads: vec![fetch(ticket, 0, 10)],
    });
    assert_disconnected("a transfer beside the lanes", client);
    eventually("the end of what is cut off", || {
        let mut again = lane(&place.socket, session);
        let answer = again.answer().map(|reply| format!("{:?}", reply.answer));
        answer.is_some_and(|answer| answer.contains("Refused"))
    });
    for request in [
        Request::Contains { keys: vec![KEY] },
        Request::Pin {
            separate: true,
            keys: vec![KEY],
        },
        Request::Exchange {
            commits: Vec::new(),
            releases: Vec::new(),
            reserve: vec![1],
        },
    ] {
        let (_, mut client, _) = raw(&place.socket);
        client.tell(&request);
        assert_disconnected("an object beside the lanes", client);
    }
    assert_eq!(honest.engine.contains_batch(&[KEY]), [Ok(true)]);
    assert!(honest.engine.views().is_none(), "no object lies in the arena");
}
