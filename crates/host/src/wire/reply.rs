//! What the daemon answers.
use super::field::{Fields, Position, WireError, put_list, put_position, put_short, put_u32, put_u64};
use super::frame::frame;
use super::relay::{self, Claims, Failure, Known};

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
    /// Another number for every object that was ever under the key.
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
        /// Where it lies; its length is the whole block's.
        position: Position,
    },
    /// The arena has no such block now.
    Full {
        /// Bytes that are free, perhaps in pieces.
        free: u64,
    },
}

/// What one object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Described<'a> {
    /// Size, bytes.
    pub len: u64,
    /// As in [`Pinned`].
    pub version: u64,
    /// What kind of value it is.
    pub tag: &'a [u8],
}

/// How much the store holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreCounts {
    /// Objects.
    pub objects: u64,
    /// Their bytes, without padding.
    pub object_bytes: u64,
}

/// What one client holds, and has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientRow {
    /// Number of the session; one process may have several.
    pub session: u64,
    /// Process.
    pub pid: u32,
    /// Since it came, milliseconds.
    pub age_ms: u64,
    /// Its socket has ended, its process lives and may still touch what it holds.
    pub quarantined: bool,
    /// Slabs of its own arena, bytes.
    pub extent_bytes: u64,
    /// Objects that it reads or views, bytes, and how many.
    pub pinned_bytes: u64,
    /// See `pinned_bytes`.
    pub pinned_objects: u64,
    /// Blocks that it may be filling, bytes.
    pub reserved_bytes: u64,
    /// Bytes that the daemon's engine moves for it just now.
    pub transfer_bytes: u64,
    /// Bytes of its extents that transfers which failed may still write.
    pub late_bytes: u64,
    /// Objects that it was shown since it came, and their bytes.
    pub read_objects: u64,
    /// See `read_objects`.
    pub read_bytes: u64,
    /// Objects that it wrote since it came, and their bytes.
    pub written_objects: u64,
    /// See `written_objects`.
    pub written_bytes: u64,
}

/// Objects whose keys begin alike.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceRow {
    /// The part of their keys up to the first `/`, with it. Empty: keys without one.
    pub namespace: String,
    /// What they are.
    pub counts: StoreCounts,
}

/// Who holds what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// What holds the objects: a store of the daemon's own, or the name of the engine behind it.
    pub engine: String,
    /// Extents of clients that are gone, bytes, which are kept because a transfer runs, or may still write there.
    pub quarantined_bytes: u64,
    /// The part of `quarantined_bytes` that is kept until the daemon ends, since the engine does not know when its transfers end.
    pub late_bytes: u64,
    /// Registrations of memory with the engine behind the daemon since it started: one for each slab, whoever uses it.
    pub register_calls: u64,
    /// The arena's bound, bytes.
    pub capacity_bytes: u64,
    /// Bytes of whole blocks that are out: objects, extents, reservations.
    pub held_bytes: u64,
    /// What the store holds.
    pub counts: StoreCounts,
    /// Process of the daemon.
    pub pid: u32,
    /// Since the daemon started, milliseconds.
    pub age_ms: u64,
    /// One row per client.
    pub clients: Vec<ClientRow>,
    /// The namespaces that hold the most bytes, those first. Empty where an engine behind the daemon has the objects.
    pub namespaces: Vec<NamespaceRow>,
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
        /// See above. Without any object it names nothing.
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
    /// To `Extent`, where the arena has none and can't grow, though its bound allows it.
    NoExtent {
        /// In words.
        why: &'a str,
        /// It is the engine that refused to register more, and not the system that has no memory.
        registration: bool,
    },
    /// To `Remove` and `Contains`: was it there?
    Flags {
        /// One per key.
        flags: Vec<bool>,
    },
    /// To `RemovePrefix`.
    Removed {
        /// How many there were.
        count: u64,
    },
    /// To `Describe`, one entry per key.
    Described {
        /// None: no such object.
        objects: Vec<Option<Described<'a>>>,
    },
    /// On a lane, to `Fetch` (bytes written), `Store` (0), `Remove` and `Contains` (0 or 1) and `RemovePrefix` (how many).
    Results {
        /// One per key.
        results: Vec<Result<u64, Failure<'a>>>,
    },
    /// On a lane, to `Describe`, one entry per key.
    Known {
        /// None: no such object.
        objects: Vec<Result<Option<Known<'a>>, Failure<'a>>>,
    },
    /// To `Counts`.
    Counts(StoreCounts),
    /// To `Report`.
    Report(Report),
    /// The client did what no client does: it is disconnected after this.
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
const FLAGS: u8 = 5;
const REMOVED: u8 = 6;
const DESCRIBED: u8 = 7;
const COUNTS: u8 = 8;
const REPORT: u8 = 9;
const REFUSED: u8 = 10;
const RESULTS: u8 = 11;
const KNOWN: u8 = 12;
const NO_EXTENT: u8 = 13;

/// How an entry of a list of objects begins.
const ABSENT: u8 = 0;
/// The tag is that of the object before: most objects of a batch have one.
const SAME_TAG: u8 = 1;
const OWN_TAG: u8 = 2;

const SLAB_BYTES: usize = 4 + 8;
const CLIENT_BYTES: usize = 12 * 8 + 4 + 1;
const NAMESPACE_BYTES: usize = 2 + 2 * 8;

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
                put_engine(out, engine.as_ref());
            }
            Self::Pinned { ticket, objects } => {
                out.push(PINNED);
                put_u64(out, *ticket);
                put_objects(out, objects, |out, pinned| {
                    put_position(out, pinned.position);
                    put_u64(out, pinned.version);
                    pinned.tag
                });
            }
            Self::Exchanged { reservations } => {
                out.push(EXCHANGED);
                put_list(out, reservations, put_reservation);
            }
            Self::Extent { reservation } => {
                out.push(EXTENT);
                put_reservation(out, reservation);
            }
            Self::NoExtent { why, registration } => put_no_extent(out, why, *registration),
            Self::Flags { flags } => {
                out.push(FLAGS);
                put_list(out, flags, |out, flag| out.push(u8::from(*flag)));
            }
            Self::Removed { count } => {
                out.push(REMOVED);
                put_u64(out, *count);
            }
            Self::Described { objects } => {
                out.push(DESCRIBED);
                put_objects(out, objects, |out, described| {
                    put_u64(out, described.len);
                    put_u64(out, described.version);
                    described.tag
                });
            }
            Self::Results { results } => {
                out.push(RESULTS);
                relay::put_results(out, results, |out, number| put_u64(out, *number));
            }
            Self::Known { objects } => {
                out.push(KNOWN);
                relay::put_results(out, objects, relay::put_known);
            }
            Self::Counts(counts) => {
                out.push(COUNTS);
                put_counts(out, *counts);
            }
            Self::Report(report) => {
                out.push(REPORT);
                put_report(out, report);
            }
            Self::Refused { why } => put_refused(out, why),
        }
    }

    fn decode(fields: &mut Fields<'a>) -> Result<Self, WireError> {
        let kind = fields.u8()?;
        Ok(match kind {
            WELCOME => Self::Welcome {
                capacity_bytes: fields.u64()?,
                session: fields.u64()?,
                engine: fields.flag("engine")?.then(|| relay::claims(fields)).transpose()?,
            },
            PINNED => Self::Pinned {
                ticket: fields.u64()?,
                objects: objects(fields, |fields| Ok((fields.position()?, fields.u64()?)), pinned)?,
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
            FLAGS => Self::Flags {
                flags: fields.list(1, |fields| fields.flag("flag"))?,
            },
            REMOVED => Self::Removed { count: fields.u64()? },
            DESCRIBED => Self::Described {
                objects: objects(fields, |fields| Ok((fields.u64()?, fields.u64()?)), described)?,
            },
            RESULTS => Self::Results {
                results: relay::results(fields, Fields::u64)?,
            },
            KNOWN => Self::Known {
                objects: relay::results(fields, relay::known)?,
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

fn pinned((position, version): (Position, u64), tag: &[u8]) -> Pinned<'_> {
    Pinned { position, version, tag }
}

fn described((len, version): (u64, u64), tag: &[u8]) -> Described<'_> {
    Described { len, version, tag }
}

/// `write` appends an object without its tag, which it returns.
fn put_objects<'o, T>(out: &mut Vec<u8>, objects: &'o [Option<T>], write: impl Fn(&mut Vec<u8>, &'o T) -> &'o [u8]) {
    let mut last: Option<&[u8]> = None;
    put_u32(out, u32::try_from(objects.len()).unwrap_or(u32::MAX));
    for object in objects {
        let at = out.len();
        out.push(ABSENT);
        let Some(object) = object else { continue };
        let tag = write(out, object);
        if last == Some(tag) {
            out[at] = SAME_TAG;
        } else {
            out[at] = OWN_TAG;
            put_short(out, tag);
            last = Some(tag);
        }
    }
}

fn objects<'a, T, O>(
    fields: &mut Fields<'a>,
    read: impl Fn(&mut Fields<'a>) -> Result<T, WireError>,
    object: impl Fn(T, &'a [u8]) -> O,
) -> Result<Vec<Option<O>>, WireError> {
    let mut last: Option<&'a [u8]> = None;
    fields.list(1, |fields| {
        let kind = fields.u8()?;
        if kind == ABSENT {
            return Ok(None);
        }
        let facts = read(fields)?;
        let tag = match (kind, last) {
            (SAME_TAG, Some(tag)) => tag,
            (OWN_TAG, _) => fields.tag()?,
            _ => return Err(WireError::BadField { field: "object" }),
        };
        last = Some(tag);
        Ok(Some(object(facts, tag)))
    })
}

fn put_refused(out: &mut Vec<u8>, why: &str) {
    out.push(REFUSED);
    put_short(out, why.as_bytes());
}

fn put_no_extent(out: &mut Vec<u8>, why: &str, registration: bool) {
    out.push(NO_EXTENT);
    out.push(u8::from(registration));
    put_short(out, why.as_bytes());
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

fn put_engine(out: &mut Vec<u8>, engine: Option<&Claims<'_>>) {
    out.push(u8::from(engine.is_some()));
    if let Some(claims) = engine {
        relay::put_claims(out, claims);
    }
}

fn put_counts(out: &mut Vec<u8>, counts: StoreCounts) {
    put_u64(out, counts.objects);
    put_u64(out, counts.object_bytes);
}

fn counts(fields: &mut Fields<'_>) -> Result<StoreCounts, WireError> {
    Ok(StoreCounts {
        objects: fields.u64()?,
        object_bytes: fields.u64()?,
    })
}

fn put_report(out: &mut Vec<u8>, report: &Report) {
    put_short(out, report.engine.as_bytes());
    put_u64(out, report.quarantined_bytes);
    put_u64(out, report.late_bytes);
    put_u64(out, report.register_calls);
    put_u64(out, report.capacity_bytes);
    put_u64(out, report.held_bytes);
    put_counts(out, report.counts);
    put_u32(out, report.pid);
    put_u64(out, report.age_ms);
    put_list(out, &report.clients, |out, row| {
        put_u32(out, row.pid);
        out.push(u8::from(row.quarantined));
        for number in [
            row.session,
            row.age_ms,
            row.extent_bytes,
            row.pinned_bytes,
            row.pinned_objects,
            row.reserved_bytes,
            row.transfer_bytes,
            row.late_bytes,
            row.read_objects,
            row.read_bytes,
            row.written_objects,
            row.written_bytes,
        ] {
            put_u64(out, number);
        }
    });
    put_list(out, &report.namespaces, |out, row| {
        put_short(out, row.namespace.as_bytes());
        put_counts(out, row.counts);
    });
}

fn report(fields: &mut Fields<'_>) -> Result<Report, WireError> {
    Ok(Report {
        engine: fields.text("engine")?.to_owned(),
        quarantined_bytes: fields.u64()?,
        late_bytes: fields.u64()?,
        register_calls: fields.u64()?,
        capacity_bytes: fields.u64()?,
        held_bytes: fields.u64()?,
        counts: counts(fields)?,
        pid: fields.u32()?,
        age_ms: fields.u64()?,
        clients: fields.list(CLIENT_BYTES, |fields| {
            Ok(ClientRow {
                pid: fields.u32()?,
                quarantined: fields.flag("quarantined")?,
                session: fields.u64()?,
                age_ms: fields.u64()?,
                extent_bytes: fields.u64()?,
                pinned_bytes: fields.u64()?,
                pinned_objects: fields.u64()?,
                reserved_bytes: fields.u64()?,
                transfer_bytes: fields.u64()?,
                late_bytes: fields.u64()?,
                read_objects: fields.u64()?,
                read_bytes: fields.u64()?,
                written_objects: fields.u64()?,
                written_bytes: fields.u64()?,
            })
        })?,
        namespaces: fields.list(NAMESPACE_BYTES, |fields| {
            Ok(NamespaceRow {
                namespace: fields.text("namespace")?.to_owned(),
                counts: counts(fields)?,
            })
        })?,
    })
}
