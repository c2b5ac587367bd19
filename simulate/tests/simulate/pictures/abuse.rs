//! The sample of a log that contains abuse.

use tower_ratelimit_simulate::chart::{Panel, draw};
use tower_ratelimit_simulate::{Interval, LogFormat, LogParser, Series, Simulation, Traffic};

use crate::support::policy;

const LOG: &str = include_str!("../../../sample/access.log");

/// Draws the limit of the sample with the suggested burst, and the key with the most denied requests.
pub(super) fn picture() -> String {
    let mut traffic = Traffic::new(["address"]);
    let mut parser = LogParser::new(LogFormat::AccessLog, &traffic).expect("a parser");
    for line in LOG.lines() {
        parser.read(line, &mut traffic).unwrap_or_else(|error| panic!("{line}: {error}"));
    }
    let mut policy = serde_json::to_value(policy("algorithm = 'gcra'\nquota = '30/min'\nburst = 11")).expect("a value");
    policy["by"] = "address".into();
    let policy = serde_json::from_value(policy).expect("a policy");
    let simulation = || Simulation::alone(&policy, &traffic).expect("a simulation");
    let report = simulation().run();
    let key = report.top_keys.first().expect("a key");
    let series = Series::new(&simulation(), &traffic, Interval::of(&traffic, 120), Some(&key.first));
    let title = format!("30 per minute with bursts of 11; remaining of {}", key.key);
    draw(&[Panel { title, series }], 1, 800).expect("a picture")
}
