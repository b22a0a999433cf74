//! What is found where a daemon wants its socket, and what happens when it is removed.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::time::Duration;
use tensorlease_host::{ConnectError, Daemon, DaemonOptions, HostEngine, PlaceError, SocketPath, StartError};

const SOON: Duration = Duration::from_secs(10);

fn options(socket: &Path, idle_end: Option<Duration>) -> DaemonOptions {
    DaemonOptions {
        socket: SocketPath::new(socket).unwrap(),
        max_bytes: 1 << 20,
        idle_end,
    }
}

fn connects(socket: &Path) -> bool {
    HostEngine::connect(&SocketPath::new(socket).unwrap()).is_ok()
}

#[test]
fn a_file_that_is_no_socket_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let precious = folder.path().join("precious.txt");
    std::fs::write(&precious, "keep me").unwrap();
    let refused = Daemon::start(options(&precious, None)).unwrap_err();
    assert!(
        matches!(&refused, StartError::Place { source: PlaceError::Occupied { path } } if *path == precious),
        "{refused:?}"
    );
    assert_eq!(std::fs::read_to_string(&precious).unwrap(), "keep me");
}

#[test]
fn the_socket_of_a_daemon_whose_lock_was_removed_is_not_taken_from_it() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("host.sock");
    let first = Daemon::start(options(&socket, None)).unwrap();
    std::fs::remove_file(first.socket().lock_path()).unwrap();
    let refused = Daemon::start(options(&socket, None)).unwrap_err();
    assert!(matches!(refused, StartError::Running { .. }), "{refused:?}");
    assert!(connects(&socket));
}

#[test]
fn a_daemon_that_ends_leaves_the_socket_of_the_one_that_came_after_it() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("host.sock");
    let first = Daemon::start(options(&socket, None)).unwrap();
    // As those do who clean up folders for temporary files.
    std::fs::remove_file(&socket).unwrap();
    std::fs::remove_file(first.socket().lock_path()).unwrap();
    let second = Daemon::start(options(&socket, None)).unwrap();
    first.stop();
    assert!(connects(&socket));
    second.stop();
    assert!(!socket.exists(), "its own it removes");
}

#[test]
fn a_socket_that_a_dead_daemon_left_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("host.sock");
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    assert!(socket.exists());
    let daemon = Daemon::start(options(&socket, Some(Duration::from_millis(1)))).unwrap();
    assert!(connects(&socket));
    assert!(daemon.wait(SOON), "it had its client, and nobody needs it");
}

#[test]
fn a_daemon_whose_socket_was_removed_is_named_to_those_who_look_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("host.sock");
    let daemon = Daemon::start(options(&socket, None)).unwrap();
    let own = Some(std::process::id());
    assert_eq!(daemon.socket().holder().unwrap().process, own);
    std::fs::remove_file(&socket).unwrap();
    let hidden = HostEngine::connect(daemon.socket()).unwrap_err();
    assert!(
        matches!(&hidden, ConnectError::Hidden { holder, .. } if holder.process == own),
        "{hidden:?}"
    );
    let second = Daemon::start(options(&socket, None)).unwrap_err();
    assert!(
        matches!(&second, StartError::Running { holder, .. } if holder.process == own),
        "{second:?}"
    );
    for text in [hidden.to_string(), second.to_string()] {
        assert!(text.contains(&format!("process {}", std::process::id())), "{text}");
    }
    daemon.stop();
    assert_eq!(daemon.socket().holder(), None);
    let nobody = HostEngine::connect(daemon.socket()).unwrap_err();
    assert!(matches!(nobody, ConnectError::NoDaemon { .. }), "{nobody:?}");
    let advice = format!("start one with `tensorlease serve --socket {}`", socket.display());
    assert!(nobody.to_string().ends_with(&advice), "{nobody}");
    let own = ConnectError::NoDaemon {
        socket: SocketPath::of_this_user().unwrap().as_path().to_owned(),
    };
    assert!(
        own.to_string().contains("`tensorlease serve`, or open host://"),
        "{own}"
    );
    let spaced = ConnectError::NoDaemon {
        socket: "/tmp/a b's.sock".into(),
    };
    assert!(
        spaced
            .to_string()
            .ends_with(r"`tensorlease serve --socket '/tmp/a b'\''s.sock'`"),
        "{spaced}"
    );
}

#[test]
fn those_who_look_who_holds_a_lock_keep_nobody_from_it() {
    let folder = tempfile::tempdir().unwrap();
    let place = SocketPath::new(folder.path().join("host.sock")).unwrap();
    drop(Daemon::start(options(place.as_path(), None)).unwrap());
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                let _holder = place.holder();
            }
        });
        for _ in 0..20 {
            let started = Daemon::start(options(place.as_path(), None));
            if started.is_err() {
                done.store(true, std::sync::atomic::Ordering::Relaxed);
            }
            drop(started.unwrap());
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}
