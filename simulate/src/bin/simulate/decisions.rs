//! Each decision as a line of CSV.

use std::path::Path;

use tower_ratelimit::{Decision, Verdict};
use tower_ratelimit_simulate::{AnyError, Traffic};

use super::input::in_file;
use super::{Case, simulation};

/// Writes the decisions of each case: time and wait in seconds, the columns of the traffic, the cost and the decision.
pub(crate) fn write(path: &Path, cases: &[Case], traffic: &Traffic) -> Result<(), AnyError> {
    let mut writer = csv::Writer::from_path(path).map_err(|error| in_file(path, error))?;
    let header = ["limit", "time"].into_iter().chain(traffic.columns().iter().map(String::as_str));
    writer.write_record(header.chain(["cost", "decision", "wait", "remaining"]))?;
    for case in cases {
        let mut written = Ok(());
        let _ = simulation(&case.policies, traffic)?.run_with(|arrival, decision| {
            let time = arrival.time.as_micros();
            let (verdict, wait) = verdict(decision);
            let first = [case.title.clone(), format!("{}.{:06}", time / 1_000_000, time % 1_000_000)];
            let remaining = decision.remaining().map_or(String::new(), |remaining| remaining.to_string());
            let last = [arrival.cost.to_string(), verdict.to_owned(), wait, remaining];
            let values = traffic.values(arrival).map(str::to_owned);
            if written.is_ok() {
                written = writer.write_record(first.into_iter().chain(values).chain(last));
            }
        });
        written?;
    }
    Ok(writer.flush()?)
}

fn verdict(decision: &Decision) -> (&'static str, String) {
    let seconds = |wait: std::time::Duration| format!("{}.{:06}", wait.as_secs(), wait.subsec_micros());
    match decision.verdict() {
        Verdict::Allowed => ("allowed", String::new()),
        Verdict::AllowedAfter(delay) => ("delayed", seconds(delay)),
        Verdict::Denied { retry_after } => ("denied", seconds(retry_after)),
        Verdict::ExceedsLimit => ("exceeds limit", String::new()),
    }
}
