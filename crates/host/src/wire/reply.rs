//! What the daemon answers.
use super::field::{Fields, Position, WireError, put_list, put_option, put_position, put_short, put_u32, put_u64};
use super::frame::frame;
use super::relay::{self, Claims, Described, Failure};
use super::report::{Report, StoreCounts, counts, put_counts, put_report, report};

/// A slab that an answer names for the first time. Its descriptor comes with the frame, in the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewSlab {
    /// Number of the slab.
    pub slab: u32,
    /// Length, bytes.
    pub len: u64,
}

/// One object that was asked for and is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pinned<'a> {
    /// Where it lies.
    pub position: Position,
    /// Every object that was ever under the key has another number.
    pub version: u64,
    /// What kind of value it is.
    pub tag: &'a [u8],
}

/// One block that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reservation {
    /// It is the client's to fill.
    Block {
        /// Names it in `Exchange` and `ReleaseExtent`.
        ticket: u64,
        /// Where it lies. Its length is the whole block's.
        position: Position,
    },
    /// The arena has no such block now.
    Full {
        /// Bytes that are free, perhaps in pieces.
        free: u64,
    },
}

/// The answer itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// To `Hello`.
    Welcome {
        /// The arena's bound, bytes.
        capacity_bytes: u64,
        /// Number of the session.
        session: u64,
        /// The engine behind the daemon. None: objects lie in the daemon's own arena.
        engine: Option<Claims<'a>>,
    },
    /// To `Pin`, one entry per key. Object i has the ticket `ticket`, or `ticket + i` if they are separate.
    Pinned {
        /// It names nothing if there is no object.
        ticket: u64,
        /// None: no such object.
        objects: Vec<Option<Pinned<'a>>>,
    },
    /// To `Exchange`, when every commit has been done: one entry per block that was asked for.
    Exchanged {
        /// In the order of the request.
        reservations: Vec<Reservation>,
    },
    /// To `Extent`.
    Extent {
        /// The slab, or how much there is.
        reservation: Reservation,
    },
    /// To `Extent`, where the arena can't grow though its bound allows it.
    NoExtent {
        /// In words.
        why: &'a str,
        /// The engine refused to register more memory. Otherwise the system has none.
        registration: bool,
    },
    /// One result per key, to `Fetch` (bytes written), `Store` (0), `Remove` and `Contains` (0 or 1) and `RemovePrefix`
    /// (how many).
    Results {
        /// In the order of the request.
        results: Vec<Result<u64, Failure<'a>>>,
    },
    /// To `Describe`, one entry per key.
    Described {
        /// None: no such object.
        objects: Vec<Result<Option<Described<'a>>, Failure<'a>>>,
    },
    /// To `Counts`.
    Counts(StoreCounts),
    /// To `Report`.
    Report(Report),
    /// The client broke the protocol, or can't be served. It is disconnected after this.
    Refused {
        /// In words.
        why: &'a str,
    },
}

/// One message of the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply<'a> {
    /// Slabs that the answer names for the first time.
    pub slabs: Vec<NewSlab>,
    /// The answer.
    pub answer: Answer<'a>,
}

const WELCOME: u8 = 1;
const PINNED: u8 = 2;
const EXCHANGED: u8 = 3;
const EXTENT: u8 = 4;
const COUNTS: u8 = 8;
const REPORT: u8 = 9;
const REFUSED: u8 = 10;
const RESULTS: u8 = 11;
const DESCRIBED: u8 = 12;
const NO_EXTENT: u8 = 13;

/// How an entry of a list of objects begins.
const ABSENT: u8 = 0;
/// The object has the tag of the object before. Most objects of a batch have one tag.
const SAME_TAG: u8 = 1;
const OWN_TAG: u8 = 2;

const SLAB_BYTES: usize = 4 + 8;

impl<'a> Reply<'a> {
    /// Appends the message as one frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        frame(out, |out| {
            put_list(out, &self.slabs, |out, slab| {
                put_u32(out, slab.slab);
                put_u64(out, slab.len);
            });
            self.answer.encode(out);
        });
    }

    /// The message that a body is.
    ///
    /// # Errors
    /// [`WireError`] for anything that no daemon sends.
    pub fn decode(body: &'a [u8]) -> Result<Self, WireError> {
        let mut fields = Fields::new(body);
        let slabs = fields.list(SLAB_BYTES, |fields| {
            Ok(NewSlab {
                slab: fields.u32()?,
                len: fields.u64()?,
            })
        })?;
        let answer = Answer::decode(&mut fields)?;
        fields.end()?;
        Ok(Self { slabs, answer })
    }
}

impl<'a> Answer<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Welcome {
                capacity_bytes,
                session,
                engine,
            } => {
                out.push(WELCOME);
                put_u64(out, *capacity_bytes);
                put_u64(out, *session);
                put_option(out, engine.as_ref(), relay::put_claims);
            }
            Self::Pinned { ticket, objects } => {
                out.push(PINNED);
                put_u64(out, *ticket);
                put_pinned(out, objects);
            }
            Self::Exchanged { reservations } => {
                out.push(EXCHANGED);
                put_list(out, reservations, put_reservation);
            }
            Self::Extent { reservation } => {
                out.push(EXTENT);
                put_reservation(out, reservation);
            }
            Self::NoExtent { why, registration } => {
                out.push(NO_EXTENT);
                out.push(u8::from(*registration));
                put_short(out, why.as_bytes());
            }
            Self::Results { results } => {
                out.push(RESULTS);
                relay::put_results(out, results, |out, number| put_u64(out, *number));
            }
            Self::Described { objects } => {
                out.push(DESCRIBED);
                relay::put_results(out, objects, relay::put_described);
            }
            Self::Counts(counts) => {
                out.push(COUNTS);
                put_counts(out, *counts);
            }
            Self::Report(report) => {
                out.push(REPORT);
                put_report(out, report);
            }
            Self::Refused { why } => {
                out.push(REFUSED);
                put_short(out, why.as_bytes());
            }
        }
    }

    fn decode(fields: &mut Fields<'a>) -> Result<Self, WireError> {
        let kind = fields.u8()?;
        Ok(match kind {
            WELCOME => Self::Welcome {
                capacity_bytes: fields.u64()?,
                session: fields.u64()?,
                engine: fields.option("engine", relay::claims)?,
            },
            PINNED => Self::Pinned {
                ticket: fields.u64()?,
                objects: pinned(fields)?,
            },
            EXCHANGED => Self::Exchanged {
                reservations: fields.list(9, reservation)?,
            },
            EXTENT => Self::Extent {
                reservation: reservation(fields)?,
            },
            NO_EXTENT => Self::NoExtent {
                registration: fields.flag("registration")?,
                why: fields.text("why")?,
            },
            RESULTS => Self::Results {
                results: relay::results(fields, Fields::u64)?,
            },
            DESCRIBED => Self::Described {
                objects: relay::results(fields, relay::described)?,
            },
            COUNTS => Self::Counts(counts(fields)?),
            REPORT => Self::Report(report(fields)?),
            REFUSED => Self::Refused {
                why: fields.text("why")?,
            },
            kind => return Err(WireError::UnknownKind { kind }),
        })
    }
}

fn put_pinned(out: &mut Vec<u8>, objects: &[Option<Pinned<'_>>]) {
    let mut last = None;
    put_list(out, objects, |out, object| {
        let Some(Pinned { position, version, tag }) = object else {
            return out.push(ABSENT);
        };
        let same = last.replace(*tag) == Some(*tag);
        out.push(if same { SAME_TAG } else { OWN_TAG });
        put_position(out, *position);
        put_u64(out, *version);
        if !same {
            put_short(out, tag);
        }
    });
}

fn pinned<'a>(fields: &mut Fields<'a>) -> Result<Vec<Option<Pinned<'a>>>, WireError> {
    let mut last = None;
    fields.list(1, |fields| {
        let kind = fields.u8()?;
        if kind == ABSENT {
            return Ok(None);
        }
        let (position, version) = (fields.position()?, fields.u64()?);
        let tag = match (kind, last) {
            (SAME_TAG, Some(tag)) => tag,
            (OWN_TAG, _) => fields.tag()?,
            _ => return Err(WireError::BadField { field: "object" }),
        };
        last = Some(tag);
        Ok(Some(Pinned { position, version, tag }))
    })
}

fn put_reservation(out: &mut Vec<u8>, reservation: &Reservation) {
    match reservation {
        Reservation::Block { ticket, position } => {
            out.push(1);
            put_u64(out, *ticket);
            put_position(out, *position);
        }
        Reservation::Full { free } => {
            out.push(0);
            put_u64(out, *free);
        }
    }
}

fn reservation(fields: &mut Fields<'_>) -> Result<Reservation, WireError> {
    if !fields.flag("reservation")? {
        return Ok(Reservation::Full { free: fields.u64()? });
    }
    Ok(Reservation::Block {
        ticket: fields.u64()?,
        position: fields.position()?,
    })
}
