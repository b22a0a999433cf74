//! A random program: an engine and what is wrong with it, a store's settings, and what several threads do with the store.

use crate::{
    checking::Claims,
    host,
    lending::Terms,
    neighbour::Meddling,
    random::Random,
    steps::{self, Step},
    value::Shape,
};
use std::time::Duration;
use tensorlease::{
    Delivery, ForkPolicy, Options,
    engine::{FaultKind, decorators::FailOn},
};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Budgets from one page upwards.
const BUDGETS: [u64; 8] = [4 * KIB, 8 * KIB, 12 * KIB, 64 * KIB, 256 * KIB, MIB, 2 * MIB, 8 * MIB];
/// A call that names no deadline must end long before this; the watchdog ends a program later.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(15);

/// Kinds that an engine is made to fail with: the first ones, so that a seed stays the program that it was.
const STRUCK_KINDS: usize = 11;

/// What is at the bottom of the engine.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Base {
    /// Embedded, any memory will do.
    Free,
    /// Embedded; registration is required and checked in software.
    Checked,
    /// Embedded; the kernel pins what is registered. Where it refuses to, as `Checked`.
    Pinned,
    /// As `Free`, and lends memory of its own.
    LendingFree(Terms),
    /// As `Checked`, and lends memory of its own.
    LendingChecked(Terms),
    /// A client of a daemon in this process.
    Host(host::Terms),
}

impl Base {
    pub(crate) fn registers(self) -> bool {
        match self {
            Self::Checked | Self::Pinned | Self::LendingChecked(_) => true,
            Self::Free | Self::LendingFree(_) => false,
            Self::Host(terms) => terms.registers,
        }
    }

    pub(crate) fn lends(self) -> Option<Terms> {
        match self {
            Self::LendingFree(terms) | Self::LendingChecked(terms) => Some(terms),
            _ => None,
        }
    }

    pub(crate) fn host(self) -> Option<host::Terms> {
        match self {
            Self::Host(terms) => Some(terms),
            _ => None,
        }
    }

    /// Is an engine behind the daemon?
    pub(crate) fn is_relayed(self) -> bool {
        self.host().is_some_and(|terms| terms.relayed)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Host(terms) if terms.relayed => "host, an engine behind it",
            Self::Free => "free",
            Self::Checked => "checked",
            Self::Pinned => "pinned",
            Self::LendingFree(_) => "lending, free",
            Self::LendingChecked(_) => "lending, checked",
            Self::Host(_) => "host",
        }
    }
}

/// One thing that is wrong with the engine.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// Keys of these calls fail.
    Fail {
        kind: FaultKind,
        on: FailOn,
        probability: f64,
    },
    /// Reads bring half of what they should.
    Short { probability: f64 },
    /// Reads fail and write their memory later.
    Late { micros: u64, probability: f64 },
    /// Keys vanish when they are written.
    Lose { probability: f64 },
    /// Every call takes this long.
    Slow { micros: u64 },
    /// Some calls take this long.
    Stall { micros: u64, probability: f64 },
    /// Some calls panic, before they do anything or after they did it.
    Panic { probability: f64 },
    /// Writes and removals take effect and are reported as failed.
    LoseAnswer { probability: f64 },
    /// Memory is not registered.
    RefuseRegistration { probability: f64 },
    /// Nothing is lent.
    RefuseLoan { probability: f64 },
    /// Every loan is allocated on its own.
    OverflowLoans,
}

/// How a program ends, where none of its threads closes the store.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ending {
    Close,
    /// Closed with hardly any patience.
    CloseInHaste,
    /// The last handle goes.
    Drop,
}

/// Everything that a seed decides.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) seed: u64,
    pub(crate) base: Base,
    pub(crate) capacity_bytes: u64,
    pub(crate) claims: Claims,
    pub(crate) faults: Vec<Fault>,
    pub(crate) options: Options,
    /// Without the namespace.
    pub(crate) keys: Vec<String>,
    /// What is under the keys before the store opens.
    pub(crate) stored: Vec<Option<Shape>>,
    pub(crate) threads: Vec<Vec<Step>>,
    /// What another client of the same host does meanwhile.
    pub(crate) neighbour: Vec<Meddling>,
    pub(crate) ending: Ending,
    /// Are values that were kept dropped before the store is closed?
    pub(crate) drops_first: bool,
}

impl Program {
    pub(crate) fn of(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let random = &mut random;
        let base = base(random);
        let claims = claims(random, base);
        let faults = faults(random, base);
        let shapes = shapes(random);
        let options = options(random, &claims, base);
        let keys: Vec<String> = (0..random.between(2, 10)).map(|at| key(random, at)).collect();
        let stored = (0..keys.len()).map(|_| stored(random, &shapes)).collect();
        let threads = steps::threads(random, &keys, &shapes);
        let ending = random.pick(&[Ending::Close, Ending::Close, Ending::CloseInHaste, Ending::Drop]);
        let mut program = Self {
            seed,
            base,
            capacity_bytes: if random.one_in(8) { 128 * KIB } else { 64 * MIB },
            claims,
            faults,
            options,
            keys,
            stored,
            threads,
            neighbour: Vec::new(),
            ending,
            drops_first: random.one_in(2),
        };
        host::perhaps(&mut program, &shapes);
        program
    }

    /// May the engine write memory after a call returned?
    pub(crate) fn writes_late(&self) -> bool {
        self.faults.iter().any(|fault| matches!(fault, Fault::Late { .. }))
    }
}

fn base(random: &mut Random) -> Base {
    let terms = Terms {
        arena_bytes: random.pick(&[16 * KIB, 64 * KIB, 512 * KIB]),
        bytes_max: 0,
        keys_max: random.pick(&[1, 3, 400]),
        loans_max: random.pick(&[1, 2, 4]),
    };
    let terms = Terms {
        bytes_max: terms.arena_bytes / random.pick(&[1, 2, 4]),
        ..terms
    };
    match random.below(10) {
        0..=2 => Base::Free,
        3..=5 => Base::Checked,
        6..=7 => Base::Pinned,
        8 => Base::LendingFree(terms),
        _ => Base::LendingChecked(terms),
    }
}

fn claims(random: &mut Random, base: Base) -> Claims {
    let sometimes = |random: &mut Random, of: &[u64]| random.one_in(3).then(|| random.pick(of));
    let keys_max = sometimes(random, &[1, 2, 5]);
    Claims {
        // Pinned memory is checked by the kernel and in software.
        registering: base.registers(),
        registration_bytes_max: sometimes(random, &[4 * KIB, 16 * KIB, 70_000, 128 * KIB, MIB])
            .filter(|_| base.registers()),
        batch_keys_max: keys_max.map(|keys| usize::try_from(keys).expect("a few keys")),
        batch_bytes_max: sometimes(random, &[4 * KIB, 100_000]),
        not_prompt: random.one_in(2),
        describes_not: random.one_in(7),
        register_pause: Duration::from_micros(if random.one_in(6) { 300 } else { 0 }),
    }
}

fn faults(random: &mut Random, base: Base) -> Vec<Fault> {
    let count = random.pick(&[0, 1, 1, 1, 2, 2, 3]);
    let mut faults: Vec<Fault> = (0..count).map(|_| fault(random, base)).collect();
    // Outermost is what says that memory may still be written, or leaves it unsaid altogether: no other fault may hide it.
    faults.sort_by_key(|fault| match fault {
        Fault::Late { .. } => 1,
        Fault::Panic { .. } => 2,
        _ => 0,
    });
    faults
}

fn fault(random: &mut Random, base: Base) -> Fault {
    let probability = random.pick(&[0.02, 0.1, 0.3, 0.6, 1.0]);
    match random.below(16) {
        0..=3 => Fault::Fail {
            kind: random.pick(&FaultKind::ALL[..STRUCK_KINDS]),
            on: random.pick(&[FailOn::ALL, FailOn::READS, FailOn::WRITES, FailOn::REMOVES]),
            probability,
        },
        4 => Fault::Short { probability },
        5..=7 => Fault::Late {
            micros: random.below(15_000),
            probability: probability.min(0.6),
        },
        8 => Fault::Lose { probability },
        9 => Fault::Slow {
            micros: random.between(50, 2_000),
        },
        10 => Fault::Stall {
            micros: random.between(1_000, 30_000),
            probability: probability.min(0.3),
        },
        11 => Fault::Panic {
            probability: probability.min(0.3),
        },
        12 => Fault::LoseAnswer { probability },
        13 if base.registers() => Fault::RefuseRegistration { probability },
        14 if base.lends().is_some() => Fault::RefuseLoan { probability },
        15 if base.lends().is_some() => Fault::OverflowLoans,
        _ => Fault::Fail {
            kind: FaultKind::Transient,
            on: FailOn::ALL,
            probability: probability.min(0.3),
        },
    }
}

fn options(random: &mut Random, claims: &Claims, base: Base) -> Options {
    let max_bytes = random.pick(&BUDGETS);
    // What is registered at once bounds the reserve: more is refused at open.
    let most = claims
        .registration_bytes_max
        .filter(|_| base.registers())
        .unwrap_or(u64::MAX);
    let pages = |bytes: u64| (bytes - bytes % (4 * KIB)).max(4 * KIB);
    let bounce = [0, 4 * KIB, max_bytes / 4, max_bytes];
    let bounce = random.one_in(2).then(|| random.pick(&bounce).min(pages(most)));
    let sometimes = |random: &mut Random, of: &[u64]| random.one_in(3).then(|| random.pick(of));
    Options {
        max_bytes,
        bounce_bytes: bounce,
        copy_cache_bytes: sometimes(random, &[0, 4 * KIB, 64 * KIB, MIB]),
        quarantine_bytes: sometimes(random, &[0, 8 * KIB, 256 * KIB]),
        readers: random.pick(&[1, 2, 2, 4]),
        delivery: random.pick(&Delivery::ALL),
        strict: random.one_in(6),
        namespace: random.pick(&["", "job/", "ö/"]).to_owned(),
        prewarm_bytes: if random.one_in(4) { max_bytes } else { 0 },
        batch_keys: random.pick(&[1, 2, 400]),
        retries: random.pick(&[0, 1, 1, 2, 2, 3]),
        fork: random.pick(&[None, Some(ForkPolicy::Exclude)]),
        call_timeout: CALL_TIMEOUT,
    }
}

fn key(random: &mut Random, at: u64) -> String {
    match random.below(8) {
        0 => format!("{at}\0ключ"),
        1 => format!("{at}{}", "long".repeat(40)),
        _ => format!("k{at}"),
    }
}

/// A few only, so that keys are often replaced by values that a read could take for the old ones.
fn shapes(random: &mut Random) -> Vec<Shape> {
    let bytes_max = random.pick(&[200, 5_000, 70_000, 300_000]);
    let count = random.between(1, 6);
    (0..count).map(|_| Shape::random(random, bytes_max)).collect()
}

/// Only tensors that have bytes: the store alone knows how it keeps the others.
fn stored(random: &mut Random, shapes: &[Shape]) -> Option<Shape> {
    let shape = random.pick(shapes);
    let kept = matches!(shape, Shape::Tensor(..)) && 0 < shape.bytes();
    kept.then_some(shape)
}
