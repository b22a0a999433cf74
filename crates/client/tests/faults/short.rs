//! The campaign as tests: the seeds that once failed, and a few more. Late writes have a name of their own, since a sanitizer
//! that watches quarantined memory must leave them out.

use crate::{
    arguments::Tests,
    campaign::{self, Bounds},
    model::rules,
    program::Program,
};
use std::{
    panic::{self, AssertUnwindSafe},
    process::ExitCode,
    time::{Duration, Instant},
};

/// Programs that once showed a defect. A change of the generator gives a seed another program: each defect has a test of its
/// own beside these.
const REPLAYED: [(&str, &[u64]); 12] = [
    (
        "parts of a value that was replaced meanwhile were of two puts",
        &[28, 295, 300, 1664],
    ),
    ("registrations were counted that had ended with the engine", &[17]),
    ("a staging block lay across two registrations", &[5520, 7403, 2960]),
    ("a close in haste unregistered slabs that callers used", &[2268, 7593]),
    ("a key described twice in one read was two different things", &[1327]),
    ("what was cut by loans did not fit into the bounce reserve", &[3373]),
    ("behind a batch of odd length a tensor was not aligned", &[2047]),
    ("a closed store said that memory can't be registered", &[263]),
    ("a close that met another thread told the daemon nothing", &[7539]),
    ("what a busy daemon did not take back was forgotten", &[24403]),
    ("a read on a full host waited a second for each batch", &[41509, 42348]),
    (
        "a call that outlived its engine's close was cut no more",
        &[238_873_714],
    ),
];
/// More seeds, the same ones every time.
const SEEDS: std::ops::Range<u64> = 1..161;
/// A guard against machines that are slower than any seen: what is left over by then is not run.
const TIME_MAX: Duration = Duration::from_secs(90);

type Test = (&'static str, fn() -> Result<(), String>);

const TESTS: [Test; 7] = [
    ("a_seed_is_a_program", a_seed_is_a_program),
    ("the_model::a_value_that_was_stored_is_all_that_may_be_seen", || {
        passes(rules::a_value_that_was_stored_is_all_that_may_be_seen)
    }),
    (
        "the_model::beside_a_running_write_the_old_and_the_new_value_may_be_seen",
        || passes(rules::beside_a_running_write_the_old_and_the_new_value_may_be_seen),
    ),
    (
        "the_model::a_failed_write_may_have_happened_until_the_next_one_is_done",
        || passes(rules::a_failed_write_may_have_happened_until_the_next_one_is_done),
    ),
    ("the_model::a_write_that_was_given_up_may_happen_at_any_time", || {
        passes(rules::a_write_that_was_given_up_may_happen_at_any_time)
    }),
    ("random_programs_show_no_difference_and_leave_nothing_behind", || {
        random_programs(false)
    }),
    (
        "quarantine::random_programs_with_late_writes_show_no_difference_and_leave_nothing_behind",
        || random_programs(true),
    ),
];

/// Runs the tests that are wanted, and says so as any test program does.
pub(crate) fn run(tests: &Tests) -> ExitCode {
    let wanted: Vec<&Test> = TESTS.iter().filter(|(name, _)| tests.wants(name)).collect();
    if tests.list {
        wanted.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    println!("\nrunning {} tests", wanted.len());
    let start = Instant::now();
    let mut failed = 0;
    for (name, test) in &wanted {
        match test() {
            Ok(()) => println!("test {name} ... ok"),
            Err(difference) => {
                failed += 1;
                println!("test {name} ... FAILED\n{difference}");
            }
        }
    }
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    let (passed, seconds) = (wanted.len() - failed, start.elapsed().as_secs_f32());
    println!("\ntest result: {verdict}. {passed} passed; {failed} failed; finished in {seconds:.2}s\n");
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn passes(rule: fn()) -> Result<(), String> {
    panic::catch_unwind(AssertUnwindSafe(rule)).map_err(|_| "an assertion failed".to_owned())
}

fn a_seed_is_a_program() -> Result<(), String> {
    for seed in SEEDS {
        let (one, two) = (format!("{:?}", Program::of(seed)), format!("{:?}", Program::of(seed)));
        if one != two {
            return Err(format!("seed {seed} gives two programs"));
        }
    }
    Ok(())
}

fn random_programs(late: bool) -> Result<(), String> {
    let replayed = REPLAYED.iter().flat_map(|(_, seeds)| seeds.iter().copied());
    let all = replayed.chain(SEEDS);
    let seeds: Vec<u64> = all.filter(|seed| Program::of(*seed).writes_late() == late).collect();
    let outcome = campaign::run(
        &seeds,
        Bounds {
            programs: seeds.len(),
            time: TIME_MAX,
            workers: 4,
            failures: 5,
            progress: None,
        },
    );
    if outcome.failures.is_empty() {
        return Ok(());
    }
    let failures = outcome.failures.iter().map(|failure| {
        let known = REPLAYED.iter().find(|(_, seeds)| seeds.contains(&failure.seed));
        let again = known
            .map(|(what, _)| format!(" (it once showed: {what})"))
            .unwrap_or_default();
        format!("seed {}{again}: {}", failure.seed, failure.differences.join("\n  "))
    });
    Err(failures.collect::<Vec<_>>().join("\n"))
}
