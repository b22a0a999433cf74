//! Breaches of the protocol. Each is committed on a connection of its own, which the daemon must end.
use crate::support::RawClient;
use tensorlease_host::SocketPath;
use tensorlease_host::wire::{Answer, Commit, Request, Reservation, VERSION};

type Lie = fn(&mut RawClient, &SocketPath);

const LIES: [(&str, Lie); 14] = [
    ("an unknown ticket", |client, _| client.tell(&commit(99, 10))),
    ("an object longer than its block", |client, _| {
        let ticket = reservation(client);
        client.tell(&commit(ticket, 5000));
    }),
    ("an empty object", |client, _| {
        let ticket = reservation(client);
        client.tell(&commit(ticket, 0));
    }),
    ("a message again", |client, _| {
        let ticket = reservation(client);
        client.ask(&commit(ticket, 10));
        client.tell(&commit(ticket, 10));
    }),
    ("a reservation named twice", |client, _| {
        let ticket = reservation(client);
        client.tell(&Request::Exchange {
            commits: Vec::new(),
            releases: vec![ticket, ticket],
            reserve: Vec::new(),
        });
    }),
    ("another's ticket", |client, socket| {
        let mut other = RawClient::welcomed(socket);
        reservation(&mut other);
        let ticket = reservation(&mut other);
        client.tell(&commit(ticket, 10));
    }),
    ("a pin that there is not", |client, _| {
        client.tell(&Request::Unpin { tickets: vec![1] });
    }),
    ("an extent that there is not", |client, _| {
        client.tell(&Request::ReleaseExtent { ticket: 1 });
    }),
    ("an extent that is no pages", |client, _| {
        client.tell(&Request::Extent { len: 100 });
    }),
    ("hello twice", |client, _| {
        client.tell(&Request::Hello {
            version: VERSION,
            lane_of: 0,
        });
    }),
    ("a frame that is too long", |client, _| {
        client.send(&u32::MAX.to_le_bytes());
    }),
    ("an empty frame", |client, _| client.send(&[0, 0, 0, 0])),
    ("an unknown kind", |client, _| client.send(&[1, 0, 0, 0, 200])),
    ("half a message", |client, _| {
        client.send(&[9, 0, 0, 0, 3, 1]);
        client.hang_up();
    }),
];

fn reservation(client: &mut RawClient) -> u64 {
    let reply = client.ask(&Request::Exchange {
        commits: Vec::new(),
        releases: Vec::new(),
        reserve: vec![1000],
    });
    match reply.answer {
        Answer::Exchanged { reservations } => match reservations[0] {
            Reservation::Block { ticket, .. } => ticket,
            Reservation::Full { .. } => panic!("there is room"),
        },
        other => panic!("no answer to a reservation: {other:?}"),
    }
}

fn commit(ticket: u64, len: u64) -> Request<'static> {
    Request::Exchange {
        commits: vec![Commit {
            ticket,
            len,
            key: "lie",
            tag: b"",
        }],
        releases: Vec::new(),
        reserve: Vec::new(),
    }
}

/// Panics where the daemon accepts a breach. What the client held stays its process's until that ends.
pub(crate) fn tell(socket: &SocketPath) {
    for (what, lie) in LIES {
        let mut client = RawClient::welcomed(socket);
        lie(&mut client, socket);
        // A refusal in words may come first.
        let words = client.answer().map(|reply| format!("{:?}", reply.answer));
        assert!(
            words.as_ref().is_none_or(|words| words.contains("Refused")),
            "{what}: {words:?}"
        );
        assert!(
            words.is_none() || client.answer().is_none(),
            "{what} did not end the connection"
        );
    }
    let mut early = RawClient::silent(socket);
    early.tell(&Request::Counts);
    early.answer();
    assert!(
        early.answer().is_none(),
        "a client that does not say hello is disconnected"
    );
    let mut other = RawClient::silent(socket);
    other.tell(&Request::Hello {
        version: 999,
        lane_of: 0,
    });
    let words = other
        .answer()
        .map(|reply| format!("{:?}", reply.answer))
        .expect("a reason");
    for part in [
        "version 999",
        &format!("version {VERSION}"),
        "process ",
        " objects",
        "tensorlease stop --socket ",
    ] {
        assert!(words.contains(part), "no {part:?} in {words}");
    }
}
