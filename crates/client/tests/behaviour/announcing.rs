//! The line at open says which way reads will take, and why.

use crate::support::{MIB, Rig, announcements_of, budget, free_engine};
use tensorlease::{Delivery, Options};

/// What the line of a store says of its reads.
pub(crate) fn said(open: impl FnOnce() -> Rig) -> String {
    let mut lines = announcements_of(|| drop(open()));
    assert_eq!(lines.len(), 1, "one line at open (requirement A15): {lines:?}");
    lines.remove(0)
}

pub(crate) fn assert_said(line: &str, parts: &[&str]) {
    for part in parts {
        assert!(line.contains(part), "{part:?} in {line}");
    }
    assert!(!line.contains('\n'), "{line}");
    let leases = parts.iter().any(|part| part.contains("leased from the arena"));
    assert_eq!(line.contains("leased from the arena"), leases, "{line}");
}

#[test]
fn the_line_at_open_names_the_way_of_reads_from_delivery_and_registration() {
    let cases = [
        (
            Delivery::Auto,
            "leased from the arena (no registration needed), small values copied",
            "leased from the arena (slabs registered once), small values copied",
        ),
        (
            Delivery::Leased,
            "leased from the arena (no registration needed),",
            "leased from the arena (slabs registered once),",
        ),
        (
            Delivery::Copied,
            "reads are copied (delivery=copied)",
            "reads are copied (delivery=copied)",
        ),
    ];
    for (delivery, free, registering) in cases {
        let options = Options {
            delivery,
            ..budget(16 * MIB)
        };
        let named = format!("{} delivery", delivery.name());
        assert_said(&said(|| Rig::new(free_engine(), &options)), &[&named, free]);
        let line = said(|| Rig::registering(free_engine(), &options));
        assert_said(&line, &[&named, registering]);
    }
}

#[test]
fn the_line_at_open_says_that_nothing_is_left_to_lease() {
    let nothing = "reads are copied: max_bytes leaves nothing beside the bounce reserve";
    let all_bounce = Options {
        bounce_bytes: Some(16 * MIB),
        ..budget(16 * MIB)
    };
    for options in [budget(4096), all_bounce] {
        for delivery in [Delivery::Auto, Delivery::Leased] {
            let options = Options {
                delivery,
                ..options.clone()
            };
            assert_said(&said(|| Rig::new(free_engine(), &options)), &[nothing]);
            assert_said(&said(|| Rig::registering(free_engine(), &options)), &[nothing]);
        }
    }
}
