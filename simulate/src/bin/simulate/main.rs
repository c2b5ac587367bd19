//! Decides recorded traffic with the limits of a configuration file, and suggests limits.
//!
//! ```text
//! simulate limits.toml access.log
//! simulate limits.toml access.log --suggest 0.1%
//! simulate limits.toml access.log --only 'path=/api/*' --exclude 'address=10.0.*' --suggest 0.1%
//! simulate limits.toml requests.csv --svg chart.svg --csv decisions.csv
//! ```
//!
//! `limits.toml` contains the limits as `[[limits]]` tables. The `by` of a limit names the field of the log whose values
//! are its keys; a limit by `all` counts all requests under one key. The log is an access log in the common or combined
//! format (fields `address`, `user`, `method` and `path`), JSON lines, or CSV with a first line of names; `-` reads the
//! standard input. The command prints a report for each limit by itself, and for all of them together.

mod arguments;
mod decisions;
mod input;
mod print;

use std::process::ExitCode;

use tower_ratelimit::config::Policy;
use tower_ratelimit_simulate::chart::{self, Panel};
use tower_ratelimit_simulate::{AnyError, Interval, MaxDenied, Report, Series, Share, Simulation, Traffic, suggest};

use self::arguments::{Arguments, Counted, Task, USAGE};

fn main() -> ExitCode {
    let result = Task::parse().and_then(|task| match task {
        Task::PrintHelp => {
            println!("{USAGE}");
            Ok(())
        }
        Task::Simulate(arguments) => run(&arguments),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("simulate: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Limits that decide together, and their decisions.
struct Case {
    title: String,
    policies: Vec<Policy>,
    report: Report,
}

fn run(arguments: &Arguments) -> Result<(), AnyError> {
    let policies = input::read_policies(&arguments.policies)?;
    let traffic = input::read_traffic(arguments, &policies)?;
    print::traffic(&traffic);

    let cases = cases(&policies, &traffic)?;
    for case in &cases {
        print::report(&case.title, &case.report);
    }
    if let Some(share) = arguments.suggest {
        for policy in &policies {
            print_suggestions(policy, &traffic, share, arguments.counted)?;
        }
    }
    if let Some(path) = &arguments.csv {
        decisions::write(path, &cases, &traffic)?;
    }
    if let Some(path) = &arguments.svg {
        input::write(path, &draw(&cases, &traffic, arguments.key.as_deref())?)?;
    }
    Ok(())
}

/// Decides the traffic with each limit by itself, and with all of them.
fn cases(policies: &[Policy], traffic: &Traffic) -> Result<Vec<Case>, AnyError> {
    let mut cases: Vec<_> = policies.iter().map(|policy| (print::title(policy), vec![policy.clone()])).collect();
    if policies.len() > 1 {
        cases.push(("all limits together".to_owned(), policies.to_vec()));
    }
    let decide = |(title, policies): (String, Vec<Policy>)| {
        let report = simulation(&policies, traffic)?.run();
        Ok(Case { title, policies, report })
    };
    cases.into_iter().map(decide).collect()
}

fn simulation<'a>(policies: &[Policy], traffic: &'a Traffic) -> Result<Simulation<'a>, AnyError> {
    Ok(match policies {
        [policy] => Simulation::alone(policy, traffic)?,
        policies => Simulation::together(policies, traffic)?,
    })
}

fn print_suggestions(policy: &Policy, traffic: &Traffic, share: Share, counted: Counted) -> Result<(), AnyError> {
    let max_denied = match counted {
        Counted::Keys => MaxDenied::share_of_keys(share, policy, traffic)?,
        Counted::Requests => MaxDenied::share_of_requests(share, traffic),
    };
    print::suggestions(policy, max_denied, &suggest(policy, traffic, max_denied)?);
    Ok(())
}

/// Draws a panel for each case, with the remaining cost of the key of this name or of the case's first key.
fn draw(cases: &[Case], traffic: &Traffic, name: Option<&str>) -> Result<String, AnyError> {
    let interval = Interval::of(traffic, 300);
    let mut is_found = name.is_none();
    let mut panels = Vec::new();
    for case in cases {
        let simulation = simulation(&case.policies, traffic)?;
        let named = name.and_then(|name| Some((name.to_owned(), simulation.first_arrival(name)?)));
        is_found |= named.is_some();
        let top = case.report.top_keys.first().map(|key| (key.key.clone(), key.first));
        let key = named.or(top);
        let title = key.as_ref().map_or(case.title.clone(), |(key, _)| format!("{}; remaining of {key}", case.title));
        let series = Series::new(&simulation, traffic, interval, key.as_ref().map(|(_, first)| first));
        panels.push(Panel { title, series });
    }
    if !is_found {
        return Err(format!("no limit counts by the key {:?}; write it as a report does", name.unwrap_or("")).into());
    }
    chart::draw(&panels, 1, 800)
}
