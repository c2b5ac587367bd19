//! Decides recorded traffic with the limits of a configuration file, and suggests limits.
//!
//! ```text
//! cargo run --release --example simulate -- policies.toml access.log
//! cargo run --release --example simulate -- policies.toml access.log --suggest 0.1%
//! cargo run --release --example simulate -- policies.toml requests.csv --svg chart.svg --csv decisions.csv
//! ```
//!
//! `policies.toml` has the form of `examples/config.toml`. The `by` of a limit names the field of the log whose values
//! are its keys; a limit by `all` counts all requests under one key. The log is an access log in the common or combined
//! format (fields `address`, `user` and `path`), JSON lines, or CSV with a first line of names; `-` reads the standard
//! input. The command prints a report for each limit by itself, and for all of them together.

mod arguments;
mod chart;
mod decisions;
mod input;
mod print;
mod series;

use std::process::ExitCode;

use tower_ratelimit::config::Policy;
use tower_ratelimit::simulate::{Simulation, Traffic, suggest};

use self::arguments::Arguments;
use self::series::{Interval, Series};

type AnyError = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    match Arguments::parse().and_then(|arguments| run(&arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("simulate: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), AnyError> {
    let policies = input::read_policies(&arguments.policies)?;
    let traffic = input::read_traffic(arguments, &policies)?;
    print::traffic(&traffic);

    let cases = cases(&policies);
    for (name, policies) in &cases {
        print::report(name, &simulation(policies, &traffic)?.run());
    }
    if let Some(share) = arguments.suggest {
        for policy in &policies {
            print::suggestions(policy, &suggest(policy, &traffic, share.of(traffic.len()))?, &traffic);
        }
    }
    if let Some(path) = &arguments.csv {
        decisions::write(path, &cases, &traffic)?;
    }
    if let Some(path) = &arguments.svg {
        input::write(path, &chart(&cases, &traffic)?)?;
    }
    Ok(())
}

/// The limits whose decisions are reported: each one by itself, and all of them.
fn cases(policies: &[Policy]) -> Vec<(String, Vec<Policy>)> {
    let mut cases: Vec<_> = policies.iter().map(|policy| (print::title(policy), vec![policy.clone()])).collect();
    if policies.len() > 1 {
        cases.push(("all limits together".to_owned(), policies.to_vec()));
    }
    cases
}

fn simulation<'a>(policies: &[Policy], traffic: &'a Traffic) -> Result<Simulation<'a>, AnyError> {
    Ok(match policies {
        [policy] => Simulation::alone(policy, traffic)?,
        policies => Simulation::together(policies, traffic)?,
    })
}

fn chart(cases: &[(String, Vec<Policy>)], traffic: &Traffic) -> Result<String, AnyError> {
    let interval = Interval::of(traffic, 300);
    let panel = |(title, policies): &(String, Vec<Policy>)| {
        let series = Series::new(&simulation(policies, traffic)?, traffic, interval);
        Ok(chart::Panel { title: title.clone(), series })
    };
    let panels: Result<Vec<_>, AnyError> = cases.iter().map(panel).collect();
    chart::draw(&panels?, 1, 800)
}
