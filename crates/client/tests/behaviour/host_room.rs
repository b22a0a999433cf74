//! On a host everything lies in one arena: what one client has no use for is room for all.

use crate::{
    deliveries::{read_into_the_arena, shared},
    support::{Checking, Claims, Hooked, MIB, bytes_spec, eventually, free_engine, pattern, stat, tensor_item},
};
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use tensorlease::{
    CallError, CallerMemory, Delivery, FallbackKind, ForkPolicy, OpenError, Options, Patience, PutItem, ReadError,
    ReadOutput, ReadRequest, Store, WriteError, engine::RegisterError,
};
use tensorlease_engine::{Embedded, EmbeddedOptions};
use tensorlease_host::{Behind, Daemon, DaemonOptions, SocketPath};

const CAPACITY: u64 = 16 * MIB;

fn daemon(folder: &Path) -> Daemon {
    Daemon::start(options(folder)).unwrap()
}

fn options(folder: &Path) -> DaemonOptions {
    DaemonOptions {
        socket: SocketPath::new(folder.join("host.sock")).unwrap(),
        max_bytes: CAPACITY,
        idle_end: None,
    }
}

fn daemon_before_an_engine(folder: &Path) -> Daemon {
    let engine = EmbeddedOptions {
        capacity_bytes: CAPACITY,
        pinned: false,
    };
    let behind = Behind {
        engine: Arc::new(Embedded::new(&engine).unwrap()),
        quarantine_bytes: CAPACITY,
        close_timeout: Duration::from_secs(5),
    };
    Daemon::start_before(options(folder), behind).unwrap()
}

fn client(daemon: &Daemon) -> Store {
    let url = format!("host://{}", daemon.socket().as_path().display());
    let options = Options {
        max_bytes: CAPACITY,
        ..Options::default()
    };
    Store::open(&url, &options).unwrap()
}

fn put(store: &Store, key: &str, len: u64) -> Result<(), WriteError> {
    let item = PutItem::tensor(key, bytes_spec(len), pattern(7, len));
    store.put(vec![item], Patience::default())
}

fn leased(store: &Store, key: &str, len: u64) -> ReadOutput {
    let request = ReadRequest {
        items: vec![tensor_item(key, len)],
        delivery: Some(Delivery::Leased),
        ..ReadRequest::default()
    };
    store.get(request, Patience::default()).unwrap()
}

#[test]
fn what_a_client_has_dropped_is_no_reason_for_a_full_store() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = daemon(folder.path());
    let store = client(&daemon);
    for round in 0..3 {
        put(&store, "small", 7 * MIB).unwrap();
        drop(leased(&store, "small", 7 * MIB));
        assert_eq!(store.remove(&["small".to_owned()], Patience::default()).unwrap(), 1);
        // The idle part of the client's arena leaves no room for this one.
        put(&store, "large", 12 * MIB).unwrap_or_else(|error| panic!("round {round}: {error:?}"));
        assert_eq!(store.remove(&["large".to_owned()], Patience::default()).unwrap(), 1);
    }
    assert_eq!(stat(&store, "leased_bytes"), 0);
}

#[test]
fn what_an_idle_client_has_dropped_becomes_room_for_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = daemon(folder.path());
    let (idle, busy) = (client(&daemon), client(&daemon));
    put(&idle, "a", 5 * MIB).unwrap();
    let read = leased(&idle, "a", 5 * MIB);
    assert_eq!(idle.remove(&["a".to_owned()], Patience::default()).unwrap(), 1);
    assert!(put(&busy, "b", 13 * MIB).is_err(), "a live lease keeps its memory");
    drop(read);
    eventually("the idle client's memory to come back", || daemon.held_bytes() == 0);
    put(&busy, "b", 13 * MIB).unwrap();
}

#[test]
fn behind_a_host_what_lies_in_the_arena_is_read_into_directly() {
    let folder = tempfile::tempdir().unwrap();
    let behind = Behind {
        engine: Arc::new(Checking::new(free_engine(), Claims::registering())),
        quarantine_bytes: MIB,
        close_timeout: Duration::from_secs(5),
    };
    let daemon = Daemon::start_before(options(folder.path()), behind).unwrap();
    let store = client(&daemon);
    let values: Vec<Vec<u8>> = [1, 70_000, 2 * MIB].iter().map(|len| pattern(*len, *len)).collect();
    let items = values
        .iter()
        .enumerate()
        .map(|(at, value)| PutItem::tensor(format!("k{at}"), bytes_spec(value.len() as u64), value.clone()));
    store.put(items.collect(), Patience::default()).unwrap();
    read_into_the_arena(&store, &values);
    assert_eq!(stat(&store, "hot_path_register_calls"), 0);
}

#[test]
fn a_full_daemon_is_told_from_a_full_arena_by_every_way_that_meets_it() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = daemon(folder.path());
    let store = client(&daemon);
    for at in 0..15 {
        put(&store, &format!("k{at}"), MIB).unwrap();
    }
    let strict = Store::open(
        store.url(),
        &Options {
            strict: true,
            ..store.options().clone()
        },
    )
    .unwrap();
    let request = |count: u64| ReadRequest {
        items: (0..count).map(|at| tensor_item(&format!("k{at}"), MIB)).collect(),
        delivery: Some(Delivery::Leased),
        ..ReadRequest::default()
    };
    let error = strict.get(request(3), Patience::default()).unwrap_err();
    let ReadError::Fallback {
        kind: FallbackKind::HostFull,
        message,
        failures,
    } = error
    else {
        panic!("{error:?}")
    };
    assert!(
        message.contains("larger --max-bytes") && !message.contains("raise max_bytes"),
        "{message}"
    );
    assert_eq!(failures.last().map(|failure| failure.key.as_str()), Some("k2"));
    drop(strict);
    let read = store.get(request(3), Patience::default()).unwrap();
    assert!(0 < stat(&store, "fallback_host_full"));
    assert_eq!(stat(&store, "fallback_budget"), 0);
    drop(read);
    let error = store.empty(2 * MIB, Patience::default()).unwrap_err();
    assert!(
        matches!(&error, ReadError::ArenaExhausted { message, .. } if message.contains("larger --max-bytes")),
        "{error:?}"
    );
    let error = put(&store, "larger", CAPACITY + 1).unwrap_err();
    assert!(
        matches!(&error, WriteError::StoreFull { message, .. } if message.contains("larger --max-bytes")),
        "{error:?}"
    );
}

#[test]
fn a_read_into_the_callers_memory_needs_no_room_on_the_host() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = daemon(folder.path());
    let filler = client(&daemon);
    let values = [5, 70_000, 6 * MIB + 3];
    for (at, len) in values.iter().enumerate() {
        put(&filler, &format!("k{at}"), *len).unwrap();
    }
    for len in [MIB, 64 << 10, 4 << 10] {
        for at in 0.. {
            match put(&filler, &format!("{len}-{at}"), len) {
                Ok(()) => {}
                Err(WriteError::StoreFull { .. }) => break,
                Err(error) => panic!("{error:?}"),
            }
        }
    }
    let store = client(&daemon);
    read_into(&store, &values);
    assert_eq!(stat(&store, "arena_bytes"), 0);
    assert!(0 < stat(&store, "fallback_host_full"));
    assert_eq!(stat(&store, "retries"), 0);
}

/// Reads `k0`, `k1` and so on into memory of the caller's and compares.
fn read_into(store: &Store, lens: &[u64]) {
    let zeros = |len: &u64| CallerMemory::from_vec(vec![0; usize::try_from(*len).unwrap()]);
    let (into, seen): (Vec<CallerMemory>, Vec<_>) = lens.iter().map(zeros).map(shared).unzip();
    let items = lens.iter().enumerate();
    let request = ReadRequest {
        items: items.map(|(at, len)| tensor_item(&format!("k{at}"), *len)).collect(),
        into,
        ..ReadRequest::default()
    };
    store.get(request, Patience::default()).unwrap();
    for (len, memory) in lens.iter().zip(&seen) {
        assert!(
            memory.source(0..memory.len()).to_vec() == pattern(7, *len),
            "{len} bytes"
        );
    }
}

#[test]
fn before_an_engine_a_full_daemon_is_named_by_all_that_is_staged() {
    let folder = tempfile::tempdir().unwrap();
    let behind = Behind {
        engine: Arc::new(Checking::new(free_engine(), Claims::registering())),
        quarantine_bytes: CAPACITY,
        close_timeout: Duration::from_secs(5),
    };
    let daemon = Daemon::start_before(options(folder.path()), behind).unwrap();
    let holder = client(&daemon);
    put(&holder, "k0", 5000).unwrap();
    let mut held = Vec::new();
    while let Ok(buffer) = holder.empty(512 << 10, Patience::default()) {
        held.push(buffer);
    }
    let store = client(&daemon);
    let request = |into| ReadRequest {
        items: vec![tensor_item("k0", 5000)],
        delivery: Some(Delivery::Copied),
        into,
        ..ReadRequest::default()
    };
    for into in [Vec::new(), vec![CallerMemory::from_vec(vec![0; 5000])]] {
        let error = store.get(request(into), Patience::default()).unwrap_err();
        assert!(error.to_string().contains("larger --max-bytes"), "{error}");
        assert!(!error.to_string().contains("raise max_bytes"), "{error}");
    }
    let error = put(&store, "k1", 5000).unwrap_err();
    assert!(error.to_string().contains("larger --max-bytes"), "{error}");
    assert_eq!(stat(&store, "fallback_bounce_busy"), 0);
    assert!(0 < stat(&store, "fallback_host_full"));
    drop(held);
    let room = || store.get(request(Vec::new()), Patience::default()).is_ok();
    eventually("room that came back", room);
}

/// A daemon whose memory files have 16 MiB each, and are registered with an engine as a test says.
fn relay(folder: &Path, hook: impl Fn(u64) -> Option<RegisterError> + Send + Sync + 'static) -> Daemon {
    let calls = AtomicU64::new(0);
    let engine = Hooked::new(free_engine()).on_register(move |_| hook(calls.fetch_add(1, Relaxed) + 1));
    let claims = Claims {
        registration_bytes_max: Some(16 * MIB),
        ..Claims::registering()
    };
    let options = DaemonOptions {
        socket: SocketPath::new(folder.join("host.sock")).unwrap(),
        max_bytes: 64 * MIB,
        idle_end: None,
    };
    let behind = Behind {
        engine: Arc::new(Checking::new(Arc::new(engine), claims)),
        quarantine_bytes: CAPACITY,
        close_timeout: Duration::from_secs(1),
    };
    Daemon::start_before(options, behind).unwrap()
}

fn relayed(daemon: &Daemon, strict: bool) -> Store {
    let url = format!("host://{}", daemon.socket().as_path().display());
    let options = Options {
        max_bytes: 48 * MIB,
        bounce_bytes: Some(4 * MIB),
        strict,
        ..Options::default()
    };
    Store::open(&url, &options).unwrap()
}

fn read(store: &Store, key: &str, delivery: Delivery, patience: Patience<'_>) -> Result<ReadOutput, ReadError> {
    let request = ReadRequest {
        items: vec![tensor_item(key, 10 * MIB)],
        delivery: Some(delivery),
        ..ReadRequest::default()
    };
    store.get(request, patience)
}

#[test]
fn a_memory_file_that_takes_long_to_register_is_waited_for_and_holds_up_nobody_else() {
    const TAKES: Duration = Duration::from_secs(2);
    let folder = tempfile::tempdir().unwrap();
    let daemon = relay(folder.path(), |call| {
        if call == 2 {
            std::thread::sleep(TAKES);
        }
        None
    });
    let (store, other) = (relayed(&daemon, true), relayed(&daemon, true));
    put(&other, "value", 3 * MIB).unwrap();
    // Held, since an idle session gives its memory back, and it would be room for the other one.
    let _held = leased(&other, "value", 3 * MIB);
    let started = Instant::now();
    let ended = store.empty(10 * MIB, Patience::within(TAKES / 10));
    assert!(
        matches!(ended, Err(ReadError::Call(CallError::Timeout { .. }))),
        "{ended:?}"
    );
    // Another session has what it needs already.
    drop(leased(&other, "value", 3 * MIB));
    assert!(started.elapsed() < TAKES, "{:?}", started.elapsed());
    let waited = store.empty(10 * MIB, Patience::default()).unwrap();
    assert_eq!(waited.len() as u64, 10 * MIB);
    assert!(TAKES <= started.elapsed(), "there was no other memory file to wait for");
    assert_eq!(stat(&store, "slabs_made"), 1);
}

#[test]
fn a_memory_file_that_the_engine_refuses_is_not_tried_at_each_read_and_the_client_learns_why() {
    let folder = tempfile::tempdir().unwrap();
    let tries = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&tries);
    let daemon = relay(folder.path(), move |call| {
        count.store(call, Relaxed);
        (1 < call).then(|| RegisterError::Failed {
            len: 16 << 20,
            source: "RLIMIT_MEMLOCK is used up".into(),
        })
    });
    let store = relayed(&daemon, true);
    let _held = store.empty(12 * MIB, Patience::default()).unwrap();
    let started = Instant::now();
    let mut asked = 0;
    while asked < 20 && started.elapsed() < Duration::from_secs(1) {
        let error = store.empty(12 * MIB, Patience::default()).unwrap_err();
        assert!(error.to_string().contains("RLIMIT_MEMLOCK is used up"), "{error}");
        asked += 1;
    }
    assert!(tries.load(Relaxed) <= 3, "{} of {asked} tries", tries.load(Relaxed));
}

#[test]
fn a_daemon_that_died_is_unavailable_also_to_a_client_that_holds_a_lease_and_has_trimmed() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = relay(folder.path(), |_| None);
    let store = relayed(&daemon, false);
    put(&store, "value", 3 * MIB).unwrap();
    let _held = leased(&store, "value", 3 * MIB);
    let _freed = store.trim();
    daemon.stop();
    drop(daemon);
    for _ in 0..2 {
        for delivery in [Delivery::Leased, Delivery::Copied] {
            let ended = read(&store, "value", delivery, Patience::default());
            assert!(
                matches!(ended, Err(ReadError::Call(CallError::Unavailable { .. }))),
                "{delivery:?}: {ended:?}"
            );
        }
        let ended = put(&store, "other", MIB);
        assert!(
            matches!(ended, Err(WriteError::Call(CallError::Unavailable { .. }))),
            "{ended:?}"
        );
        let ended = store.empty(MIB * 20, Patience::default());
        assert!(
            matches!(ended, Err(ReadError::Call(CallError::Unavailable { .. }))),
            "{ended:?}"
        );
    }
}

/// Its pages are other processes' too, which would go on to change them under the child.
#[test]
fn memory_of_a_host_is_never_inherited_by_a_forked_child() {
    for start in [daemon, daemon_before_an_engine] {
        let folder = tempfile::tempdir().unwrap();
        let daemon = start(folder.path());
        let url = format!("host://{}", daemon.socket().as_path().display());
        let open = |fork| {
            let options = Options {
                max_bytes: CAPACITY,
                fork,
                ..Options::default()
            };
            Store::open(&url, &options)
        };
        let refused = open(Some(ForkPolicy::Inherit)).unwrap_err();
        assert!(
            matches!(&refused, OpenError::Config { message } if message.contains("spawn")),
            "{refused:?}"
        );
        for fork in [None, Some(ForkPolicy::Exclude)] {
            open(fork).unwrap();
        }
    }
}
