//! Who holds what.
use super::field::{Fields, WireError, put_list, put_short, put_u32, put_u64};

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
    /// Number of the session. One process may have several.
    pub session: u64,
    /// Process.
    pub pid: u32,
    /// Since it came, milliseconds.
    pub age_ms: u64,
    /// Its socket has ended. Its process lives and may still touch what it holds.
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
    /// Objects that it has read since it came, and their bytes.
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
    /// Their keys up to and with the first `/`. Empty: keys without one.
    pub namespace: String,
    /// What they are.
    pub counts: StoreCounts,
}

/// Who holds what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// What has the objects: `embedded`, the daemon itself, or the name of the engine behind it.
    pub engine: String,
    /// Bytes of extents whose clients are gone. They are kept because a transfer runs, or may still write there.
    pub quarantined_bytes: u64,
    /// The part of `quarantined_bytes` that is kept until the daemon ends, because the engine does not know when its
    /// transfers end.
    pub late_bytes: u64,
    /// Registrations of memory with the engine behind the daemon since it started: one for each slab.
    pub register_calls: u64,
    /// The arena's bound, bytes.
    pub capacity_bytes: u64,
    /// Bytes of whole blocks that are handed out: objects, extents, reservations.
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

const NAMESPACE_BYTES: usize = 2 + 2 * 8;
const CLIENT_NUMBERS: usize = 12;
const CLIENT_BYTES: usize = CLIENT_NUMBERS * 8 + 4 + 1;

impl ClientRow {
    /// All but `pid` and `quarantined`, in the order in which they are sent.
    fn numbers(&mut self) -> [&mut u64; CLIENT_NUMBERS] {
        [
            &mut self.session,
            &mut self.age_ms,
            &mut self.extent_bytes,
            &mut self.pinned_bytes,
            &mut self.pinned_objects,
            &mut self.reserved_bytes,
            &mut self.transfer_bytes,
            &mut self.late_bytes,
            &mut self.read_objects,
            &mut self.read_bytes,
            &mut self.written_objects,
            &mut self.written_bytes,
        ]
    }
}

pub(super) fn put_counts(out: &mut Vec<u8>, counts: StoreCounts) {
    put_u64(out, counts.objects);
    put_u64(out, counts.object_bytes);
}

pub(super) fn counts(fields: &mut Fields<'_>) -> Result<StoreCounts, WireError> {
    Ok(StoreCounts {
        objects: fields.u64()?,
        object_bytes: fields.u64()?,
    })
}

pub(super) fn put_report(out: &mut Vec<u8>, report: &Report) {
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
        let mut row = *row;
        row.numbers().into_iter().for_each(|number| put_u64(out, *number));
    });
    put_list(out, &report.namespaces, |out, row| {
        put_short(out, row.namespace.as_bytes());
        put_counts(out, row.counts);
    });
}

pub(super) fn report(fields: &mut Fields<'_>) -> Result<Report, WireError> {
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
            let mut row = ClientRow {
                pid: fields.u32()?,
                quarantined: fields.flag("quarantined")?,
                ..ClientRow::default()
            };
            for number in row.numbers() {
                *number = fields.u64()?;
            }
            Ok(row)
        })?,
        namespaces: fields.list(NAMESPACE_BYTES, |fields| {
            Ok(NamespaceRow {
                namespace: fields.text("namespace")?.to_owned(),
                counts: counts(fields)?,
            })
        })?,
    })
}
