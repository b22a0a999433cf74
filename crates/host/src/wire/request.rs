//! What a client asks.
use super::field::{Fields, WireError, put_list, put_short, put_u16, put_u32, put_u64};
use super::frame::{MAGIC, frame};
use super::relay::{self, Fetch, Store};

/// A reserved block becomes an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commit<'a> {
    /// The reservation.
    pub ticket: u64,
    /// Bytes of the block that are the object's.
    pub len: u64,
    /// Key of the object.
    pub key: &'a str,
    /// What kind of value it is.
    pub tag: &'a [u8],
}

/// One message of a client. [`is_answered`](Self::is_answered) says which of them get an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// The first message.
    Hello {
        /// Of the protocol.
        version: u16,
        /// 0: a new session. Otherwise the session of the same process that this connection is a lane of.
        lane_of: u64,
    },
    /// Where do these objects lie? They stay as they are until they are unpinned.
    Pin {
        /// A ticket for each object, instead of one for all.
        separate: bool,
        /// Their keys.
        keys: Vec<&'a str>,
    },
    /// These pins have ended.
    Unpin {
        /// What `Pinned` brought.
        tickets: Vec<u64>,
    },
    /// Reserved blocks become objects, others are given back, and more are asked for.
    Exchange {
        /// In this order.
        commits: Vec<Commit<'a>>,
        /// Reservations that are not needed.
        releases: Vec<u64>,
        /// Bytes of each block that is wanted.
        reserve: Vec<u64>,
    },
    /// A slab for the client's own arena.
    Extent {
        /// Bytes, whole pages.
        len: u64,
    },
    /// A slab goes back.
    ReleaseExtent {
        /// What `Extent` brought.
        ticket: u64,
    },
    /// Removes objects.
    Remove {
        /// Their keys.
        keys: Vec<&'a str>,
    },
    /// Removes every object whose key starts with it.
    RemovePrefix {
        /// May be empty.
        prefix: &'a str,
    },
    /// Are these objects there?
    Contains {
        /// Their keys.
        keys: Vec<&'a str>,
    },
    /// What are these objects?
    Describe {
        /// Their keys.
        keys: Vec<&'a str>,
    },
    /// How much does the store hold?
    Counts,
    /// Who holds what?
    Report,
    /// On a lane: objects of the engine behind the daemon, into extents.
    Fetch {
        /// At most as many as that engine takes.
        reads: Vec<Fetch<'a>>,
    },
    /// On a lane: objects for the engine behind the daemon, out of extents.
    Store {
        /// At most as many as that engine takes.
        writes: Vec<Store<'a>>,
    },
    /// The client asks for nothing more. Its reservations end. It gives back its extents and what it still reads in
    /// place one by one.
    Leave,
}

const HELLO: u8 = 1;
const PIN: u8 = 2;
const UNPIN: u8 = 3;
const EXCHANGE: u8 = 4;
const EXTENT: u8 = 5;
const RELEASE_EXTENT: u8 = 6;
const REMOVE: u8 = 7;
const REMOVE_PREFIX: u8 = 8;
const CONTAINS: u8 = 9;
const DESCRIBE: u8 = 10;
const COUNTS: u8 = 11;
const REPORT: u8 = 12;
const LEAVE: u8 = 13;
const FETCH: u8 = 14;
const STORE: u8 = 15;

/// The version that the sender of a hello speaks, also where the rest of the hello is of another version. None: it is
/// no hello.
pub fn version_of_hello(body: &[u8]) -> Option<u16> {
    let mut fields = Fields::new(body);
    let is_hello = fields.u8().ok()? == HELLO && fields.u32().ok()? == MAGIC;
    is_hello.then(|| fields.u16().ok()).flatten()
}

/// A key is at least its length.
const KEY_LEAST: usize = 2;
const COMMIT_LEAST: usize = 8 + 8 + 2 + 2;

impl<'a> Request<'a> {
    /// Does the daemon answer this message? What gives something back gets no answer.
    pub fn is_answered(&self) -> bool {
        match self {
            Self::Unpin { .. } | Self::ReleaseExtent { .. } | Self::Leave => false,
            Self::Hello { .. }
            | Self::Pin { .. }
            | Self::Exchange { .. }
            | Self::Extent { .. }
            | Self::Remove { .. }
            | Self::RemovePrefix { .. }
            | Self::Contains { .. }
            | Self::Describe { .. }
            | Self::Counts
            | Self::Report
            | Self::Fetch { .. }
            | Self::Store { .. } => true,
        }
    }

    /// Appends the message as one frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        frame(out, |out| self.encode_body(out));
    }

    fn encode_body(&self, out: &mut Vec<u8>) {
        match self {
            Self::Hello { version, lane_of } => {
                out.push(HELLO);
                put_u32(out, MAGIC);
                put_u16(out, *version);
                put_u64(out, *lane_of);
            }
            Self::Pin { separate, keys } => {
                out.push(PIN);
                out.push(u8::from(*separate));
                put_keys(out, keys);
            }
            Self::Unpin { tickets } => {
                out.push(UNPIN);
                put_list(out, tickets, |out, ticket| put_u64(out, *ticket));
            }
            Self::Exchange {
                commits,
                releases,
                reserve,
            } => {
                out.push(EXCHANGE);
                put_list(out, commits, put_commit);
                put_list(out, releases, |out, ticket| put_u64(out, *ticket));
                put_list(out, reserve, |out, len| put_u64(out, *len));
            }
            Self::Extent { len } => {
                out.push(EXTENT);
                put_u64(out, *len);
            }
            Self::ReleaseExtent { ticket } => {
                out.push(RELEASE_EXTENT);
                put_u64(out, *ticket);
            }
            Self::RemovePrefix { prefix } => {
                out.push(REMOVE_PREFIX);
                put_short(out, prefix.as_bytes());
            }
            Self::Remove { keys } => put_kind_and_keys(out, REMOVE, keys),
            Self::Contains { keys } => put_kind_and_keys(out, CONTAINS, keys),
            Self::Describe { keys } => put_kind_and_keys(out, DESCRIBE, keys),
            Self::Counts => out.push(COUNTS),
            Self::Report => out.push(REPORT),
            Self::Leave => out.push(LEAVE),
            Self::Fetch { reads } => {
                out.push(FETCH);
                relay::put_fetches(out, reads);
            }
            Self::Store { writes } => {
                out.push(STORE);
                relay::put_stores(out, writes);
            }
        }
    }

    /// The message that a body is.
    ///
    /// # Errors
    /// [`WireError`] for anything that no client sends.
    pub fn decode(body: &'a [u8]) -> Result<Self, WireError> {
        let mut fields = Fields::new(body);
        let kind = fields.u8()?;
        let request = match kind {
            HELLO => {
                if fields.u32()? != MAGIC {
                    return Err(WireError::BadField { field: "magic" });
                }
                Self::Hello {
                    version: fields.u16()?,
                    lane_of: fields.u64()?,
                }
            }
            PIN => Self::Pin {
                separate: fields.flag("separate")?,
                keys: keys(&mut fields)?,
            },
            UNPIN => Self::Unpin {
                tickets: fields.list(8, Fields::u64)?,
            },
            EXCHANGE => Self::Exchange {
                commits: fields.list(COMMIT_LEAST, commit)?,
                releases: fields.list(8, Fields::u64)?,
                reserve: fields.list(8, Fields::u64)?,
            },
            EXTENT => Self::Extent { len: fields.u64()? },
            RELEASE_EXTENT => Self::ReleaseExtent { ticket: fields.u64()? },
            REMOVE => Self::Remove {
                keys: keys(&mut fields)?,
            },
            REMOVE_PREFIX => Self::RemovePrefix {
                prefix: fields.text("prefix")?,
            },
            CONTAINS => Self::Contains {
                keys: keys(&mut fields)?,
            },
            DESCRIBE => Self::Describe {
                keys: keys(&mut fields)?,
            },
            COUNTS => Self::Counts,
            REPORT => Self::Report,
            LEAVE => Self::Leave,
            FETCH => Self::Fetch {
                reads: relay::fetches(&mut fields)?,
            },
            STORE => Self::Store {
                writes: relay::stores(&mut fields)?,
            },
            kind => return Err(WireError::UnknownKind { kind }),
        };
        fields.end()?;
        Ok(request)
    }
}

fn keys<'a>(fields: &mut Fields<'a>) -> Result<Vec<&'a str>, WireError> {
    fields.list(KEY_LEAST, |fields| fields.text("key"))
}

fn commit<'a>(fields: &mut Fields<'a>) -> Result<Commit<'a>, WireError> {
    Ok(Commit {
        ticket: fields.u64()?,
        len: fields.u64()?,
        key: fields.text("key")?,
        tag: fields.tag()?,
    })
}

fn put_commit(out: &mut Vec<u8>, commit: &Commit<'_>) {
    put_u64(out, commit.ticket);
    put_u64(out, commit.len);
    put_short(out, commit.key.as_bytes());
    put_short(out, commit.tag);
}

fn put_kind_and_keys(out: &mut Vec<u8>, kind: u8, keys: &[&str]) {
    out.push(kind);
    put_keys(out, keys);
}

fn put_keys(out: &mut Vec<u8>, keys: &[&str]) {
    put_list(out, keys, |out, key| put_short(out, key.as_bytes()));
}
