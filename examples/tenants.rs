//! Four tenants share 400 requests per second: who is served, with guaranteed shares and without.
//!
//! ```text
//! cargo run --example tenants
//! ```
//!
//! Prints how many requests of each tenant are served per second, in one run with one busy tenant and in one with four.
//! With guaranteed shares, each tenant gets what it asks within its share, and borrows what the others leave. With a limit
//! for each tenant nobody can use what the others leave, and with one limit for all the busy tenant denies the others.
//! The example uses a manual clock and ends immediately.

use std::time::Duration;

use tower_ratelimit::{DynLimit, Error, Gcra, Limit, ManualClock, Memory, Quota};

const TENANTS: [&str; 4] = ["red", "blue", "green", "grey"];
const SECONDS: u64 = 60;

/// The key of a request is the index of its tenant.
type Limits = Vec<DynLimit<usize>>;

/// The capacity that all tenants share.
fn all() -> DynLimit<usize> {
    DynLimit::new(Limit::new("all", Gcra::new(Quota::per_second(400)).burst(200)).keyed_by(|_: &usize| ()))
}

/// A guaranteed share of 60 requests per second. Requests above it borrow from the limit for all.
fn guaranteed() -> Limits {
    let share = Limit::new("share", Gcra::new(Quota::per_second(60)).burst(20));
    vec![DynLimit::new(share.keyed_by(|tenant: &usize| *tenant).guarantee(4)), all()]
}

/// A quarter of the capacity for each tenant.
fn fixed() -> Limits {
    let tenant = Limit::new("tenant", Gcra::new(Quota::per_second(100)).burst(20));
    vec![DynLimit::new(tenant.keyed_by(|tenant: &usize| *tenant)), all()]
}

/// Returns the requests of each tenant that are served per second, of those that the tenants ask.
fn serve(limits: Limits, asked_per_second: [u64; 4]) -> Result<[u64; 4], Error> {
    let clock = ManualClock::new();
    let limiter = Memory::builder(limits).clock(clock.clone()).build()?;
    let (mut now, mut asked, mut served) = (0, [0; 4], [0; 4]);
    // The requests of a tenant are evenly spaced. The times are in microseconds.
    let time = |tenant: usize, index: u64| index * 1_000_000 / asked_per_second[tenant];
    while now < SECONDS * 1_000_000 {
        let tenant = (0..TENANTS.len()).min_by_key(|&tenant| time(tenant, asked[tenant])).unwrap_or(0);
        let next = time(tenant, asked[tenant]);
        clock.advance(Duration::from_micros(next - now));
        now = next;
        asked[tenant] += 1;
        served[tenant] += u64::from(limiter.check(&tenant, 1).is_allowed());
    }
    Ok(served.map(|served| served / SECONDS))
}

fn run(title: &str, asked: [u64; 4]) -> Result<(), Error> {
    println!("{title}");
    println!("{:>8} {:>8} {:>18} {:>16} {:>11}", "tenant", "asks", "guaranteed shares", "tenant and all", "all alone");
    let columns = [guaranteed(), fixed(), vec![all()]].map(|limits| serve(limits, asked));
    let [shares, fixed, alone] = columns;
    let (shares, fixed, alone) = (shares?, fixed?, alone?);
    for (index, tenant) in TENANTS.iter().enumerate() {
        let [asks, shares, fixed, alone] = [asked, shares, fixed, alone].map(|column| column[index]);
        println!("{tenant:>8} {asks:>8} {shares:>18} {fixed:>16} {alone:>11}");
    }
    let [asks, shares, fixed, alone] = [asked, shares, fixed, alone].map(|column| column.iter().sum::<u64>());
    println!("{:>8} {asks:>8} {shares:>18} {fixed:>16} {alone:>11}", "sum");
    Ok(())
}

fn main() -> Result<(), Error> {
    run("one busy tenant, requests per second:", [1_300, 47, 53, 59])?;
    println!();
    // Each tenant is served its share. Of the rest, a tenant that asks more gets more.
    run("four busy tenants, requests per second:", [1_300, 610, 310, 170])
}
