//! What is logged, and how often. Alone in its process, since there is one logger per process.

use std::sync::{Arc, Mutex};
use tensorlease::{Delivery, Options, Patience, PutItem, ReadItem, ReadRequest, Store, TensorSpec};

static LINES: Mutex<Vec<(log::Level, String)>> = Mutex::new(Vec::new());

struct Keeping;

impl log::Log for Keeping {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let mut lines = LINES.lock().expect("no test panics while it holds the lines");
        lines.push((record.level(), record.args().to_string()));
    }

    fn flush(&self) {}
}

#[test]
fn a_store_says_once_how_it_reads_and_once_when_it_cannot() {
    log::set_logger(&Keeping).unwrap();
    log::set_max_level(log::LevelFilter::Trace);
    let options = Options {
        max_bytes: 16 << 20,
        ..Options::default()
    };
    let store = Store::open("embedded://?capacity=64MiB", &options).unwrap();
    let spec = Arc::new(TensorSpec::new(tensorlease::DType::U8, &[1 << 20]).unwrap());
    let item = PutItem::tensor("k", Arc::clone(&spec), vec![7; 1 << 20]);
    store.put(vec![item], Patience::default()).unwrap();
    let read = || {
        let request = ReadRequest {
            items: vec![ReadItem::tensor("k", Arc::clone(&spec))],
            delivery: Some(Delivery::Leased),
            ..ReadRequest::default()
        };
        store.get(request, Patience::default()).unwrap()
    };
    let kept: Vec<_> = (0..20).map(|_| read()).collect();
    let lines = LINES.lock().unwrap().clone();
    let of = |level| {
        lines
            .iter()
            .filter(|(of, _)| *of == level)
            .map(|(_, text)| text)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        of(log::Level::Info).len(),
        1,
        "one line at open (requirement A15): {lines:?}"
    );
    assert!(
        of(log::Level::Info)[0].contains("auto delivery, reads are leased from the arena (no registration needed)")
    );
    let warnings = of(log::Level::Warn);
    assert_eq!(
        warnings.len(),
        2,
        "each reason once, not twelve times (requirement A14): {warnings:?}"
    );
    assert!(warnings[1].contains("copy_cache_bytes"), "{}", warnings[1]);
    assert!(
        warnings[0].contains("max_bytes") && warnings[0].contains("given once"),
        "{}",
        warnings[0]
    );
    assert!(store.stats().get("fallback_reads") > 10.0);
    drop(kept);
    store.close(Patience::default()).unwrap();
    let later = LINES.lock().unwrap()[lines.len()..].to_vec();
    assert!(later.iter().all(|(level, _)| *level > log::Level::Warn), "{later:?}");
}
