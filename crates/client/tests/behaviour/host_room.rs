//! On a host everything lies in one arena: what one client has no use for is room for all.

use crate::{
    deliveries::read_into_the_arena,
    support::{Checking, Claims, MIB, bytes_spec, eventually, free_engine, pattern, stat, tensor_item},
};
use std::{path::Path, sync::Arc, time::Duration};
use tensorlease::{
    Delivery, FallbackKind, Options, Patience, PutItem, ReadError, ReadOutput, ReadRequest, Store, WriteError,
};
use tensorlease_host::{Behind, Daemon, DaemonOptions, SocketPath};

const CAPACITY: u64 = 16 * MIB;

fn options(folder: &Path) -> DaemonOptions {
    DaemonOptions {
        socket: SocketPath::new(folder.join("host.sock")).unwrap(),
        max_bytes: CAPACITY,
        idle_end: None,
    }
}

fn daemon(folder: &Path) -> Daemon {
    Daemon::start(options(folder)).unwrap()
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
    assert_eq!(stat(&store, "register_calls_per_read"), 0);
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
    let error = store.empty(2 * MIB).unwrap_err();
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
