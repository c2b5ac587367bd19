//! One request of the page: traffic and policies in, charts and reports out.

use serde::Deserialize;
use serde_json::{Value, json};
use tower_ratelimit::config::Policy;
use tower_ratelimit_simulate::chart::{Panel, draw};
use tower_ratelimit_simulate::code::{rust, toml};
use tower_ratelimit_simulate::{AnyError, Interval, Report, Series, Simulation, Traffic};

use super::traffic::{Pattern, read_log};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Input {
    policies: Vec<Value>,
    pattern: Pattern,
    /// Replaces the pattern unless it is empty.
    log: String,
}

/// Compares policies. An invalid policy is an error of its result.
pub(crate) fn run(body: &[u8]) -> Result<Value, AnyError> {
    let input: Input = serde_json::from_slice(body)?;
    let policies: Vec<Result<Policy, String>> = input.policies.into_iter().map(parse).collect();
    let valid: Vec<Policy> = policies.iter().filter_map(|policy| policy.clone().ok()).collect();
    let is_generated = input.log.trim().is_empty();
    let (traffic, interval, skipped) = if is_generated {
        let (traffic, interval) = input.pattern.traffic(&valid)?;
        (traffic, interval, 0)
    } else {
        read_log(&input.log, &valid)?
    };
    let result = |policy: Result<Policy, String>| {
        let result = policy.map_err(Into::into).and_then(|policy| {
            check(&policy, is_generated)?;
            compare(&policy, &traffic, interval)
        });
        result.unwrap_or_else(|error: AnyError| json!({ "error": error.to_string() }))
    };
    let results: Vec<_> = policies.into_iter().map(result).collect();
    Ok(json!({ "requests": traffic.len(), "skipped": skipped, "results": results }))
}

fn parse(policy: Value) -> Result<Policy, String> {
    serde_json::from_value(policy).map_err(|error| error.to_string())
}

/// Refuses what a limit by itself, or generated traffic, does not show.
fn check(policy: &Policy, is_generated: bool) -> Result<(), AnyError> {
    if policy.guarantee().is_some() {
        return Err("guarantee: a share needs the limit from which requests borrow, and the page shows each limit by itself; use \
                    the program `simulate`"
            .into());
    }
    let field =
        [policy.when().map(|_| "when"), policy.keep_free().next().map(|_| "keep_free"), policy.unit().map(|_| "unit")];
    match field.into_iter().flatten().next() {
        Some(field) if is_generated => {
            Err(format!("{field}: generated traffic has no column for it; paste a log that has one").into())
        }
        _ => Ok(()),
    }
}

fn compare(policy: &Policy, traffic: &Traffic, interval: Interval) -> Result<Value, AnyError> {
    let report = Simulation::alone(policy, traffic)?.run();
    let key = report.top_keys.first();
    let series = Series::new(&Simulation::alone(policy, traffic)?, traffic, interval, key.map(|key| &key.first));
    let quota = policy.quota().map_or(String::new(), |quota| format!("{quota}, "));
    let panel = Panel { title: format!("{quota}remaining of {}", key.map_or("a client", |key| &key.key)), series };
    Ok(json!({
        "svg": draw(&[panel], 1, 480)?,
        "report": numbers(&report),
        "rust": rust(policy),
        "toml": toml(policy),
    }))
}

fn numbers(report: &Report) -> Value {
    let bursts: Vec<_> =
        report.bursts.iter().map(|burst| json!([burst.interval.as_secs(), burst.admitted, burst.bound])).collect();
    let worst: Vec<_> = report.worst_keys().take(3).map(|key| json!([key.key, key.denied, key.requests])).collect();
    json!({
        "admitted": report.admitted,
        "delayed": report.delayed,
        "near_limit": report.near_limit,
        "denied": report.denied,
        "keys": report.keys,
        "denied_keys": report.denied_keys,
        "longest_denial": report.longest_denial.as_secs_f64(),
        "longest_delay": report.longest_delay.as_secs_f64(),
        "bursts": bursts,
        "worst_keys": worst,
    })
}
