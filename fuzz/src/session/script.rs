//! Bytes as what a client does: every input is a script, and small changes of it are small changes of the script.

/// What a list of a message is made of at most: enough for every path, and an input stays quick.
const ITEMS_MAX: u8 = 6;

/// Which of the tickets that the daemon has given.
#[derive(Clone, Copy, Debug)]
pub enum Ticket {
    /// The one with this number from the last, if there are so many.
    Known(u8),
    /// As many beside that one.
    Beside(u8, i8),
    /// No number that was ever given.
    Number(u64),
}

/// What is done to the bytes of a message before it is sent.
#[derive(Clone, Copy, Debug)]
pub enum Harm {
    None,
    /// One byte of the frame is another one.
    Change {
        at: u8,
        with: u8,
    },
    /// The end is missing.
    Cut {
        keep: u8,
    },
    /// It is sent twice.
    Twice,
    /// The length says something else.
    Length {
        len: u32,
    },
}

/// A message.
#[derive(Clone, Debug)]
pub enum Ask {
    /// In its lower half byte so many versions of the protocol away from ours, in the upper one the session to be a lane of.
    Hello {
        away: u8,
    },
    Pin {
        separate: bool,
        keys: Vec<u8>,
    },
    Unpin {
        tickets: Vec<Ticket>,
    },
    Exchange {
        commits: Vec<(Ticket, u64, u8)>,
        releases: Vec<Ticket>,
        reserve: Vec<u64>,
    },
    Extent {
        len: u64,
    },
    ReleaseExtent {
        ticket: Ticket,
    },
    Remove {
        keys: Vec<u8>,
    },
    RemovePrefix {
        prefix: u8,
    },
    Contains {
        keys: Vec<u8>,
    },
    Describe {
        keys: Vec<u8>,
    },
    Counts,
    Report,
    Leave,
}

/// One thing that a client does.
#[derive(Clone, Debug)]
pub enum Step {
    Ask(Ask, Harm),
    /// What was sent as the frame with this number is sent again.
    Again(u8),
    Raw(Vec<u8>),
    /// Many questions whose answers nobody takes.
    Flood(u8),
    HangUp,
    /// The process dies before its socket ends.
    Die,
}

/// The steps of an input. The first says hello, unless the input begins otherwise.
pub struct Script<'i> {
    rest: &'i [u8],
    polite: bool,
}

impl<'i> Script<'i> {
    pub fn new(input: &'i [u8]) -> Self {
        let polite = input.first().is_some_and(|first| first % 16 != 0);
        Self { rest: input, polite }
    }

    fn byte(&mut self) -> u8 {
        let (first, rest) = self.rest.split_first().unwrap_or((&0, &[]));
        self.rest = rest;
        *first
    }

    /// Mostly small, now and then at an edge.
    fn number(&mut self) -> u64 {
        let byte = self.byte();
        match byte {
            0..=127 => u64::from(byte) * 64,
            128..=191 => u64::from(byte - 128) << 12,
            192..=223 => 1 << (byte - 192),
            224..=239 => u64::MAX >> (byte - 224),
            _ => (0..8).fold(0, |number, _| number << 8 | u64::from(self.byte())),
        }
    }

    fn ticket(&mut self) -> Ticket {
        let byte = self.byte();
        match byte {
            0..=199 => Ticket::Known(byte % 16),
            200..=231 => Ticket::Beside(byte % 16, i8::from_le_bytes([self.byte()])),
            _ => Ticket::Number(self.number()),
        }
    }

    fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let count = self.byte() % (ITEMS_MAX + 1);
        (0..count).map(|_| item(self)).collect()
    }

    fn ask(&mut self, kind: u8) -> Ask {
        match kind {
            0..=2 => Ask::Pin {
                separate: self.byte() & 1 == 1,
                keys: self.list(Self::byte),
            },
            3 => Ask::Unpin {
                tickets: self.list(Self::ticket),
            },
            4..=8 => Ask::Exchange {
                commits: self.list(|script| (script.ticket(), script.number(), script.byte())),
                releases: self.list(Self::ticket),
                reserve: self.list(Self::number),
            },
            9 | 10 => Ask::Extent { len: self.number() },
            11 => Ask::ReleaseExtent { ticket: self.ticket() },
            12 => Ask::Remove {
                keys: self.list(Self::byte),
            },
            13 => Ask::RemovePrefix { prefix: self.byte() },
            14 => Ask::Contains {
                keys: self.list(Self::byte),
            },
            15 => Ask::Describe {
                keys: self.list(Self::byte),
            },
            16 => Ask::Counts,
            17 => Ask::Report,
            18 => Ask::Leave,
            _ => Ask::Hello { away: self.byte() },
        }
    }

    fn harm(&mut self) -> Harm {
        let byte = self.byte();
        match byte {
            0..=199 => Harm::None,
            200..=219 => Harm::Change {
                at: self.byte(),
                with: self.byte(),
            },
            220..=229 => Harm::Cut { keep: self.byte() },
            230..=245 => Harm::Twice,
            _ => Harm::Length {
                len: u32::try_from(self.number() & u64::from(u32::MAX)).unwrap_or(u32::MAX),
            },
        }
    }
}

impl Iterator for Script<'_> {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        if std::mem::take(&mut self.polite) {
            return Some(Step::Ask(Ask::Hello { away: 0 }, Harm::None));
        }
        if self.rest.is_empty() {
            return None;
        }
        let kind = self.byte() % 28;
        Some(match kind {
            0..=20 => {
                let ask = self.ask(kind);
                Step::Ask(ask, self.harm())
            }
            21..=23 => Step::Again(self.byte()),
            24 => {
                let len = usize::from(self.byte()).min(self.rest.len());
                let (raw, rest) = self.rest.split_at(len);
                self.rest = rest;
                Step::Raw(raw.to_vec())
            }
            25 => Step::Flood(self.byte()),
            26 => Step::HangUp,
            _ => Step::Die,
        })
    }
}
