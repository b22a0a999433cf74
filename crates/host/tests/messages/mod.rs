//! One message of each kind, and more of a kind that has several forms.
use tensorlease_engine::FaultKind;
use tensorlease_host::wire::{
    Answer, Claims, ClientRow, Commit, Described, Failure, Fetch, NamespaceRow, NewSlab, Pinned, Position, Reply,
    Report, Request, Reservation, Span, Store, StoreCounts, VERSION,
};

pub(crate) const POSITION: Position = Position {
    slab: 3,
    offset: 1 << 40,
    len: 77,
    generation: 9,
};

const SPAN: Span = Span {
    ticket: 1,
    offset: 2,
    len: u64::MAX,
};

const CLAIMS: Claims<'static> = Claims {
    name: "mooncake",
    registration_bytes_max: 1,
    batch_keys_max: 2,
    batch_bytes_max: 3,
    readers_worth: 4,
    large_read_bytes_min: 5,
    large_write_bytes_min: 6,
    evicts: true,
    others_make_room: false,
    describes: true,
};

const COUNTS: StoreCounts = StoreCounts {
    objects: 1,
    object_bytes: 2,
};

fn fetch(tag: Option<&[u8]>) -> Fetch<'_> {
    Fetch {
        key: "schlüssel",
        object_len: 10,
        offset: 3,
        to: SPAN,
        tag,
        by_transport: true,
    }
}

fn keys() -> Vec<&'static str> {
    vec!["", "a", "schlüssel\0"]
}

/// Every kind of request.
pub(crate) fn requests() -> Vec<Request<'static>> {
    vec![
        Request::Hello {
            version: VERSION,
            lane_of: 7,
        },
        Request::Pin {
            separate: true,
            keys: keys(),
        },
        Request::Unpin {
            tickets: vec![0, u64::MAX],
        },
        Request::Exchange {
            commits: vec![Commit {
                ticket: 1,
                len: 2,
                key: "key",
                tag: b"tag",
            }],
            releases: vec![4],
            reserve: vec![5, 6],
        },
        Request::Extent { len: 4096 },
        Request::ReleaseExtent { ticket: 7 },
        Request::Remove { keys: keys() },
        Request::RemovePrefix { prefix: "" },
        Request::Contains { keys: keys() },
        Request::Describe { keys: Vec::new() },
        Request::Counts,
        Request::Report,
        Request::Leave,
        Request::Fetch {
            reads: vec![fetch(None), fetch(Some(b"")), fetch(Some(b"f32 3"))],
        },
        Request::Store {
            writes: vec![
                Store {
                    key: "a",
                    from: vec![SPAN, SPAN],
                    tag: b"tag",
                },
                Store {
                    key: "",
                    from: Vec::new(),
                    tag: b"",
                },
            ],
        },
    ]
}

fn pinned(tag: &[u8]) -> Option<Pinned<'_>> {
    Some(Pinned {
        position: POSITION,
        version: 5,
        tag,
    })
}

fn described(tag: Option<&[u8]>) -> Result<Option<Described<'_>>, Failure<'_>> {
    Ok(Some(Described {
        len: 1,
        version: 2,
        tag,
    }))
}

fn failed<T>(kind: FaultKind, code: i32, message: &str) -> Result<T, Failure<'_>> {
    Err(Failure { kind, code, message })
}

fn report() -> Report {
    Report {
        engine: "engine".to_owned(),
        quarantined_bytes: 8,
        late_bytes: 7,
        register_calls: 9,
        capacity_bytes: 1,
        held_bytes: 2,
        counts: COUNTS,
        pid: 3,
        age_ms: 4,
        clients: vec![ClientRow {
            session: 1,
            pid: 2,
            age_ms: 3,
            quarantined: true,
            extent_bytes: 4,
            pinned_bytes: 5,
            pinned_objects: 6,
            reserved_bytes: 7,
            transfer_bytes: 8,
            late_bytes: 9,
            read_objects: 10,
            read_bytes: 11,
            written_objects: 12,
            written_bytes: 13,
        }],
        namespaces: vec![NamespaceRow {
            namespace: "run17/".to_owned(),
            counts: COUNTS,
        }],
    }
}

fn answers() -> Vec<Answer<'static>> {
    let block = Reservation::Block {
        ticket: 8,
        position: POSITION,
    };
    let failures = FaultKind::ALL.iter().map(|kind| failed(*kind, -704, "so"));
    vec![
        Answer::Welcome {
            capacity_bytes: 1,
            session: 2,
            engine: None,
        },
        Answer::Welcome {
            capacity_bytes: 1,
            session: 2,
            engine: Some(CLAIMS),
        },
        Answer::Pinned {
            ticket: 1,
            objects: vec![None, pinned(b"a"), None, pinned(b"a"), pinned(b"b"), pinned(b"")],
        },
        Answer::Exchanged {
            reservations: vec![block, Reservation::Full { free: 3 }],
        },
        Answer::Extent { reservation: block },
        Answer::Extent {
            reservation: Reservation::Full { free: 3 },
        },
        Answer::NoExtent {
            why: "no locked memory",
            registration: true,
        },
        Answer::NoExtent {
            why: "",
            registration: false,
        },
        Answer::Results {
            results: [Ok(7), Ok(u64::MAX)].into_iter().chain(failures).collect(),
        },
        Answer::Described {
            objects: vec![
                described(None),
                Ok(None),
                failed(FaultKind::MayStillWrite, i32::MIN, ""),
                described(Some(b"tag")),
            ],
        },
        Answer::Counts(COUNTS),
        Answer::Report(report()),
        Answer::Refused { why: "no" },
    ]
}

/// Every kind of answer. Some of them name a new slab.
pub(crate) fn replies() -> Vec<Reply<'static>> {
    let reply = |answer| Reply {
        slabs: match answer {
            Answer::Extent { .. } => vec![NewSlab { slab: 1, len: 4096 }],
            _ => Vec::new(),
        },
        answer,
    };
    answers().into_iter().map(reply).collect()
}
