//! The engine of a program: what holds the objects, what is wrong with it, and what looks at it.

use crate::{
    checking::Checking,
    host::Host,
    lending::{Lending, no_loan},
    program::{Base, Fault, Program},
    random::Random,
    tally::Tally,
    unruly::{Mood, PANIC, Unruly},
    value::{Shape, Value},
    watching::Watching,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tensorlease::{
    CallerMemory, ObjectKind,
    engine::{
        Embedded, EmbeddedOptions, Engine, ReadOp, Registration, Tag, WriteOp,
        decorators::{Choice, Failing, KeyLosing, LateWriting, ShortReading, Slow},
    },
};

/// The layers of a program's engine that are looked at, from the inside out.
pub(crate) struct Stack {
    pub(crate) raw: Arc<dyn Engine>,
    pub(crate) lending: Option<Arc<Lending>>,
    losing: Vec<Arc<KeyLosing>>,
    checking: Arc<Checking>,
    pub(crate) watching: Arc<Watching>,
    armed: Arc<AtomicBool>,
    /// Is there an object of another namespace?
    pub(crate) has_beside: AtomicBool,
    /// Is the memory really pinned?
    pub(crate) pinned: bool,
    /// Last, as what ends last.
    pub(crate) host: Option<Host>,
}

/// An object as the engine holds it.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) tag: Option<Tag>,
    pub(crate) bytes: Vec<u8>,
}

impl Stack {
    pub(crate) fn of(program: &Program, tally: &Arc<Tally>) -> Self {
        let host = program.base.host().map(|terms| Host::start(terms, program));
        let (raw, pinned) = match &host {
            Some(host) => (Arc::clone(&host.client) as Arc<dyn Engine>, false),
            None => embedded(program),
        };
        let armed = Arc::new(AtomicBool::new(false));
        let lending = program.base.lends().map(|terms| {
            let lending = Lending::new(Arc::clone(&raw), terms);
            Arc::new(refusing(lending, program, &armed, tally))
        });
        let overflows = |fault: &Fault| matches!(fault, Fault::OverflowLoans);
        if let Some(lending) = lending.as_ref().filter(|_| program.faults.iter().any(overflows)) {
            lending.overflow();
        }
        let mut losing = Vec::new();
        let mut engine = match &lending {
            Some(lending) => Arc::clone(lending) as Arc<dyn Engine>,
            None => Arc::clone(&raw),
        };
        let mut random = Random::new(!program.seed);
        for fault in &program.faults {
            let seed = random.number();
            engine = match fault {
                Fault::Lose { probability } => {
                    losing.push(Arc::new(KeyLosing::new(engine, *probability, seed)));
                    Arc::clone(losing.last().expect("just pushed")) as Arc<dyn Engine>
                }
                // It is behind the daemon already.
                Fault::Late { .. } if program.base.is_relayed() => engine,
                fault => decorated(engine, fault, seed, &armed, tally),
            };
        }
        let checking = Arc::new(Checking::new(engine, program.claims.clone()));
        let engine = refusing_registrations(Arc::clone(&checking) as Arc<dyn Engine>, program, &armed, tally);
        let watching = Watching::new(engine, Arc::clone(tally));
        Self {
            raw,
            lending,
            losing,
            checking,
            watching: Arc::new(watching),
            armed,
            has_beside: AtomicBool::new(false),
            pinned,
            host,
        }
    }

    /// The way to the objects past all that is wrong with the engine.
    fn aside(&self) -> &dyn Engine {
        match &self.host {
            Some(host) => host.objects(),
            None => &*self.raw,
        }
    }

    /// From now on what has no decorator of the engine crate goes wrong too.
    pub(crate) fn arm(&self) {
        self.armed.store(true, Relaxed);
    }

    /// Promises that the client broke.
    pub(crate) fn broken(&self) -> Vec<String> {
        self.checking.broken()
    }

    /// Is this key (with its namespace) lost as soon as it is written?
    pub(crate) fn loses(&self, key: &str) -> bool {
        self.losing.iter().any(|losing| losing.loses(key))
    }

    /// Does the engine show its objects in place? What decorates it shows them as they lie.
    pub(crate) fn shows_objects(&self) -> bool {
        self.raw.views().is_some()
    }

    /// Stores a tensor past all that is wrong with the engine. False: there is no room.
    pub(crate) fn store(&self, key: &str, shape: &Shape, value: &Value) -> bool {
        let memory = CallerMemory::from_vec(value.bytes.to_vec());
        registered(self.aside(), &memory, || {
            let write = WriteOp {
                key,
                segments: &[memory.source(0..memory.len())],
                tag: &tag(shape),
            };
            self.aside().write_batch(&[write])[0].is_ok()
        })
    }

    /// What is under a key, past all that is wrong with the engine.
    pub(crate) fn stored(&self, key: &str) -> Result<Option<Stored>, String> {
        let described = self.aside().describe_batch(&[key]).remove(0);
        let Some(info) = described.map_err(|fault| fault.to_string())? else {
            return Ok(None);
        };
        let len = usize::try_from(info.len).expect("a value of this suite is small");
        let memory = CallerMemory::from_vec(vec![0; len]);
        let read = registered(self.aside(), &memory, || {
            let read = ReadOp {
                key,
                offset: 0,
                target: memory.target(0..len),
                object_len: info.len,
                tag: info.tag.as_ref(),
                by_transport: false,
            };
            self.aside().read_batch(&[read]).remove(0)
        });
        read.map_err(|fault| fault.to_string())?;
        Ok(Some(Stored {
            tag: info.tag,
            bytes: memory.source(0..len).to_vec(),
        }))
    }
}

/// Does `work` with `engine`, with this memory registered where it has to be.
pub(crate) fn registered<T>(engine: &dyn Engine, memory: &CallerMemory, work: impl FnOnce() -> T) -> T {
    let required = engine.capabilities().registration == Registration::Required;
    // An engine that is closed takes nothing, which the work is told.
    let done = required && engine.register(memory.region()).is_ok();
    let result = work();
    if done {
        engine.unregister(memory.region()).expect("just registered");
    }
    result
}

/// The tag of a tensor, as every client writes it.
pub(crate) fn tag(shape: &Shape) -> Tag {
    match shape.kind() {
        ObjectKind::Tensor(spec) => spec.tag().clone(),
        ObjectKind::Packed => unreachable!("only tensors are stored past the client"),
    }
}

fn embedded(program: &Program) -> (Arc<dyn Engine>, bool) {
    let open = |pinned| {
        let capacity_bytes = program.capacity_bytes;
        Embedded::new(&EmbeddedOptions { capacity_bytes, pinned })
    };
    let wanted = matches!(program.base, Base::Pinned);
    if let Some(engine) = wanted.then(|| open(true).ok()).flatten() {
        return (Arc::new(engine), true);
    }
    let engine = open(false).expect("an engine that pins nothing opens everywhere");
    (Arc::new(engine), false)
}

fn refusing(lending: Lending, program: &Program, armed: &Arc<AtomicBool>, tally: &Arc<Tally>) -> Lending {
    let refused = program.faults.iter().find_map(|fault| match fault {
        Fault::RefuseLoan { probability } => Some(*probability),
        _ => None,
    });
    let panics = program.faults.iter().find_map(|fault| match fault {
        Fault::Panic { probability } => Some(*probability),
        _ => None,
    });
    let (seed, armed, tally) = (program.seed, Arc::clone(armed), Arc::clone(tally));
    lending.on_borrow(move |number, _| {
        if !armed.load(Relaxed) {
            return None;
        }
        let mut random = Random::new(seed ^ number.wrapping_mul(0x9e37_79b9));
        if panics.is_some_and(|panics| random.happens(panics)) {
            tally.add("struck/lender panics", 1);
            panic!("{PANIC}");
        }
        let refuses = refused.is_some_and(|refused| random.happens(refused));
        refuses.then(|| {
            tally.add("struck/loan refused", 1);
            no_loan("refused on purpose by a test")
        })
    })
}

/// Around what checks registrations: it takes what it passes on for registered.
fn refusing_registrations(
    inner: Arc<dyn Engine>,
    program: &Program,
    armed: &Arc<AtomicBool>,
    tally: &Arc<Tally>,
) -> Arc<dyn Engine> {
    let refused = program.faults.iter().find_map(|fault| match fault {
        Fault::RefuseRegistration { probability } => Some(*probability),
        _ => None,
    });
    let Some(refuse_registration) = refused else {
        return inner;
    };
    let mood = Mood {
        refuse_registration,
        ..Mood::default()
    };
    Arc::new(Unruly::new(
        inner,
        mood,
        program.seed,
        Arc::clone(armed),
        Arc::clone(tally),
    ))
}

fn decorated(
    inner: Arc<dyn Engine>,
    fault: &Fault,
    seed: u64,
    armed: &Arc<AtomicBool>,
    tally: &Arc<Tally>,
) -> Arc<dyn Engine> {
    let chance = |probability: f64| Choice::Chance { probability, seed };
    let unruly = |inner, mood| Arc::new(Unruly::new(inner, mood, seed, Arc::clone(armed), Arc::clone(tally)));
    let calm = Mood::default();
    match *fault {
        Fault::Fail { kind, on, probability } => Arc::new(Failing::new(inner, kind, on, chance(probability))),
        Fault::Short { probability } => Arc::new(ShortReading::new(inner, chance(probability))),
        Fault::Late { micros, probability } => {
            let delay = Duration::from_micros(micros);
            Arc::new(LateWriting::new(inner, delay, chance(probability)))
        }
        Fault::Slow { micros } => Arc::new(Slow::new(inner, Duration::from_micros(micros))),
        Fault::Stall { micros, probability } => {
            let (stall, stall_micros) = (probability, micros);
            unruly(
                inner,
                Mood {
                    stall,
                    stall_micros,
                    ..calm
                },
            )
        }
        Fault::Panic { probability: panic } => unruly(inner, Mood { panic, ..calm }),
        Fault::LoseAnswer { probability } => unruly(
            inner,
            Mood {
                lose_answer: probability,
                ..calm
            },
        ),
        Fault::RefuseRegistration { .. } | Fault::Lose { .. } | Fault::RefuseLoan { .. } | Fault::OverflowLoans => {
            inner
        }
    }
}
