//! Two tenants with guaranteed shares: one borrows what the other one leaves.

use tower_ratelimit::config::Policy;
use tower_ratelimit_simulate::chart::{Panel, draw};
use tower_ratelimit_simulate::{Arrival, Interval, Series, Simulation, Traffic};

use crate::guide::limits_of_case;
use crate::support::millis;

const SECONDS: u64 = 12;

/// Draws the requests of each tenant, and what remains of its share, with the limits of the guide.
pub(super) fn picture() -> String {
    let limits = limits_of_case("tenants");
    let mut traffic = Traffic::for_policies(&limits);
    let mut ask = |tenant: &str, from: u64, to: u64, gap: usize| {
        (from..to).step_by(gap).for_each(|time| traffic.push(millis(time), &[tenant], 1));
    };
    ask("busy", 0, SECONDS * 1_000, 5);
    ask("quiet", 4_000, 8_000, 42);
    let panels = [
        ("busy", "busy tenant: 200 requests per second, of which it borrows what the others leave"),
        ("quiet", "quiet tenant: 24 requests per second for 4 s, within its share of 20 per second with bursts of 20"),
    ];
    let panels =
        panels.map(|(tenant, title)| Panel { title: title.to_owned(), series: series(tenant, &limits, &traffic) });
    draw(&panels, 1, 800).expect("a picture")
}

fn series(tenant: &str, limits: &[Policy], traffic: &Traffic) -> Series {
    let simulation = Simulation::together(limits, traffic).expect("a simulation");
    let is_own = |arrival: &Arrival| traffic.values(arrival).next() == Some(tenant);
    let key = traffic.arrivals().iter().find(|arrival| is_own(arrival)).copied();
    let interval = Interval { start: millis(0), span: std::time::Duration::from_secs(SECONDS), bins: 120 };
    Series::counting(&simulation, traffic, interval, key.as_ref(), is_own)
}
