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
    let model = Model::new(program.keys.len(), engine.capabilities().atomic_replace);
    store_past_the_client(program, &stack, &model);
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
    drop(stack);
    // Where something is wrong every log line helps.
    let failed = findings.any();
    for line in noise::take()
        .into_iter()
        .filter(|line| failed || noise::is_alarming(line))
    {
        findings.add(line);
    }
    let left = leaks::open_files();
    if files < left {
        findings.add(format!("{} files were left open", left - files));
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
