//! Arguments of a campaign, and as many of a test program's as test runners use.

use std::{num::NonZero, str::FromStr, thread, time::Duration};

/// What this program is asked to do.
#[derive(Debug)]
pub(crate) enum Wanted {
    Tests(Tests),
    Campaign(Arguments),
    /// Prints the program of a seed.
    Program(u64),
}

/// Which programs to run, and for how long.
#[derive(Debug)]
pub(crate) struct Arguments {
    pub(crate) seeds: Vec<u64>,
    pub(crate) time: Duration,
    pub(crate) workers: usize,
    pub(crate) failures: usize,
    /// Fewer programs than these are no campaign.
    pub(crate) at_least: usize,
}

/// What `cargo test` and `cargo nextest` ask of a test program.
#[derive(Debug, Default)]
pub(crate) struct Tests {
    pub(crate) list: bool,
    /// Only those that are ignored by default: none.
    pub(crate) ignored: bool,
    pub(crate) exact: bool,
    pub(crate) names: Vec<String>,
    pub(crate) skipped: Vec<String>,
}

impl Tests {
    pub(crate) fn wants(&self, name: &str) -> bool {
        let is = |pattern: &String| {
            if self.exact {
                pattern == name
            } else {
                name.contains(pattern.as_str())
            }
        };
        !self.ignored && (self.names.is_empty() || self.names.iter().any(is)) && !self.skipped.iter().any(is)
    }
}

pub(crate) fn parse(arguments: &[String]) -> Result<Wanted, String> {
    let of_campaign = |argument: &String| {
        [
            "--programs",
            "--seconds",
            "--seed",
            "--workers",
            "--failures",
            "--at-least",
            "--replay",
            "--times",
            "--show",
        ]
        .contains(&argument.as_str())
    };
    if arguments.iter().any(of_campaign) {
        return campaign(arguments);
    }
    Ok(Wanted::Tests(tests(arguments)))
}

fn campaign(arguments: &[String]) -> Result<Wanted, String> {
    let (mut programs, mut seconds, mut seed) = (5_000_u64, 600_u64, 1_u64);
    let (mut workers, mut failures, mut at_least) = (workers_default(), 20_u64, 1_u64);
    let (mut replay, mut times) = (None, 1_u64);
    for pair in arguments.chunks(2) {
        let number = pair.get(1).and_then(|number| u64::from_str(number).ok());
        let number = number.ok_or_else(|| format!("{} needs a whole number", pair[0]))?;
        match pair[0].as_str() {
            "--programs" => programs = number.max(1),
            "--seconds" => seconds = number,
            "--seed" => seed = number,
            "--workers" => workers = number.max(1),
            "--failures" => failures = number.max(1),
            "--at-least" => at_least = number,
            "--replay" => replay = Some(number),
            "--times" => times = number.max(1),
            "--show" => return Ok(Wanted::Program(number)),
            other => {
                return Err(format!(
                    "unknown argument {other}; see the top of crates/client/tests/faults/main.rs"
                ));
            }
        }
    }
    let seeds = match replay {
        Some(seed) => (0..times).map(|_| seed).collect(),
        None => (seed..seed.saturating_add(programs)).collect(),
    };
    Ok(Wanted::Campaign(Arguments {
        seeds,
        time: Duration::from_secs(seconds),
        workers: count(workers)?,
        failures: count(failures)?,
        at_least: count(at_least)?,
    }))
}

fn count(number: u64) -> Result<usize, String> {
    usize::try_from(number).map_err(|error| error.to_string())
}

/// Programs mostly wait: twice as many processes as cores keep the cores at work.
pub(crate) fn workers_default() -> u64 {
    let cores = thread::available_parallelism().map_or(2, NonZero::get);
    2 * cores as u64
}

/// Options that only change how a test runner's output looks are passed over.
fn tests(arguments: &[String]) -> Tests {
    let mut tests = Tests::default();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--list" => tests.list = true,
            "--ignored" => tests.ignored = true,
            "--exact" => tests.exact = true,
            "--skip" => tests.skipped.extend(arguments.next().cloned()),
            "--format" | "--test-threads" | "--color" | "-Z" => drop(arguments.next()),
            other if other.starts_with('-') => {}
            name => tests.names.push(name.to_owned()),
        }
    }
    tests
}
