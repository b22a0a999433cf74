//! One program from beginning to end.

use crate::{
    leaks,
    model::{Model, Outcome},
    noise,
    program::Program,
    run::{Findings, Run},
    stack::Stack,
    tally::Tally,
    value::{Shape, Value},
};
use std::sync::{Arc, Mutex, PoisonError, atomic::Ordering::Relaxed};
use tensorlease::{DType, Store, engine::Engine};

/// An object beside those of the store's namespace, which no program may touch.
const BESIDE: &str = "beside/k0";

/// The store of the program that runs, for the watchdog.
#[derive(Debug, Default)]
pub(crate) struct Watched(Mutex<Option<Store>>);

impl Watched {
    pub(crate) fn store(&self) -> Option<Store> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, store: Option<Store>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = store;
    }
}

/// Runs a program; its differences are in `findings`.
pub(crate) fn run(program: &Program, tally: &Arc<Tally>, findings: &Findings, watched: &Watched) {
    let files = leaks::open_files();
    noise::forget();
    let stack = Stack::of(program, tally);
    let engine = Arc::clone(&stack.watching) as Arc<dyn Engine>;
    let model = Model::new(program.keys.len(), engine.capabilities().describes);
    store_past_the_client(program, &stack, &model);
    add_stranger(program, &stack, findings);
    match Store::with_engine(engine, &program.options) {
        Err(error) => findings.add(format!("the store did not open: {error}")),
        Ok(store) => {
            watched.set(Some(store.clone()));
            stack.arm();
            let run = Run::new(program, &stack, store, model, tally, findings);
            run.all_threads();
            watched.set(None);
            run.end();
        }
    }
    let closed = stack.raw.close();
    closed.unwrap_or_else(|error| findings.add(format!("the engine did not close: {error}")));
    if let Some(host) = &stack.host {
        host.end()
            .unwrap_or_else(|difference| findings.add(format!("in the end: {difference}")));
    }
    drop(stack);
    leaks::process_is_bare(files).unwrap_or_else(|difference| findings.add(format!("in the end: {difference}")));
    // Where something is wrong every log line helps.
    let failed = findings.any();
    for line in noise::take()
        .into_iter()
        .filter(|line| failed || noise::is_alarming(line))
    {
        findings.add(line);
    }
}

fn store_past_the_client(program: &Program, stack: &Stack, model: &Model) {
    let namespace = &program.options.namespace;
    for (key, shape) in program.stored.iter().enumerate() {
        let Some(shape) = shape else { continue };
        let value = Value::new(shape, program.seed ^ key as u64);
        if stack.store(&format!("{namespace}{}", program.keys[key]), shape, &value) {
            model.end(model.begin(key, Some(value)), Outcome::Done);
        }
    }
    if !namespace.is_empty() {
        let (shape, value) = beside();
        stack.has_beside.store(stack.store(BESIDE, &shape, &value), Relaxed);
    }
}

fn add_stranger(program: &Program, stack: &Stack, findings: &Findings) {
    let namespace = &program.options.namespace;
    let keys: Vec<String> = program.keys.iter().map(|key| format!("{namespace}{key}")).collect();
    let host = stack
        .host
        .as_ref()
        .filter(|_| program.base.host().is_some_and(|terms| terms.stranger));
    if let Some(host) = host {
        host.add_stranger(&keys)
            .unwrap_or_else(|difference| findings.add(difference));
    }
}

fn beside() -> (Shape, Value) {
    let shape = Shape::Tensor(DType::U8, vec![100]);
    let value = Value::new(&shape, 7);
    (shape, value)
}

/// What lies beside the store's namespace is as it was.
pub(crate) fn check_beside(stack: &Stack) -> Result<(), String> {
    if !stack.has_beside.load(Relaxed) {
        return Ok(());
    }
    match stack.stored(BESIDE)? {
        Some(stored) if stored.bytes == *beside().1.bytes => Ok(()),
        other => Err(format!("{BESIDE:?} of another namespace was touched: {other:?}")),
    }
}
