//! What a campaign did, for people.

use crate::campaign::Outcome;

/// What must really have happened in a campaign of some thousand programs: else it tested less than it says.
const STRIKES: [&str; 20] = [
    "struck/fail NotFound",
    "struck/fail Mismatch",
    "struck/fail NoHandle",
    "struck/fail NoLoan",
    "struck/fail Expired",
    "struck/fail Full",
    "struck/fail Transient",
    "struck/fail MayStillWrite",
    "struck/fail Unregistered",
    "struck/fail Unavailable",
    "struck/fail Refused",
    "struck/late write",
    "struck/short read",
    "struck/lost key",
    "struck/lost answer",
    "struck/stall",
    "struck/panic",
    "struck/lender panics",
    "struck/loan refused",
    "struck/registration refused",
];
/// What the store must have had to do.
const COUNTERS: [&str; 17] = [
    "store/leased_reads",
    "store/copied_reads",
    "store/registered_reads",
    "store/fallback_reads",
    "store/fallback_budget",
    "store/fallback_host_full",
    "store/fallback_too_large",
    "store/fallback_slab_not_registered",
    "store/fallback_copy_cache",
    "store/fallback_no_loan",
    "store/overflow_loans",
    "store/in_place_writes",
    "store/staged_writes",
    "store/retries",
    "store/quarantines",
    "store/abandoned_calls",
    "store/duplicate_keys",
];
/// What the programs must have run on, and what must have befallen a host.
const GROUNDS: [&str; 15] = [
    "engines/free",
    "engines/checked",
    "engines/pinned",
    "engines/lending, free",
    "engines/lending, checked",
    "engines/host",
    "engines/host, an engine behind it",
    "store/viewed_reads",
    "host/values read in place",
    "host/objects written by another client",
    "host/objects read by another client",
    "host/removals by another client",
    "host/struck: Disconnect",
    "host/struck: StopDaemon",
    "host/struck: KillStranger",
];
/// From so many programs on each of these must have come up.
const PROGRAMS_TELLING: usize = 3_000;

/// What should have happened and did not.
pub(crate) fn missing(outcome: &Outcome) -> Vec<&'static str> {
    if outcome.run < PROGRAMS_TELLING {
        return Vec::new();
    }
    let all = STRIKES.iter().chain(&COUNTERS).chain(&GROUNDS).copied();
    all.filter(|name| outcome.tally.get(name) == 0).collect()
}

pub(crate) fn print(outcome: &Outcome) {
    let tally = &outcome.tally;
    let calls: u64 = tally.group("calls/").iter().map(|(_, count)| count).sum();
    println!(
        "faults: {} programs, {calls} calls in {} s",
        outcome.run,
        outcome.took.as_secs()
    );
    println!(
        "faults: {} values with {} bytes compared with the model, {} bytes looked at again while held",
        tally.get("verified/values"),
        tally.get("verified/bytes"),
        tally.get("verified/bytes held")
    );
    println!(
        "faults: {} of those values were read in several calls and are of several puts",
        tally.get("verified/mixed values of reads in parts")
    );
    for (group, heading) in [
        ("engines/", "programs by engine"),
        ("host/", "what befell the hosts"),
        ("budgets/", "programs by budget"),
        ("calls/", "calls"),
        ("succeeded/", "of those, successful"),
        ("errors/", "errors, all of them explained"),
        ("struck/", "faults that struck"),
        ("engine/", "failures of the engine's own"),
        ("store/", "what the stores counted"),
    ] {
        println!("{heading}:");
        for (name, count) in tally.group(group) {
            println!("  {count:>12}  {name}");
        }
    }
    for name in missing(outcome) {
        println!("faults: {name} never came up: this campaign tests less than it should");
    }
    println!("faults: {} of {} programs failed", outcome.failures.len(), outcome.run);
    for failure in &outcome.failures {
        println!("  replay: scripts/faults.sh --replay {}", failure.seed);
    }
}
