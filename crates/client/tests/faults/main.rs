//! The fault campaign: random programs of calls on a store from several threads, over engines that fail, read short, stall,
//! panic, write late and lose keys, or of a host whose daemon
//! ends and whose other clients meddle or are killed, over budgets from one page upwards. A model says what each call may bring; whatever else
//! it brings is a difference. Afterwards nothing may be leased, in flight, registered, on loan or running.
//!
//! ```text
//! faults                               the short campaign of `make test`
//! faults --programs N --seconds S [--seed X] [--workers W] [--failures F] [--at-least M]
//!                                      N programs from seed X on, S seconds and F failures at most; fewer than M fail
//! faults --replay SEED [--times N]     one program again
//! faults --show SEED                   prints the program of a seed
//! ```
//!
//! A seed decides the program, not how its threads are scheduled: what depends on that may take several replays.

#![allow(
    clippy::cast_precision_loss,
    reason = "random numbers and counts need no more than 53 bits"
)]

mod arguments;
mod asking;
mod campaign;
#[path = "../behaviour/support/checking.rs"]
#[allow(clippy::unwrap_used, dead_code, reason = "as in the suite that it comes from")]
mod checking;
mod grounds;
mod holdings;
mod host;
mod leaks;
#[path = "../behaviour/support/lending.rs"]
#[allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    dead_code,
    reason = "as in the suite that it comes from"
)]
mod lending;
mod memory;
mod model;
mod neighbour;
mod noise;
mod program;
mod random;
mod reading;
mod report;
mod run;
mod short;
mod stack;
mod steps;
mod stranger;
mod tally;
mod trial;
mod unruly;
mod value;
mod viewing;
mod watching;
mod worker;
mod writing;

/// Where the engines shared with the behaviour suite look for `part`.
mod deliveries {
    pub(crate) use crate::memory::part;
}

use arguments::{Arguments, Wanted};
use campaign::Bounds;
use program::Program;
use std::{process::ExitCode, time::Duration};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == campaign::WORKER) {
        worker::serve();
        return ExitCode::SUCCESS;
    }
    if let [first, socket] = &arguments[..]
        && first == stranger::STRANGER
    {
        stranger::live(socket);
        return ExitCode::SUCCESS;
    }
    match arguments::parse(&arguments) {
        Err(message) => {
            eprintln!("faults: {message}");
            ExitCode::from(2)
        }
        Ok(Wanted::Tests(tests)) => short::run(&tests),
        Ok(Wanted::Program(seed)) => {
            println!("{:#?}", Program::of(seed));
            ExitCode::SUCCESS
        }
        Ok(Wanted::Campaign(arguments)) => campaign(&arguments),
    }
}

fn campaign(arguments: &Arguments) -> ExitCode {
    let Arguments {
        seeds,
        time,
        workers,
        failures,
        at_least,
    } = arguments;
    println!("faults: seeds {} to {}", seeds[0], seeds[seeds.len() - 1]);
    let outcome = campaign::run(
        seeds,
        Bounds {
            programs: seeds.len(),
            time: *time,
            workers: *workers,
            failures: *failures,
            progress: Some(Duration::from_secs(10)),
        },
    );
    report::print(&outcome);
    if outcome.run < *at_least {
        println!(
            "faults: only {} programs ran in time, of at least {at_least}",
            outcome.run
        );
        return ExitCode::FAILURE;
    }
    if outcome.failures.is_empty() && report::missing(&outcome).is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
