use tower_ratelimit::Timestamp;
use tower_ratelimit::config::Policy;
use tower_ratelimit::simulate::Traffic;

/// Parses a policy from the fields besides its name and sub-key.
pub(crate) fn policy(fields: &str) -> Policy {
    toml::from_str(&format!("name = \"a\"\nby = \"user\"\n{fields}")).expect("a policy")
}

/// One policy of each algorithm and form.
pub(crate) const POLICIES: [&str; 9] = [
    "algorithm = 'gcra'\nquota = '5 per 10s'\nburst = 8",
    "algorithm = 'token-bucket'\nquota = '7 per 10s'",
    "algorithm = 'leaky-bucket'\nquota = '3/s'\nburst = 1",
    "algorithm = 'leaky-queue'\nquota = '5 per 10s'\nmax_waiting = 3",
    "algorithm = 'fixed-window'\nquota = '6 per 10s'",
    "algorithm = 'fixed-window'\nquota = '6 per 10s'\naligned_to_clock = true",
    "algorithm = 'sliding-window'\nquota = '6 per 10s'\nblocks = 5",
    "algorithm = 'sliding-window'\nquota = '6 per 10s'\nblocks = 2\nweighted = true",
    "algorithm = 'sliding-log'\nquota = '6 per 10s'",
];

/// A time in milliseconds, on the 14 November 2023.
pub(crate) fn millis(millis: u64) -> Timestamp {
    Timestamp::from_micros((1_700_000_000_000 + millis) * 1_000)
}

/// Traffic with the column `user`.
pub(crate) fn traffic<'a>(arrivals: impl IntoIterator<Item = (u64, &'a str, u64)>) -> Traffic {
    let mut traffic = Traffic::new(["user"]);
    for (time, user, cost) in arrivals {
        traffic.push(millis(time), &[user], cost);
    }
    traffic
}
