//! The line at open says which way reads will take, and why.

use crate::{
    loans::{TERMS, over},
    support::{Lending, MIB, Rig, announcements_of, budget, free_engine},
};
use std::sync::Arc;
use tensorlease::{Delivery, Options};

/// What the line of a store says of its reads.
fn said(open: impl FnOnce() -> Rig) -> String {
    let mut lines = announcements_of(|| drop(open()));
    assert_eq!(lines.len(), 1, "one line at open (requirement A15): {lines:?}");
    lines.remove(0)
}

fn assert_said(line: &str, parts: &[&str]) {
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
        (
            Delivery::RegisterPerCall,
            "each read takes memory of its own (delivery=register-per-call, no registration needed)",
            "each read registers its own memory (delivery=register-per-call)",
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
        // What each read takes for itself needs no budget.
        let options = Options {
            delivery: Delivery::RegisterPerCall,
            ..options
        };
        let line = said(|| Rig::registering(free_engine(), &options));
        assert_said(&line, &["each read registers its own memory"]);
    }
}

#[test]
fn the_line_at_open_says_whose_memory_copies_go_through() {
    let lending = || Arc::new(Lending::new(free_engine(), TERMS));
    let pool = "copies go through leases of the engine's own pool";
    assert_said(
        &said(|| over(&lending(), &budget(16 * MIB))),
        &["reads are copied (the engine lends the memory for it)", pool],
    );
    let leased = Options {
        delivery: Delivery::Leased,
        ..budget(16 * MIB)
    };
    assert_said(
        &said(|| over(&lending(), &leased)),
        &["leased from the arena (slabs registered once)", pool],
    );
}
