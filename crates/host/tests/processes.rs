//! Processes come and go. What a dead client held comes back, and a dead daemon is an error at once.
mod lies;
mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{CAPACITY_BYTES, Place, Process, RawClient, eventually, ready_until_killed, role};
use tensorlease_engine::{Engine, FaultKind, ReadOp, Tag, WriteOp};
use tensorlease_host::wire::Request;
use tensorlease_host::{ConnectError, Daemon, DaemonOptions, HostEngine, StartError};
use tensorlease_memory::{NoSlab, SlabSource};

/// Not a test: what this program does when a test starts it again.
#[test]
fn plays_a_role() {
    let Some((role, socket)) = role() else { return };
    match role.as_str() {
        "daemon" => {
            let options = DaemonOptions {
                socket,
                max_bytes: CAPACITY_BYTES,
                idle_end: None,
            };
            let _daemon = Daemon::start(options).expect("a daemon starts");
            ready_until_killed();
        }
        "holder" => {
            // One of everything that a client can hold.
            let engine = HostEngine::connect(&socket).expect("a client connects");
            let _extent = engine
                .slabs()
                .expect("a host lends slabs")
                .make(1 << 20)
                .expect("an extent");
            let mut raw = RawClient::welcomed(&socket);
            raw.ask(&Request::Exchange {
                commits: Vec::new(),
                releases: Vec::new(),
                reserve: vec![100, 1 << 20],
            });
            raw.ask(&Request::Pin {
                separate: true,
                keys: vec!["shared"],
            });
            ready_until_killed();
        }
        "stranger" => {
            let refused = HostEngine::connect(&socket).expect_err("it runs in another namespace");
            assert!(matches!(refused, ConnectError::OtherNamespace { .. }), "{refused:?}");
            assert_tells_of_namespaces(&refused.to_string());
            println!("ready");
            std::process::exit(0);
        }
        "liar" => {
            lies::tell(&socket);
            println!("ready");
            // Nothing reads what the test harness would print.
            std::process::exit(0);
        }
        other => panic!("no such role: {other}"),
    }
}

fn assert_tells_of_namespaces(message: &str) {
    assert!(
        message.contains("PID namespace") && message.contains("--pid=host"),
        "{message}"
    );
}

fn put(engine: &HostEngine, key: &str, bytes: &[u8]) {
    let write = WriteOp {
        key,
        segments: &[bytes.into()],
        tag: &Tag::new(b"any"),
    };
    assert_eq!(engine.write_batch(&[write]), [Ok(())], "{key}");
}

fn get(engine: &HostEngine, key: &str, len: usize) -> Result<Vec<u8>, FaultKind> {
    let mut bytes = vec![0; len];
    let read = ReadOp {
        key,
        offset: 0,
        target: (&mut bytes[..]).into(),
        object_len: len as u64,
        tag: None,
        by_transport: false,
    };
    let result = engine.read_batch(&[read]).remove(0);
    result.map(|_| bytes).map_err(|fault| fault.kind)
}

#[test]
fn whatever_a_killed_client_held_comes_back() {
    let place = Place::new();
    let daemon = place.daemon();
    let engine = place.client();
    put(&engine, "shared", &[1; 5000]);
    let before = daemon.held_bytes();
    let mut holder = place.process("holder");
    assert!(before + (2 << 20) <= daemon.held_bytes(), "an extent and a reservation");
    // The object is gone from the index, but pinned by the holder.
    assert_eq!(engine.remove_batch(&["shared"]), [Ok(true)]);
    let report = engine.report().expect("the daemon answers");
    assert_eq!(report.clients.iter().map(|row| row.pinned_objects).sum::<u64>(), 1);
    holder.kill();
    eventually("the end of its sessions", || daemon.sessions() == 1);
    let report = engine.report().expect("the daemon answers");
    let own: u64 = report
        .clients
        .iter()
        .map(|row| row.reserved_bytes + row.extent_bytes)
        .sum();
    // The last of its sessions may be gone a moment before the last of its memory is back.
    eventually("nothing but what this client has reserved ahead", || {
        daemon.held_bytes() == own
    });
}

#[test]
fn a_killed_daemon_is_an_error_at_once_and_memory_stays_readable() {
    let place = Place::new();
    let mut daemon = place.process("daemon");
    let engine = place.client();
    put(&engine, "key", &[3; 5000]);
    let slab = engine.slabs().expect("a host lends slabs").make(1 << 20);
    let slab = slab.expect("there is room");
    let read = ReadOp {
        key: "key",
        offset: 0,
        target: slab.target(0..5000),
        object_len: 5000,
        tag: None,
        by_transport: false,
    };
    assert_eq!(engine.read_batch(&[read]), [Ok(5000)]);
    daemon.kill();
    for _ in 0..3 {
        assert_eq!(get(&engine, "key", 5000), Err(FaultKind::Unavailable));
    }
    let fault = engine
        .contains_batch(&["key"])
        .remove(0)
        .expect_err("no daemon answers");
    assert_eq!(fault.kind, FaultKind::Unavailable);
    assert_eq!(slab.source(0..5000).to_vec(), [3; 5000]);
    engine.close().expect("an engine without a daemon closes");
    drop(slab);
    // The dead daemon's socket and lock are in nobody's way.
    assert!(matches!(
        HostEngine::connect(&place.socket),
        Err(ConnectError::NoDaemon { .. })
    ));
    let again = place.daemon();
    let engine = place.client();
    assert_eq!(
        get(&engine, "key", 5000),
        Err(FaultKind::NotFound),
        "a new daemon is empty"
    );
    drop(again);
}

#[test]
fn a_host_has_one_daemon_and_a_place_for_the_next() {
    let place = Place::new();
    let daemon = place.daemon();
    let second = Daemon::start(place.options());
    assert!(matches!(second, Err(StartError::Running { .. })), "{second:?}");
    daemon.stop();
    assert!(daemon.wait(Duration::ZERO), "it has ended");
    assert!(!place.socket.as_path().exists(), "its socket went with it");
    drop(place.daemon());
}

#[test]
fn a_daemon_that_stops_ends_its_clients_calls() {
    let place = Place::new();
    let daemon = place.daemon();
    let engine = place.client();
    put(&engine, "key", &[1; 10]);
    daemon.stop();
    assert_eq!(get(&engine, "key", 10), Err(FaultKind::Unavailable));
}

#[test]
fn an_idle_daemon_ends_only_without_client_and_object() {
    let place = Place::new();
    let options = DaemonOptions {
        idle_end: Some(Duration::from_millis(300)),
        ..place.options()
    };
    let daemon = Daemon::start(options).expect("a daemon starts");
    let engine = place.client();
    assert!(!daemon.wait(Duration::from_millis(1500)), "it has a client");
    put(&engine, "key", &[1; 10]);
    engine.close().expect("the engine closes");
    eventually("the end of the session", || daemon.sessions() == 0);
    drop(engine);
    assert!(!daemon.wait(Duration::from_millis(1500)), "it has an object");
    let engine = place.client();
    assert_eq!(engine.remove_batch(&["key"]), [Ok(true)]);
    drop(engine);
    assert!(daemon.wait(Duration::from_secs(20)), "nobody needs it");
}

#[test]
fn a_report_sums_the_objects_of_each_namespace() {
    let place = Place::new();
    let _daemon = place.daemon();
    let engine = place.client();
    for (key, len) in [("small/a", 10), ("large/a", 3000), ("large/b/c", 4000), ("bare", 500)] {
        put(&engine, key, &vec![1; len]);
    }
    let report = engine.report().expect("the daemon answers");
    let rows: Vec<_> = report
        .namespaces
        .iter()
        .map(|row| (row.namespace.as_str(), row.counts.objects, row.counts.object_bytes))
        .collect();
    assert_eq!(rows, [("large/", 2, 7000), ("", 1, 500), ("small/", 1, 10)]);
    assert_eq!(report.counts.object_bytes, 7510);
}

#[test]
fn extents_outlive_the_engine_and_then_go_back() {
    let place = Place::new();
    let daemon = place.daemon();
    let engine = place.client();
    let slabs: Arc<dyn SlabSource> = engine.slabs().expect("a host lends slabs");
    let slab = slabs.make(1 << 20).expect("there is room");
    drop(slabs);
    engine.close().expect("the engine closes");
    drop(engine);
    assert_eq!(daemon.held_bytes(), 1 << 20, "its memory is still somebody's");
    assert_eq!(daemon.sessions(), 1);
    drop(slab);
    eventually("the end of the session", || daemon.sessions() == 0);
    assert_eq!(daemon.held_bytes(), 0);
}

#[test]
fn a_close_that_meets_others_in_conversation_ends_the_session() {
    let place = Place::new();
    let daemon = place.daemon();
    for round in 0..100 {
        let engine = place.client();
        put(&engine, "key", &[1; 100]);
        let slabs = engine.slabs().expect("a host lends slabs");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let started = Instant::now();
                while started.elapsed() < Duration::from_secs(5) && slabs.make(1 << 20).is_ok() {}
            });
            std::thread::sleep(Duration::from_micros(10 * round));
            engine.close().expect("the engine closes");
        });
        // The engine itself lives on, and nothing that it was lent.
        eventually("the end of the session", || daemon.sessions() == 0);
    }
}

#[test]
fn what_a_stopped_daemon_does_not_take_goes_back_when_it_runs_again() {
    use rustix::process::{Pid, Signal, kill_process};
    let place = Place::new();
    let daemon = place.process("daemon");
    let pid = Pid::from_child(&daemon.child);
    let watching = place.client();
    let engine = place.client();
    let slabs = engine.slabs().expect("a host lends slabs");
    let page = tensorlease_memory::limits::page_bytes();
    let mut lent: Vec<_> = (0..1000).map(|_| slabs.make(page).expect("there is room")).collect();
    // It keeps the connection: what a connection that has ended still held would come back another way.
    let kept = lent.pop();
    drop(slabs);
    engine.close().expect("the engine closes");
    drop(engine);
    stop(&daemon.child);
    // These are more messages than a socket holds, and no call follows.
    drop(lent);
    kill_process(pid, Signal::CONT).expect("a child can be continued");
    eventually("what was dropped to come back", || {
        watching.report().expect("the daemon answers").held_bytes < 2 * page as u64
    });
    drop(kept);
    eventually("the end of the extents", || {
        let report = watching.report().expect("the daemon answers");
        report.clients.len() == 1 && report.held_bytes == 0
    });
}

/// Each of its threads stands still when this returns: the kernel stops them one after the other.
fn stop(child: &std::process::Child) {
    use rustix::process::{Pid, Signal, kill_process};
    kill_process(Pid::from_child(child), Signal::STOP).expect("a child can be stopped");
    let tasks = std::path::PathBuf::from(format!("/proc/{}/task", child.id()));
    eventually("each thread to stand still", || {
        std::fs::read_dir(&tasks)
            .expect("it lives")
            .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("stat")).ok())
            .all(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')))
    });
}

#[test]
fn a_drop_of_what_was_lent_waits_neither_for_a_stopped_daemon_nor_for_who_does() {
    use rustix::process::{Pid, Signal, kill_process};
    let place = Place::new();
    let daemon = place.process("daemon");
    let pid = Pid::from_child(&daemon.child);
    let (watching, engine) = (place.client(), place.client());
    put(&engine, "a", &[1; 2 << 20]);
    let slab = engine.slabs().expect("a host lends slabs").make(1 << 20);
    let slab = slab.expect("there is room");
    let mut views = engine
        .views()
        .expect("a host shows its objects")
        .view_batch(&["a", "a"]);
    stop(&daemon.child);
    std::thread::scope(|scope| {
        // It has the connection until the daemon goes on, and looks after what goes back meanwhile.
        let asking = scope.spawn(|| engine.contains_batch(&["a"]));
        std::thread::sleep(Duration::from_millis(100));
        let (dropped, ended) = std::sync::mpsc::channel();
        let drop_all = move || {
            views.clear();
            drop(slab);
            dropped.send(()).expect("the test waits");
        };
        scope.spawn(drop_all);
        let waited = ended.recv_timeout(Duration::from_secs(10));
        assert!(!asking.is_finished(), "the daemon stands still");
        kill_process(pid, Signal::CONT).expect("a child can be continued");
        assert_eq!(waited, Ok(()), "a drop waits for nobody");
        assert_eq!(asking.join().expect("no panic"), [Ok(true)]);
    });
    eventually("what was lent goes back", || {
        let report = watching.report().expect("the daemon answers");
        report
            .clients
            .iter()
            .all(|row| row.pinned_objects == 0 && row.extent_bytes == 0)
    });
}

fn pinned_objects(engine: &HostEngine) -> u64 {
    let report = engine.report().expect("the daemon answers");
    report.clients.iter().map(|row| row.pinned_objects).sum()
}

#[test]
fn viewed_objects_stay_as_they_are_until_their_views_are_gone() {
    let place = Place::new();
    let daemon = place.daemon();
    let engine = place.client();
    let watching = place.client();
    put(&engine, "a", &[1; 70_000]);
    put(&engine, "b", &[2; 100]);
    let views = engine.views().expect("a host shows its objects");
    let mut viewed = views.view_batch(&["a", "missing", "b", "a"]);
    let missing = viewed.remove(1).expect_err("no such object");
    assert_eq!(missing.kind, FaultKind::NotFound);
    let viewed: Vec<_> = viewed
        .into_iter()
        .map(|viewed| viewed.expect("an object").view)
        .collect();
    assert_eq!(viewed[0].region(), viewed[2].region(), "both lie where the object lies");
    put(&engine, "a", &[9; 70_000]);
    assert_eq!(engine.remove_batch(&["a", "b"]), [Ok(true), Ok(true)]);
    engine.close().expect("the engine closes");
    drop(engine);
    assert_eq!(viewed[0].to_vec(), vec![1; 70_000]);
    assert_eq!(viewed[1].to_vec(), vec![2; 100]);
    assert_eq!(pinned_objects(&watching), 3, "views outlive their engine");
    drop(viewed);
    eventually("the end of the pins", || {
        pinned_objects(&watching) == 0 && daemon.sessions() == 1
    });
    assert_eq!(daemon.held_bytes(), 0);
}

#[test]
fn many_views_go_back_in_few_messages_and_none_is_forgotten() {
    let place = Place::new();
    let _daemon = place.daemon();
    let engine = place.client();
    let keys: Vec<String> = (0..3000).map(|number| format!("key/{number}")).collect();
    keys.iter().for_each(|key| put(&engine, key, &[1; 100]));
    let borrowed: Vec<&str> = keys.iter().map(String::as_str).collect();
    let views = engine.views().expect("a host shows its objects");
    let all: Vec<_> = borrowed.chunks(1000).flat_map(|keys| views.view_batch(keys)).collect();
    assert_eq!(pinned_objects(&engine), 3000);
    let threads = 4;
    let barrier = std::sync::Barrier::new(threads);
    let mut parts: Vec<Vec<_>> = (0..threads).map(|_| Vec::new()).collect();
    all.into_iter()
        .enumerate()
        .for_each(|(at, view)| parts[at % threads].push(view));
    std::thread::scope(|scope| {
        for part in parts {
            let (barrier, engine) = (&barrier, &engine);
            scope.spawn(move || {
                barrier.wait();
                for view in part {
                    drop(view);
                    // Others use the conversation meanwhile.
                    engine.contains_batch(&["key/1"]);
                }
            });
        }
    });
    eventually("the end of the pins", || pinned_objects(&engine) == 0);
}

#[test]
fn what_a_living_process_holds_stays_its_own_when_its_socket_ends() {
    let place = Place::new();
    let daemon = place.daemon();
    let mut raw = RawClient::welcomed(&place.socket);
    raw.ask(&Request::Extent { len: 1 << 20 });
    raw.hang_up();
    let watching = place.client();
    let cut_off = || {
        let report = watching.report().expect("the daemon answers");
        report.clients.iter().any(|row| row.quarantined)
    };
    eventually("the end of the connection", cut_off);
    drop(raw);
    // This very process may still write there.
    assert_eq!(daemon.held_bytes(), 1 << 20);
    assert_eq!(daemon.sessions(), 2);
}

#[test]
fn an_arena_without_room_lends_shorter_slabs_or_none() {
    let place = Place::new();
    let daemon = place.daemon();
    let engine = place.client();
    let slabs = engine.slabs().expect("a host lends slabs");
    let capacity = usize::try_from(CAPACITY_BYTES).expect("32 MiB");
    let none = slabs.make(2 * capacity).expect_err("twice as much as there is");
    assert!(
        matches!(none, NoSlab::Full { free } if free == CAPACITY_BYTES),
        "{none:?}"
    );
    let all = slabs.make(capacity).expect("all there is");
    let write = WriteOp {
        key: "key",
        segments: &[[1_u8; 100][..].into()],
        tag: &Tag::new(b"any"),
    };
    let fault = engine.write_batch(&[write]).remove(0).expect_err("the arena is full");
    assert_eq!(fault.kind, FaultKind::Full);
    assert!(fault.message.contains("100 bytes asked, 0 free"), "{fault}");
    drop(all);
    put(&engine, "key", &[1; 100]);
    drop(daemon);
}

#[test]
fn a_client_and_a_daemon_in_two_pid_namespaces_say_so_and_what_to_do() {
    let (inside, outside) = (Place::new(), Place::new());
    let daemon = outside.daemon();
    let both = outside
        .process_in_a_namespace("stranger")
        .zip(inside.process_in_a_namespace("daemon"));
    let Some((mut stranger, _daemon_inside)) = both else {
        assert!(std::env::var_os("CI").is_none(), "no PID namespace can be made here");
        return;
    };
    let status = stranger.child.wait().expect("it ends");
    assert!(status.success(), "it was not refused as it should be");
    // The daemon has not met it: it goes before its hello.
    eventually("the end of its connection", || daemon.sessions() == 0);
    let refused = HostEngine::connect(&inside.socket).expect_err("the daemon can't watch this process");
    assert!(matches!(refused, ConnectError::Refused { .. }), "{refused:?}");
    assert_tells_of_namespaces(&refused.to_string());
}

/// Sets how many descriptors a process may have open.
fn limit_descriptors(process: &Process, most: Option<u64>) -> Option<u64> {
    use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit { current: most, maximum };
    let before = prlimit(Some(Pid::from_child(&process.child)), Resource::Nofile, limit);
    before.expect("a child's limit can be changed").current
}

#[test]
fn dead_clients_are_noticed_though_the_system_refused_to_wait_for_them_for_a_while() {
    let place = Place::new();
    let daemon = place.process("daemon");
    let watching = place.client();
    let leaving = place.client();
    let mut holder = place.process("holder");
    // Fewer than are watched: the kernel refuses to wait for so many.
    let before = limit_descriptors(&daemon, Some(1));
    // A client that goes makes the daemon look at the others again.
    drop(leaving);
    eventually("the end of a session", || {
        watching.report().expect("the daemon answers").clients.len() == 3
    });
    holder.kill();
    std::thread::sleep(Duration::from_millis(300));
    limit_descriptors(&daemon, before);
    eventually("the end of the dead one's sessions", || {
        let report = watching.report().expect("the daemon answers");
        report.clients.len() == 1 && report.held_bytes == 0
    });
}

#[test]
fn a_daemon_ends_though_clients_come_faster_than_it_takes_them_in() {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    let place = Place::new();
    let daemon = place.daemon();
    let (come, started) = (AtomicBool::new(true), Instant::now());
    let still = || come.load(Relaxed) && started.elapsed() < Duration::from_secs(30);
    let (ended, others) = std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while still() {
                    let _refused_at_last = std::os::unix::net::UnixStream::connect(place.socket.as_path());
                }
            });
        }
        std::thread::sleep(Duration::from_millis(200));
        let stopping = Instant::now();
        daemon.stop();
        let ended = (stopping.elapsed(), still());
        come.store(false, Relaxed);
        ended
    });
    assert!(others && ended < Duration::from_secs(10), "{ended:?}");
}

#[test]
fn a_hundred_clients_come_at_once() {
    let place = Place::new();
    let _daemon = place.daemon();
    let barrier = std::sync::Barrier::new(100);
    std::thread::scope(|scope| {
        for number in 0..100_u8 {
            let (barrier, place) = (&barrier, &place);
            scope.spawn(move || {
                barrier.wait();
                let engine = place.client();
                let key = format!("key/{number}");
                put(&engine, &key, &[number; 100]);
                assert_eq!(get(&engine, &key, 100), Ok(vec![number; 100]));
            });
        }
    });
}

#[test]
fn a_client_that_lies_is_disconnected_and_harms_nobody() {
    let place = Place::new();
    let daemon = place.daemon();
    let engine = place.client();
    put(&engine, "shared", &[9; 5000]);
    let before = daemon.held_bytes();
    let mut liar = place.process("liar");
    let status = liar.child.wait().expect("the liar ends");
    assert!(status.success(), "a lie was believed");
    eventually("the end of the liar's sessions", || daemon.sessions() == 1);
    assert_eq!(get(&engine, "shared", 5000), Ok(vec![9; 5000]));
    assert_eq!(
        engine.remove_batch(&["lie"]),
        [Ok(true)],
        "the one honest commit, before its replay"
    );
    assert_eq!(daemon.held_bytes(), before, "nothing is left of a liar");
}
