//! Runs the limiter over a model of PostgreSQL's rows, in every order of the steps of a few sessions.
//!
//! Nothing of `crates/limiter` is written twice: sessions run its calls, each primitive of the rows is a step, and
//! stateright explores all orders of the steps, all random choices, and the clock and a crash at any instant.
//! [`postgres`] models the rows, [`properties`] checks every state, [`oracle`] computes the right answers.
//!
//! ```text
//! ratelimit-model contract         what any store must do
//! ratelimit-model short            what CI explores
//! ratelimit-model long             all scenarios: minutes
//! ratelimit-model random 0 500     the random programs of these numbers
//! ratelimit-model faults           faults, each of which must be noticed
//! ratelimit-model group NAME       the scenarios of a group, such as holds
//! ratelimit-model named WORD       the scenarios with this word in their name
//! ratelimit-model program TEXT…    these programs, with the path to a wrong state; see `statement::programs`
//! ```

#![forbid(unsafe_code)]

mod bounds;
mod content;
mod contract;
mod entries;
mod explore;
mod faults;
mod holds;
mod oracle;
mod postgres;
mod properties;
mod random;
mod rows;
mod run;
mod saved;
mod scenarios;
mod statement;
mod turn;
mod world;

use std::io::{IsTerminal, Write};
use std::panic::resume_unwind;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use explore::{Findings, explore};
use world::Scenario;

/// The approximate maximum number of states of a short scenario. None may be left.
const MOST_OF_SHORT: usize = 600_000;
/// The maximum for a program named on the command line.
const MOST: usize = 50_000_000;
/// The maximum for a long scenario. The rest is left out.
const MOST_OF_LONG: usize = 3_000_000;
/// The maximum for a random program. The rest is left out.
const MOST_OF_RANDOM: usize = 300_000;
/// The number of threads that explore a scenario, or short scenarios in parallel.
const THREADS: usize = 2;

/// The sums of all explorations.
#[derive(Default)]
struct Totals {
    scenarios: usize,
    states: usize,
    parts: usize,
    wrong: usize,
}

impl Totals {
    /// Explores all scenarios, or only the short ones.
    fn explore_all(&mut self, long: bool, most: usize) {
        for (group, scenarios) in scenarios::groups(long) {
            println!("{group}:");
            if long {
                scenarios.iter().for_each(|scenario| self.explore(scenario, most, false));
                continue;
            }
            // One thread each: a second one would mostly wait for states.
            for (scenario, findings) in scenarios.iter().zip(explore_several(&scenarios, most)) {
                self.add(scenario, &findings, most, false);
            }
        }
    }

    /// Explores a scenario, and prints a line unless it is `quiet` and right.
    fn explore(&mut self, scenario: &Arc<Scenario>, most: usize, quiet: bool) {
        if std::io::stdout().is_terminal() {
            print!("\r{:>6} scenarios, {:>11} states\r", self.scenarios, self.states);
            let _ = std::io::stdout().flush();
        }
        let findings = explore(scenario, None, most, THREADS);
        self.add(scenario, &findings, most, quiet);
    }

    /// Adds the findings of an exploration.
    fn add(&mut self, scenario: &Scenario, findings: &Findings, most: usize, quiet: bool) {
        let Findings { states, depth, time, is_whole, seen, wrong } = findings;
        self.scenarios += 1;
        self.states += states;
        self.parts += usize::from(!is_whole);
        // A scenario that never admits or never ends shows nothing.
        let shows = ["admits", "ends"].iter().all(|name| seen.contains(name)) || quiet;
        let may_be_part = [MOST_OF_LONG, MOST_OF_RANDOM].contains(&most);
        let is_right = wrong.is_none() && shows && (*is_whole || may_be_part);
        self.wrong += usize::from(!is_right);
        if quiet && is_right {
            return;
        }
        let verdict = match (wrong, is_whole) {
            (Some((wrong, _)), _) => format!("WRONG: {wrong:?}"),
            (None, true) if shows => "holds".into(),
            (None, true) => format!("WRONG: it shows {seen:?} only"),
            (None, false) if is_right => "holds in the part that was visited".into(),
            (None, false) => "WRONG: it has no end of states".into(),
        };
        let name = &scenario.name;
        println!(
            "{states:>9} states, {depth:>3} deep, {:>6.2} s, {verdict}: {name}",
            time.as_secs_f64()
        );
        for line in wrong.iter().flat_map(|(_, path)| path) {
            println!("    {line}");
        }
    }
}

/// Explores scenarios, [`THREADS`] at a time; returns their findings in order.
fn explore_several(scenarios: &[Arc<Scenario>], most: usize) -> Vec<Findings> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut found = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(scenario) = scenarios.get(number) else { return found };
            found.push((number, explore(scenario, None, most, 1)));
        }
    };
    let mut found: Vec<(usize, Findings)> = thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        let joined = workers.into_iter().map(|worker| worker.join());
        joined.flat_map(|found| found.unwrap_or_else(|panic| resume_unwind(panic))).collect()
    });
    found.sort_by_key(|(number, _)| *number);
    found.into_iter().map(|(_, findings)| findings).collect()
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (began, mut totals) = (Instant::now(), Totals::default());
    match arguments[..] {
        ["contract"] => println!("{} runs of the contract", contract::run()),
        ["short"] => totals.explore_all(false, MOST_OF_SHORT),
        ["long"] => totals.explore_all(true, MOST_OF_LONG),
        ["random", from, to] => {
            let number = |text: &str| {
                text.parse::<u64>().unwrap_or_else(|_| panic!("{text:?} is no number"))
            };
            for number in number(from)..number(to) {
                totals.explore(&random::scenario(number), MOST_OF_RANDOM, true);
            }
        }
        ["named", word] => {
            let all = scenarios::groups(true).into_iter().flat_map(|(_, all)| all);
            let named = all.filter(|scenario| scenario.name.contains(word));
            named.for_each(|scenario| totals.explore(&scenario, MOST, false));
        }
        ["group", name] | ["group", name, "short"] => {
            let groups = scenarios::groups(arguments.len() == 2)
                .into_iter()
                .filter(|(group, _)| *group == name);
            let all = groups.flat_map(|(_, all)| all);
            all.for_each(|scenario| totals.explore(&scenario, MOST_OF_LONG, false));
        }
        ["faults"] => totals.wrong = faults::run(),
        ["program", ..] if arguments.len() > 1 => {
            for text in &arguments[1..] {
                totals.explore(&Arc::new(scenarios::of_bucket(3, text)), MOST, false);
            }
        }
        _ => {
            eprintln!(
                "usage: ratelimit-model contract|short|long|faults|random FROM TO|group NAME|named WORD|program TEXT…"
            );
            return ExitCode::FAILURE;
        }
    }
    let Totals { scenarios, states, parts, wrong } = totals;
    let seconds = began.elapsed().as_secs();
    println!(
        "{scenarios} scenarios, {states} states, {parts} of them in part, {wrong} wrong, {seconds} s"
    );
    if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
