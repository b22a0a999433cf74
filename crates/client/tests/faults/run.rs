//! A program as it runs: its threads, what they know, and what they found.

use crate::{
    grounds::Grounds,
    holdings::Holdings,
    model::{Model, Moment, Span},
    program::Program,
    random::Random,
    reading::Asked,
    stack::Stack,
    steps::{Act, Impatience, Step},
    tally::Tally,
    value::Value,
};
use std::{
    fmt::Debug,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};
use tensorlease::{ObjectKind, Patience, Store};
use tensorlease_host::HostEngine;

/// No more than this is told of one program.
const FINDINGS_MAX: usize = 12;

/// What the threads of one program share.
pub(crate) struct Run<'p> {
    pub(crate) program: &'p Program,
    pub(crate) stack: &'p Stack,
    pub(crate) store: Store,
    pub(crate) model: Model,
    pub(crate) grounds: Grounds,
    pub(crate) holdings: Holdings,
    pub(crate) tally: Arc<Tally>,
    pub(crate) findings: &'p Findings,
    /// When the first close began.
    closing: AtomicU64,
    /// Did a close begin that would not wait?
    pub(crate) hasty: AtomicBool,
}

/// Differences between what happened and what may happen, and what each thread does now: also for the watchdog.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    found: Mutex<Vec<String>>,
    doing: Mutex<Vec<String>>,
}

impl Findings {
    pub(crate) fn add(&self, finding: String) {
        let mut found = lock(&self.found);
        if found.len() < FINDINGS_MAX {
            found.push(finding);
        }
    }

    pub(crate) fn any(&self) -> bool {
        !lock(&self.found).is_empty()
    }

    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.found))
    }

    pub(crate) fn begin(&self, thread: usize, what: String) {
        let mut doing = lock(&self.doing);
        let threads = doing.len().max(thread + 1);
        doing.resize(threads, String::new());
        doing[thread] = what;
    }

    pub(crate) fn doing(&self) -> Vec<String> {
        lock(&self.doing).clone()
    }

    pub(crate) fn reset(&self) {
        lock(&self.found).clear();
        lock(&self.doing).clear();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'p> Run<'p> {
    pub(crate) fn new(
        program: &'p Program,
        stack: &'p Stack,
        store: Store,
        model: Model,
        tally: &Arc<Tally>,
        findings: &'p Findings,
    ) -> Self {
        let grounds = Grounds::of(
            program,
            &tensorlease::engine::Engine::capabilities(&*stack.watching).clone(),
        );
        Self {
            program,
            stack,
            store,
            model,
            grounds,
            holdings: Holdings::default(),
            tally: Arc::clone(tally),
            findings,
            closing: AtomicU64::new(Moment::MAX),
            hasty: AtomicBool::new(false),
        }
    }

    /// Runs every thread to its end.
    pub(crate) fn all_threads(&self) {
        thread::scope(|scope| {
            for (number, steps) in self.program.threads.iter().enumerate() {
                let thread = thread::Builder::new().name(format!("program-{number}"));
                let started = thread.spawn_scoped(scope, move || self.thread(number, steps));
                started.expect("a thread can be started");
            }
            if let Some(host) = &self.stack.host {
                scope.spawn(|| self.neighbour(&host.neighbour));
            }
        });
    }

    fn thread(&self, number: usize, steps: &[Step]) {
        for (at, step) in steps.iter().enumerate() {
            self.findings.begin(number, format!("step {at}: {step:?}"));
            let act = std::panic::AssertUnwindSafe(|| self.act(step));
            match std::panic::catch_unwind(act) {
                Ok(Ok(())) => {}
                Ok(Err(difference)) => {
                    self.findings
                        .add(format!("thread {number}, step {at}: {difference}\n    {step:?}"));
                }
                Err(_) => self
                    .findings
                    .add(format!("thread {number}, step {at}: a call panicked\n    {step:?}")),
            }
        }
        self.findings.begin(number, "ended".to_owned());
    }

    fn neighbour(&self, engine: &HostEngine) {
        for (at, meddling) in self.program.neighbour.iter().enumerate() {
            self.meddle(engine, meddling).unwrap_or_else(|difference| {
                self.findings
                    .add(format!("neighbour, step {at}: {difference}\n    {meddling:?}"));
            });
        }
    }

    fn act(&self, step: &Step) -> Result<(), String> {
        let mut random = Random::new(step.seed);
        let random = &mut random;
        match &step.act {
            Act::Put { items, mode } => self.put(items, *mode, step.patience, random),
            Act::PutFromArena { item } => self.put_from_arena(item, step.patience),
            Act::PutKept { key } => self.put_kept(*key, step.patience, random),
            Act::Get(get) => self.get(get, step.patience, random),
            Act::GetInto { keys, direct } => self.get_into(keys, *direct, step.patience, random),
            Act::View { keys, described, keeps } => self.view(keys, (*described, *keeps), step.patience, random),
            Act::Remove { keys } => self.remove(keys, step.patience),
            Act::Clear => self.clear(step.patience),
            Act::Contains { keys } => self.contains(keys, step.patience),
            Act::Describe { keys } => self.describe(keys, step.patience),
            Act::Wait { keys, micros } => self.wait(keys, *micros),
            Act::LookAgain => self.look_again(),
            Act::Scribble { number } => self.scribble(*number, random),
            Act::DropSome => {
                self.drop_some(random);
                Ok(())
            }
            Act::Trim => {
                self.tally.add("calls/trim", 1);
                let _freed = self.store.trim();
                Ok(())
            }
            Act::Pause { micros } => {
                thread::sleep(Duration::from_micros(*micros));
                Ok(())
            }
            Act::Close { in_haste } => {
                self.tally.add("calls/close beside other threads", 1);
                self.close(in_haste.then(|| Duration::from_micros(random.below(2_000))))
            }
            Act::Strike(blow) => {
                self.tally.add(format!("host/struck: {blow:?}"), 1);
                let host = self
                    .stack
                    .host
                    .as_ref()
                    .expect("only programs with a host have such steps");
                host.strike(*blow)
            }
        }
    }

    /// Closes the store, within its own bound or a shorter one.
    pub(crate) fn close(&self, within: Option<Duration>) -> Result<(), String> {
        self.closing.fetch_min(self.model.now(), SeqCst);
        self.hasty.fetch_or(within.is_some(), SeqCst);
        let patience = within.map_or_else(Patience::default, Patience::within);
        self.store
            .close(patience)
            .map_err(|error| format!("close failed: {error:?}"))
    }

    /// Had a close begun at this moment?
    pub(crate) fn was_closing(&self, span: Span) -> bool {
        self.closing.load(SeqCst) < span.to
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(SeqCst) != Moment::MAX
    }

    /// Makes a call, counts it, and says from when to when it ran.
    pub(crate) fn timed<T, E: Debug>(
        &self,
        name: &str,
        impatience: Impatience,
        call: impl FnOnce(Patience<'_>) -> Result<T, E>,
    ) -> (Result<T, E>, Span) {
        let from = self.model.now();
        let result = patiently(impatience, call);
        let to = self.model.now();
        self.tally.add(format!("calls/{name}"), 1);
        match &result {
            Ok(_) => self.tally.add(format!("succeeded/{name}"), 1),
            Err(error) => self.tally.add(format!("errors/{name}: {}", variant(error)), 1),
        }
        (result, Span { from, to })
    }

    /// The key as the engine knows it.
    pub(crate) fn full_key(&self, key: usize) -> String {
        format!("{}{}", self.program.options.namespace, self.program.keys[key])
    }

    pub(crate) fn key_names(&self, keys: &[usize]) -> Vec<String> {
        keys.iter().map(|key| self.program.keys[*key].clone()).collect()
    }

    /// The place of a key by its name, as failures name it.
    pub(crate) fn key_of(&self, name: &str, among: &[usize]) -> Result<usize, String> {
        let of = |key: &&usize| self.program.keys[**key] == name;
        among
            .iter()
            .find(of)
            .copied()
            .ok_or_else(|| format!("an error names {name:?}, which was not asked for"))
    }

    pub(crate) fn loses(&self, key: usize) -> bool {
        self.stack.loses(&self.full_key(key))
    }

    /// Is a value of so many bytes read without a question to the engine?
    pub(crate) fn is_unseen(&self, len: u64) -> bool {
        len == 0 && !self.grounds.describes
    }

    /// May a read that ran then have brought these bytes?
    pub(crate) fn check_value(&self, asked: &Asked, bytes: &[u8], span: Span) -> Result<(), String> {
        // What an engine shows in place is read past the decorators, as a view is.
        let in_place = asked.described && self.stack.shows_objects();
        if self.loses(asked.key) && !in_place && !self.is_unseen(bytes.len() as u64) {
            let name = &self.program.keys[asked.key];
            return Err(format!("{name:?} was read, though the engine has lost it"));
        }
        self.check_bytes(asked.key, &asked.kind, bytes, span)
    }

    /// May these bytes have been there then?
    pub(crate) fn check_bytes(&self, key: usize, kind: &ObjectKind, bytes: &[u8], span: Span) -> Result<(), String> {
        let len = bytes.len() as u64;
        if self.is_unseen(len) {
            return Ok(());
        }
        let name = &self.program.keys[key];
        let possible = self.model.possible(key, span);
        let fitting: Vec<Value> = possible
            .values
            .into_iter()
            .filter_map(|it| it.read_as(kind, len, self.grounds.describes))
            .collect();
        let whole = fitting.iter().any(|value| *value.bytes == bytes);
        // Without descriptions the client can't tell that an object was replaced between two reads of its parts.
        let parts = || !self.grounds.describes && self.stack.watching.read_in_parts(&self.full_key(key));
        let mixed = || parts() && is_mixture(bytes, &fitting);
        if whole || mixed() {
            self.tally.add("verified/values", 1);
            self.tally.add("verified/bytes", len);
            self.tally
                .add("verified/mixed values of reads in parts", u64::from(!whole));
            return Ok(());
        }
        Err(format!(
            "{name:?}: {len} bytes were read that nobody put there: {}",
            nearest(&fitting, bytes)
        ))
    }
}

/// Is each byte what one of the values has there?
fn is_mixture(bytes: &[u8], values: &[Value]) -> bool {
    let one_of = |(at, byte): (usize, &u8)| values.iter().any(|value| value.bytes[at] == *byte);
    bytes.iter().enumerate().all(one_of)
}

/// In which way the bytes differ from the values that may have been there.
fn nearest(values: &[Value], bytes: &[u8]) -> String {
    let compared = values.iter().map(|value| {
        let same = value
            .bytes
            .iter()
            .zip(bytes)
            .take_while(|(one, other)| one == other)
            .count();
        let differ = value
            .bytes
            .iter()
            .zip(bytes)
            .filter(|(one, other)| one != other)
            .count();
        format!(
            "of a value of {} bytes the first {same} are the same and {differ} differ",
            value.len()
        )
    });
    let first: Vec<u8> = bytes.iter().take(8).copied().collect();
    let compared: Vec<String> = compared.collect();
    format!(
        "first bytes {first:02x?}; {}",
        if compared.is_empty() {
            "none may be there".to_owned()
        } else {
            compared.join("; ")
        }
    )
}

fn patiently<T>(impatience: Impatience, call: impl FnOnce(Patience<'_>) -> T) -> T {
    match impatience {
        Impatience::Never => call(Patience::default()),
        Impatience::Deadline { micros } => call(Patience::within(Duration::from_micros(micros))),
        Impatience::Interrupt { micros } => {
            let (start, limit) = (Instant::now(), Duration::from_micros(micros));
            let interrupted = move || limit <= start.elapsed();
            call(Patience {
                interrupted: Some(&interrupted),
                ..Patience::default()
            })
        }
    }
}

/// The name of an error without what it says.
fn variant(error: &impl Debug) -> String {
    let text = format!("{error:?}");
    let text = text.strip_prefix("Call(").unwrap_or(&text);
    text.split([' ', '(', ')', '{']).next().unwrap_or_default().to_owned()
}
