//! Two versions of the protocol meet: the daemon says which two, and what to do.
mod support;

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use support::{Place, RawClient};
use tensorlease_host::wire::{Answer, LENGTH_BYTES, Request, VERSION, version_of_hello};
use tensorlease_host::{ConnectError, HostEngine};

/// What the daemon says to a client that speaks `version`.
fn refusal(place: &Place, version: u16) -> String {
    let mut client = RawClient::silent(&place.socket);
    client.tell(&Request::Hello { version, lane_of: 0 });
    let why = match client.answer().expect("a reason").answer {
        Answer::Refused { why } => why.to_owned(),
        other => panic!("version {version} was answered: {other:?}"),
    };
    assert!(client.answer().is_none(), "version {version} is cut off");
    why
}

fn assert_says(words: &str, parts: &[&str]) {
    for part in parts {
        assert!(words.contains(part), "no {part:?} in {words}");
    }
}

#[test]
fn older_and_newer_clients_are_refused_by_the_two_versions_and_told_what_to_do() {
    let place = Place::new();
    let daemon = place.daemon();
    let ours = format!("speaks version {VERSION}");
    let stop = format!("`tensorlease stop --socket {}`", place.socket.as_path().display());
    for older in [0, VERSION - 1] {
        let theirs = format!("speaks version {older} ");
        let to_do = "the client runs older code: upgrade it";
        assert_says(&refusal(&place, older), &[&theirs, &ours, to_do, &stop, "0 objects"]);
    }
    for newer in [VERSION + 1, u16::MAX] {
        let theirs = format!("speaks version {newer} ");
        let to_do = "the daemon runs older code: restart it after upgrading";
        assert_says(&refusal(&place, newer), &[&theirs, &ours, to_do, &stop, "0 objects"]);
    }
    drop(place.client());
    drop(daemon);
}

/// A daemon of another version knows no more of a client than its version, and answers with what never changes.
fn daemon_of_another_version(listener: &UnixListener, why: &str) {
    let (mut client, _) = listener.accept().expect("a client comes");
    let mut hello = [0; 64];
    let come = client.read(&mut hello).expect("it says hello");
    assert_eq!(version_of_hello(&hello[LENGTH_BYTES..come]), Some(VERSION));
    let len = u8::try_from(why.len()).expect("a short reason");
    let refused = [&[7 + len, 0, 0, 0, 0, 0, 0, 0, 10, len, 0], why.as_bytes()].concat();
    client.write_all(&refused).expect("it listens");
}

#[test]
fn a_client_repeats_what_a_daemon_of_another_version_says() {
    for why in ["it is too new", "it is too old: restart the daemon after upgrading"] {
        let place = Place::new();
        let listener = UnixListener::bind(place.socket.as_path()).expect("the place is free");
        std::thread::scope(|scope| {
            scope.spawn(|| daemon_of_another_version(&listener, why));
            let refused = HostEngine::connect(&place.socket).expect_err("it is turned away");
            assert!(matches!(refused, ConnectError::Refused { .. }), "{refused:?}");
            assert_says(&refused.to_string(), &[why, "refused this client"]);
        });
    }
}
