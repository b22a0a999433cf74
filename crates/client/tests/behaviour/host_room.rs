//! On a host everything lies in one arena: what one client has no use for is room for all.

use crate::support::{MIB, bytes_spec, eventually, pattern, stat, tensor_item};
use std::{path::Path, sync::Arc, time::Duration};
use tensorlease::{
    Delivery, ForkPolicy, OpenError, Options, Patience, PutItem, ReadOutput, ReadRequest, Store, WriteError,
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
