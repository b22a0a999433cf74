//! Messages about the engine behind a daemon: what it claims, what it is to move, and the results.
use super::field::{Fields, WireError, put_list, put_option, put_short, put_u32, put_u64};
use tensorlease_engine::FaultKind;

/// What the engine behind a daemon can do and wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claims<'a> {
    /// Its name.
    pub name: &'a str,
    /// Longest memory of one transfer, bytes. No extent is longer.
    pub registration_bytes_max: u64,
    /// Most keys of one message.
    pub batch_keys_max: u32,
    /// Most bytes of one message with more than one key.
    pub batch_bytes_max: u64,
    /// More threads than this bring nothing.
    pub readers_worth: u32,
    /// As in the engine's capabilities, bytes.
    pub large_read_bytes_min: u64,
    /// As in the engine's capabilities, bytes.
    pub large_write_bytes_min: u64,
    /// Makes room by itself.
    pub evicts: bool,
    /// Others make room.
    pub others_make_room: bool,
    /// Keeps tags and sizes, and replaces atomically.
    pub describes: bool,
}

/// Bytes of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The extent.
    pub ticket: u64,
    /// First byte, from the extent's beginning.
    pub offset: u64,
    /// Length, bytes.
    pub len: u64,
}

/// One object, or a range of it, to be read into an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetch<'a> {
    /// Key of the object.
    pub key: &'a str,
    /// Size that the whole object must have, bytes.
    pub object_len: u64,
    /// First byte of the object that is wanted.
    pub offset: u64,
    /// Where the bytes go. Its length is the number of bytes that are wanted.
    pub to: Span,
    /// Tag that the object must have. None: any.
    pub tag: Option<&'a [u8]>,
    /// The bytes must come by the engine's transport.
    pub by_transport: bool,
}

/// One object to be written, gathered from extents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store<'a> {
    /// Key of the object.
    pub key: &'a str,
    /// Its bytes, in order.
    pub from: Vec<Span>,
    /// What kind of value it is.
    pub tag: &'a [u8],
}

/// Why one key failed, in the engine's own terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure<'a> {
    /// What may be done about it.
    pub kind: FaultKind,
    /// The engine's own code.
    pub code: i32,
    /// In words.
    pub message: &'a str,
}

/// What one object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Described<'a> {
    /// Size, bytes.
    pub len: u64,
    /// As in the engine's description.
    pub version: u64,
    /// Tag that it was written with.
    pub tag: Option<&'a [u8]>,
}

/// Longest message of a failure, bytes. The messages of a full batch fit in one frame.
pub(crate) const FAILURE_BYTES_MAX: usize = 1024;

const SPAN_BYTES: usize = 3 * 8;
const FETCH_LEAST: usize = 2 + 8 + 8 + SPAN_BYTES + 1 + 1;
const STORE_LEAST: usize = 2 + 4 + 2;
const RESULT_LEAST: usize = 1 + 1;

pub(super) fn put_claims(out: &mut Vec<u8>, claims: &Claims<'_>) {
    put_short(out, claims.name.as_bytes());
    put_u64(out, claims.registration_bytes_max);
    put_u32(out, claims.batch_keys_max);
    put_u64(out, claims.batch_bytes_max);
    put_u32(out, claims.readers_worth);
    put_u64(out, claims.large_read_bytes_min);
    put_u64(out, claims.large_write_bytes_min);
    for claim in [claims.evicts, claims.others_make_room, claims.describes] {
        out.push(u8::from(claim));
    }
}

pub(super) fn claims<'a>(fields: &mut Fields<'a>) -> Result<Claims<'a>, WireError> {
    Ok(Claims {
        name: fields.text("engine")?,
        registration_bytes_max: fields.u64()?,
        batch_keys_max: fields.u32()?,
        batch_bytes_max: fields.u64()?,
        readers_worth: fields.u32()?,
        large_read_bytes_min: fields.u64()?,
        large_write_bytes_min: fields.u64()?,
        evicts: fields.flag("evicts")?,
        others_make_room: fields.flag("others_make_room")?,
        describes: fields.flag("describes")?,
    })
}

fn put_span(out: &mut Vec<u8>, span: &Span) {
    put_u64(out, span.ticket);
    put_u64(out, span.offset);
    put_u64(out, span.len);
}

fn span(fields: &mut Fields<'_>) -> Result<Span, WireError> {
    Ok(Span {
        ticket: fields.u64()?,
        offset: fields.u64()?,
        len: fields.u64()?,
    })
}

pub(super) fn put_fetches(out: &mut Vec<u8>, reads: &[Fetch<'_>]) {
    put_list(out, reads, |out, read| {
        put_short(out, read.key.as_bytes());
        put_u64(out, read.object_len);
        put_u64(out, read.offset);
        put_span(out, &read.to);
        put_option(out, read.tag, put_short);
        out.push(u8::from(read.by_transport));
    });
}

pub(super) fn fetches<'a>(fields: &mut Fields<'a>) -> Result<Vec<Fetch<'a>>, WireError> {
    fields.list(FETCH_LEAST, |fields| {
        Ok(Fetch {
            key: fields.text("key")?,
            object_len: fields.u64()?,
            offset: fields.u64()?,
            to: span(fields)?,
            tag: fields.option("tag", Fields::tag)?,
            by_transport: fields.flag("by_transport")?,
        })
    })
}

pub(super) fn put_stores(out: &mut Vec<u8>, writes: &[Store<'_>]) {
    put_list(out, writes, |out, write| {
        put_short(out, write.key.as_bytes());
        put_list(out, &write.from, put_span);
        put_short(out, write.tag);
    });
}

pub(super) fn stores<'a>(fields: &mut Fields<'a>) -> Result<Vec<Store<'a>>, WireError> {
    fields.list(STORE_LEAST, |fields| {
        Ok(Store {
            key: fields.text("key")?,
            from: fields.list(SPAN_BYTES, span)?,
            tag: fields.tag()?,
        })
    })
}

/// One result per key: what `put` appends, or a failure.
pub(super) fn put_results<T>(out: &mut Vec<u8>, results: &[Result<T, Failure<'_>>], put: impl Fn(&mut Vec<u8>, &T)) {
    put_list(out, results, |out, result| {
        out.push(u8::from(result.is_ok()));
        match result {
            Ok(result) => put(out, result),
            Err(failure) => {
                let place = FaultKind::ALL.iter().position(|kind| *kind == failure.kind);
                // A kind that is not listed is sent as the worst one.
                let place = place.unwrap_or(7);
                out.push(u8::try_from(place).unwrap_or(u8::MAX));
                put_u32(out, failure.code.cast_unsigned());
                put_short(out, failure.message.as_bytes());
            }
        }
    });
}

pub(super) fn results<'a, T>(
    fields: &mut Fields<'a>,
    read: impl Fn(&mut Fields<'a>) -> Result<T, WireError>,
) -> Result<Vec<Result<T, Failure<'a>>>, WireError> {
    fields.list(RESULT_LEAST, |fields| {
        if fields.flag("result")? {
            return read(fields).map(Ok);
        }
        let kind = FaultKind::ALL.get(usize::from(fields.u8()?));
        Ok(Err(Failure {
            kind: *kind.ok_or(WireError::BadField { field: "kind of fault" })?,
            code: fields.u32()?.cast_signed(),
            message: fields.text("message")?,
        }))
    })
}

pub(super) fn put_described(out: &mut Vec<u8>, object: &Option<Described<'_>>) {
    put_option(out, object.as_ref(), |out, object| {
        put_u64(out, object.len);
        put_u64(out, object.version);
        put_option(out, object.tag, put_short);
    });
}

pub(super) fn described<'a>(fields: &mut Fields<'a>) -> Result<Option<Described<'a>>, WireError> {
    fields.option("object", |fields| {
        Ok(Described {
            len: fields.u64()?,
            version: fields.u64()?,
            tag: fields.option("tag", Fields::tag)?,
        })
    })
}
