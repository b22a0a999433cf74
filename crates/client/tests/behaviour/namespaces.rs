//! Keys and the namespaces they live in.

use crate::support::{MIB, Rig, budget, free_engine, pattern, tensor_item};
use std::sync::Arc;
use tensorlease::{
    CallError, Delivery, OpenError, Options, Patience, PutItem, QueryError, ReadError, RemoveError, Store,
    engine::{Engine, Fault, FaultKind},
};

fn named(namespace: &str) -> Options {
    Options {
        namespace: namespace.to_owned(),
        ..budget(16 * MIB)
    }
}

#[test]
fn a_namespace_sees_and_clears_only_its_own_keys() {
    let engine = free_engine();
    let stores = ["", "a/", "a/b/", "b/"].map(|name| Store::with_engine(Arc::clone(&engine), &named(name)).unwrap());
    for (seed, store) in stores.iter().enumerate().skip(1) {
        store
            .put(
                vec![PutItem::packed("key", vec![u8::try_from(seed).unwrap()])],
                Patience::default(),
            )
            .unwrap();
    }
    let key = ["key".to_owned()];
    let there = |store: &Store| store.contains(&key, Patience::default()).unwrap()[0];
    assert_eq!(stores.each_ref().map(there), [false, true, true, true]);
    assert_eq!(stores[2].clear(Patience::default()).unwrap(), 1);
    assert_eq!(stores.each_ref().map(there), [false, true, false, true]);
    assert_eq!(stores[3].remove(&key, Patience::default()).unwrap(), 1);
    assert_eq!(stores.each_ref().map(there), [false, true, false, false]);
    assert!(
        stores[0].contains(&["a/key".into()], Patience::default()).unwrap()[0],
        "it is a prefix"
    );
    assert_eq!(
        stores[0].clear(Patience::default()).unwrap(),
        1,
        "no namespace at all is everything"
    );
}

#[test]
fn a_namespace_is_not_the_beginning_of_another_one() {
    let engine = free_engine();
    let stores = ["run1", "run10"].map(|name| Store::with_engine(Arc::clone(&engine), &named(name)).unwrap());
    for store in &stores {
        store
            .put(vec![PutItem::packed("key", vec![1])], Patience::default())
            .unwrap();
    }
    assert_eq!(stores[0].clear(Patience::default()).unwrap(), 1);
    assert!(stores[1].contains(&["key".to_owned()], Patience::default()).unwrap()[0]);
}

#[test]
fn errors_name_keys_without_the_namespace() {
    let rig = Rig::registering(free_engine(), &named("job-7/"));
    let error = rig
        .read_items(vec![tensor_item("x", 5)], Delivery::Leased, Patience::default())
        .unwrap_err();
    let ReadError::KeyNotFound { message, failures } = error else {
        panic!("{error:?}")
    };
    assert_eq!(failures[0].key, "x");
    assert!(!message.contains("job-7"), "{message}");
}

#[test]
fn odd_keys_are_keys() {
    let rig = Rig::registering(free_engine(), &named("n/"));
    let keys = [
        "k".repeat(10_000),
        "ключ".repeat(2500),
        "\u{1f600}".repeat(10_000),
        "nul\0inside".to_owned(),
        "\0".to_owned(),
        " ".to_owned(),
        "a/b?c=d&e#f%00\n".to_owned(),
        "e\u{301}".to_owned(),
        "\u{e9}".to_owned(),
    ];
    let items = (0..).zip(&keys).map(|(seed, key)| {
        let bytes = pattern(seed, 33);
        PutItem::tensor(key, crate::support::bytes_spec(33), bytes)
    });
    rig.store.put(items.collect(), Patience::default()).unwrap();
    let items = keys.iter().map(|key| tensor_item(key, 33)).collect();
    let read = rig.read_items(items, Delivery::Leased, Patience::default()).unwrap();
    for (seed, read) in (0..).zip(&read) {
        assert_eq!(read[..], pattern(seed, 33));
    }
    assert!(
        rig.store
            .contains(&keys, Patience::default())
            .unwrap()
            .iter()
            .all(|there| *there)
    );
    assert_eq!(rig.store.remove(&keys, Patience::default()).unwrap(), keys.len() as u64);
}

#[test]
fn an_empty_or_endless_key_is_refused_by_every_call() {
    let rig = Rig::registering(free_engine(), &named("n/"));
    for key in [String::new(), "k".repeat(40_001)] {
        let keys = ["good".to_owned(), key.clone()];
        let read = rig.read_items(vec![tensor_item(&key, 5)], Delivery::Leased, Patience::default());
        assert!(matches!(read, Err(ReadError::Call(CallError::Invalid { .. }))));
        let contains = rig.store.contains(&keys, Patience::default());
        assert!(matches!(contains, Err(QueryError::Call(CallError::Invalid { .. }))));
        let wait = rig.store.wait(&keys, Patience::default());
        assert!(matches!(wait, Err(QueryError::Call(CallError::Invalid { .. }))));
        let describe = rig.store.describe(&keys, Patience::default());
        assert!(matches!(describe, Err(QueryError::Call(CallError::Invalid { .. }))));
        let remove = rig.store.remove(&keys, Patience::default());
        assert!(matches!(&remove, Err(RemoveError::Call(CallError::Invalid { message })) if message.len() < 400));
    }
}

#[test]
fn an_endless_namespace_is_refused_at_open() {
    let error = Store::with_engine(free_engine(), &named(&"n".repeat(1025))).unwrap_err();
    assert!(
        matches!(&error, OpenError::Config { message } if message.contains("namespace")),
        "{error:?}"
    );
    assert!(Store::with_engine(free_engine(), &named(&"n".repeat(1024))).is_ok());
}

#[test]
fn a_url_that_no_engine_understands_says_what_is_known() {
    let cases = [
        ("embedded://?capacity=16MiB&colour=red", "colour"),
        ("embedded://?capacity=lots", "capacity"),
        ("embedded://?capacity=1", "capacity"),
        ("embedded://?registration=maybe", "pinned"),
        ("embedded://host", "host"),
        ("embedded://?faults=explode", "explode"),
        ("redis://localhost", "embedded://"),
        ("", "embedded://"),
    ];
    for (url, part) in cases {
        let error = Store::open(url, &budget(16 * MIB)).unwrap_err();
        assert!(matches!(error, OpenError::Config { .. }), "{url}: {error:?}");
        assert!(error.to_string().contains(part), "{part} in {error}");
    }
}

#[test]
fn a_url_opens_the_engine_with_its_faults() {
    let url = "embedded://?capacity=16MiB&faults=fail:transient:call1";
    let store = Store::open(url, &budget(16 * MIB)).unwrap();
    assert_eq!(store.url(), url);
    store
        .put(vec![PutItem::packed("p", vec![1])], Patience::default())
        .unwrap();
    assert!(1.0 <= store.stats().get("retries"));
}

/// An engine that others use too, and that does not let everything of everybody go.
struct Guarded {
    inner: Arc<dyn Engine>,
}

impl Engine for Guarded {
    tensorlease_engine::forward!(
        capabilities,
        register,
        unregister,
        read_batch,
        write_batch,
        remove_batch,
        contains_batch,
        describe_batch,
        asides,
        close
    );

    fn remove_prefix(&self, _prefix: &str) -> Result<u64, Fault> {
        Err(Fault::new(FaultKind::Refused, 0, "open the store with a namespace"))
    }
}

#[test]
fn a_clear_that_an_engine_refuses_is_a_mistake_in_the_call() {
    let store = Store::with_engine(Arc::new(Guarded { inner: free_engine() }), &named("")).unwrap();
    let error = store.clear(Patience::default()).unwrap_err();
    let RemoveError::Call(CallError::Invalid { message }) = error else {
        panic!("{error:?}")
    };
    assert!(
        message.contains("open the store with a namespace") && !message.contains("key"),
        "{message}"
    );
}
