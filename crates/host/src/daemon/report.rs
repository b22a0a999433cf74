//! What the daemon says about itself, in its report and to a client of another version.
use super::namespaces;
use super::shared::Shared;
use crate::place::socket_option;
use crate::wire::{LIST_MAX, Report, StoreCounts, VERSION};

impl Shared {
    /// What a client of another version must know to go on.
    pub(super) fn other_version(&self, theirs: u16) -> String {
        let StoreCounts { objects, object_bytes } = self.counts();
        let plural = if objects == 1 { "" } else { "s" };
        let to_do = if VERSION < theirs {
            "the daemon runs older code: restart it after upgrading"
        } else {
            "the client runs older code: upgrade it, or start the daemon from the client's version"
        };
        format!(
            "it speaks version {theirs} of the protocol, and the daemon (process {}, tensorlease {}) speaks version {VERSION}; \
             {to_do}. `tensorlease stop {}` ends the daemon, which loses the {objects} object{plural} of {object_bytes} bytes \
             that it holds",
            std::process::id(),
            env!("CARGO_PKG_VERSION"),
            socket_option(self.options.socket.as_path()),
        )
    }

    pub(super) fn counts(&self) -> StoreCounts {
        if let Some(relay) = &self.relay {
            let stats = relay.engine().stats();
            return StoreCounts {
                objects: stats.objects,
                object_bytes: stats.object_bytes,
            };
        }
        StoreCounts {
            objects: self.index.objects(),
            object_bytes: self.index.object_bytes(),
        }
    }

    pub(super) fn report(&self) -> Report {
        let mut clients: Vec<_> = self.all_sessions().iter().map(|session| session.row()).collect();
        clients.sort_unstable_by_key(|row| row.session);
        clients.truncate(LIST_MAX);
        let relay = self.relay.as_deref();
        Report {
            engine: relay.map_or("embedded", |relay| relay.claims().name).to_owned(),
            quarantined_bytes: relay.map_or(0, |relay| relay.quarantine.bytes()),
            late_bytes: relay.map_or(0, |relay| relay.quarantine.late_bytes()),
            register_calls: relay.map_or(0, |relay| relay.engine().stats().register_calls),
            capacity_bytes: self.memory.capacity_bytes(),
            held_bytes: self.memory.held_bytes(),
            counts: self.counts(),
            pid: std::process::id(),
            age_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            clients,
            namespaces: namespaces::rows(&self.index),
        }
    }
}
