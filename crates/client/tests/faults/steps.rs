//! What the threads of a program do.

use crate::{host::Blow, random::Random, value::Shape};
use std::ops::Range;
use tensorlease::{Delivery, PutMode};

/// One call, or something done with what earlier calls brought.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) act: Act,
    pub(crate) patience: Impatience,
    /// Decides what only the run can choose from.
    pub(crate) seed: u64,
}

/// What ends a call early.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Impatience {
    /// Nothing.
    Never,
    Deadline {
        micros: u64,
    },
    Interrupt {
        micros: u64,
    },
}

#[derive(Clone, Debug)]
pub(crate) enum Act {
    Put {
        items: Vec<NewValue>,
        mode: PutMode,
    },
    /// Memory of the arena is filled and put as it lies.
    PutFromArena {
        item: NewValue,
    },
    /// A value that was read and kept is put under another key.
    PutKept {
        key: usize,
    },
    Get(Get),
    GetInto {
        keys: Vec<usize>,
        direct: bool,
    },
    /// Values are read where the engine keeps them.
    View {
        keys: Vec<usize>,
        described: bool,
        keeps: bool,
    },
    Remove {
        keys: Vec<usize>,
    },
    Clear,
    Contains {
        keys: Vec<usize>,
    },
    Describe {
        keys: Vec<usize>,
    },
    Wait {
        keys: Vec<usize>,
        micros: u64,
    },
    /// Values that were kept are as they were.
    LookAgain,
    /// A kept value is changed by its owner.
    Scribble {
        number: u64,
    },
    DropSome,
    Trim,
    Pause {
        micros: u64,
    },
    Close {
        in_haste: bool,
    },
    /// Something befalls the host.
    Strike(Blow),
}

#[derive(Clone, Debug)]
pub(crate) struct NewValue {
    pub(crate) key: usize,
    pub(crate) shape: Shape,
    pub(crate) number: u64,
    pub(crate) from: From,
}

/// Whose memory a value is put from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum From {
    Owned,
    CallerMemory,
    /// Several pieces, some of them empty.
    Pieces,
}

#[derive(Clone, Debug)]
pub(crate) struct Get {
    pub(crate) keys: Vec<usize>,
    pub(crate) batches: Vec<Range<usize>>,
    pub(crate) delivery: Option<Delivery>,
    /// The engine is asked what is there.
    pub(crate) described: bool,
    pub(crate) keeps: bool,
}

/// Steps for one to four threads.
pub(crate) fn threads(random: &mut Random, keys: &[String], shapes: &[Shape]) -> Vec<Vec<Step>> {
    let threads = random.pick(&[1, 1, 2, 2, 3, 4]);
    let steps = random.between(2, 16);
    // A few programs give up all the time, most hardly ever.
    let impatience = random.pick(&[0, 0, 10, 40]);
    let mut maker = Maker {
        random,
        keys: keys.len(),
        shapes,
        impatience,
    };
    let mut all: Vec<Vec<Step>> = (0..threads)
        .map(|_| (0..steps).map(|_| maker.step()).collect())
        .collect();
    if maker.random.one_in(4) {
        let thread = maker.random.index(all.len());
        let at = maker.random.index(all[thread].len());
        let in_haste = maker.random.one_in(2);
        all[thread][at].act = Act::Close { in_haste };
    }
    all
}

struct Maker<'a> {
    random: &'a mut Random,
    keys: usize,
    shapes: &'a [Shape],
    /// Of 100 calls so many may end early.
    impatience: u64,
}

impl Maker<'_> {
    fn step(&mut self) -> Step {
        let act = self.act();
        let patience = if self.random.below(100) < self.impatience {
            let micros = self.random.pick(&[0, 200, 2_000, 10_000]);
            let micros = self.random.between(0, micros);
            if self.random.one_in(3) {
                Impatience::Interrupt { micros }
            } else {
                Impatience::Deadline { micros }
            }
        } else {
            Impatience::Never
        };
        Step {
            act,
            patience,
            seed: self.random.number(),
        }
    }

    fn act(&mut self) -> Act {
        match self.random.below(100) {
            0..=17 => Act::Put {
                items: self.new_values(),
                mode: if self.random.one_in(5) {
                    PutMode::RegisterPerCall
                } else {
                    PutMode::Staged
                },
            },
            18..=21 => Act::PutFromArena { item: self.new_value() },
            22..=26 => Act::PutKept { key: self.key() },
            27..=56 => Act::Get(self.get()),
            57..=66 => Act::GetInto {
                keys: self.some_keys(true),
                direct: self.random.one_in(2),
            },
            67..=70 => Act::Remove {
                keys: self.some_keys(false),
            },
            71 => Act::Clear,
            72..=74 => Act::Contains {
                keys: self.some_keys(true),
            },
            75..=77 => Act::Describe {
                keys: self.some_keys(true),
            },
            78..=79 => Act::Wait {
                keys: self.some_keys(false),
                micros: self.random.below(3_000),
            },
            80..=84 => Act::LookAgain,
            85..=88 => Act::Scribble {
                number: self.random.number(),
            },
            89..=94 => Act::DropSome,
            95..=97 => Act::Trim,
            _ => Act::Pause {
                micros: self.random.below(2_000),
            },
        }
    }

    fn key(&mut self) -> usize {
        self.random.index(self.keys)
    }

    /// Some or all of them; the same one twice only where that is allowed.
    fn some_keys(&mut self, twice: bool) -> Vec<usize> {
        // One missing key fails a whole read: mostly few.
        let count = match self.random.below(4) {
            0 | 1 => 1,
            2 => self.random.index(self.keys.div_ceil(2)) + 1,
            _ => self.random.index(self.keys) + 1,
        };
        let mut keys = self.random.places(count, self.keys);
        if twice && self.random.one_in(4) {
            let again = self.random.pick(&keys);
            let at = self.random.index(keys.len() + 1);
            keys.insert(at, again);
        }
        keys
    }

    fn new_values(&mut self) -> Vec<NewValue> {
        let keys = self.some_keys(false);
        keys.into_iter()
            .map(|key| NewValue {
                key,
                ..self.new_value()
            })
            .collect()
    }

    fn new_value(&mut self) -> NewValue {
        NewValue {
            key: self.key(),
            shape: self.random.pick(self.shapes),
            number: self.random.number(),
            from: self.random.pick(&[From::Owned, From::CallerMemory, From::Pieces]),
        }
    }

    fn get(&mut self) -> Get {
        const DELIVERIES: [Option<Delivery>; 5] = [
            None,
            Some(Delivery::Auto),
            Some(Delivery::Leased),
            Some(Delivery::Copied),
            Some(Delivery::RegisterPerCall),
        ];
        let keys = self.some_keys(true);
        let mut batches = Vec::new();
        if self.random.one_in(3) {
            let start = self.random.index(keys.len() + 1);
            let end = start + self.random.index(keys.len() + 1 - start);
            batches.push(start..end);
            if self.random.one_in(2) {
                batches.push(end..keys.len());
            }
        }
        Get {
            keys,
            batches,
            delivery: self.random.pick(&DELIVERIES),
            described: self.random.one_in(5),
            keeps: self.random.one_in(2),
        }
    }
}
