//! The limiter, as it is, over a model of PostgreSQL's rows, in every order of the steps of a few sessions.

mod content;
mod entries;
mod explore;
mod mutants;
mod oracle;
mod postgres;
mod properties;
mod rows;
mod run;
mod scenarios;
mod statement;
mod world;

fn main() {
    if std::env::args().nth(1).as_deref() == Some("mutants") {
        let missed = mutants::run(std::env::var("EVERYWHERE").is_ok());
        std::process::exit(i32::from(missed > 0));
    }
    let only = std::env::args().nth(1).unwrap_or_default();
    for (group, scenarios) in scenarios::groups(std::env::var("LONG").is_ok()) {
        println!("{group}");
        for scenario in scenarios.iter().filter(|scenario| scenario.name.contains(&only)) {
            let report = explore::explore(scenario, None, 2_000_000, 2);
            println!(
                "  {:<90} {:>9} states, depth {:>3}, {:>6.2} s, {} {:?} {:?}",
                scenario.name,
                report.states,
                report.depth,
                report.time.as_secs_f64(),
                if report.is_whole { "whole" } else { "a part" },
                report.seen,
                report.wrong.as_ref().map(|(wrong, _)| wrong),
            );
            if std::env::var("TRACE").is_ok()
                && let Some((_, path)) = report.wrong
            {
                path.iter().for_each(|line| println!("    {line}"));
            }
        }
    }
}
