//! Goodput under overload: requests arrive whatever happens to earlier ones (open loop), and clients give up.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower::{Service, ServiceExt};
use tower_ratelimit::{BoxLimiter, FixedWindow, Gcra, LeakyQueue, Quota, SlidingLog, SlidingWindow};

use crate::load::{
    Call, Remote, SECOND, layer, limited, memory, of_all, of_each, open_loop, per_span, recorder, several,
};
use crate::support::{ms, spawn};

/// Every kind of algorithm, at ten a second, and its longest interval between starts.
fn every_algorithm() -> Vec<(&'static str, Duration, BoxLimiter<u32>)> {
    let quota = Quota::per_second(10);
    vec![
        ("LeakyQueue", ms(101), memory(LeakyQueue::new(quota).max_waiting(100))),
        ("Gcra, burst 1", ms(101), memory(Gcra::new(quota).burst(1))),
        ("Gcra, burst 20", ms(101), memory(Gcra::new(quota).burst(20))),
        ("FixedWindow", ms(1001), memory(FixedWindow::new(quota))),
        // A hit counts for up to a block longer than the period: 50 blocks admit at least 9.8 a second.
        ("SlidingWindow", ms(1021), memory(SlidingWindow::new(quota).blocks(50))),
        ("SlidingLog", ms(1001), memory(SlidingLog::new(quota))),
    ]
}

/// The length of each test of overload: 45 s of virtual time, or `GOODPUT_SECONDS`.
fn time_of_load() -> Duration {
    let seconds = std::env::var("GOODPUT_SECONDS").map_or(45, |text| text.parse().expect("GOODPUT_SECONDS: a number"));
    Duration::from_secs(seconds)
}

/// 1.5 times the rate, from clients that give up after 5 s, with waits of up to 10 s.
#[tokio::test(start_paused = true)]
async fn goodput_with_impatient_clients() {
    let (mut failed, time) = (Vec::new(), time_of_load());
    for (name, interval, limiter) in every_algorithm() {
        let (calls, inner) = recorder();
        let mut service = limited(layer(limiter).max_wait(10 * SECOND), inner);
        let started = Instant::now();
        open_loop(service.clone(), 15, 5 * SECOND, time, Call::number).await;
        let spans = per_span(&calls, started, 15 * SECOND, time);
        println!("{name:<16} served per 15 s: {spans:?}");
        if spans.iter().any(|&served| served < 143) {
            failed.push(name);
        }
        // Nothing waits any more: the next request waits for at most one interval.
        sleep(ms(5001)).await;
        let before = Instant::now();
        service.ready().await.expect("ready").call(Call::of(0)).await.expect("a start");
        assert!(before.elapsed() <= interval, "{name}: {:?}", before.elapsed());
    }
    assert!(failed.is_empty(), "goodput below 95 %: {failed:?}");
}

fn bucket(per_second: u64, burst: u64) -> BoxLimiter<u32> {
    memory(Gcra::new(Quota::per_second(per_second)).burst(burst))
}

#[tokio::test(start_paused = true)]
async fn queue_over_a_slow_link_serves_the_whole_rate() {
    let (calls, inner) = recorder();
    let layer = layer(Remote::new(bucket(5000, 1), ms(25))).max_wait(SECOND);
    let service = limited(layer.max_waiters(20_000).max_waiters_per_key(20_000), inner);
    let (started, time) = (Instant::now(), Duration::from_secs(4));
    open_loop(service, 7500, SECOND, time, Call::number).await;
    let spans = per_span(&calls, started, SECOND, time);
    println!("5000 a second over 25 ms: {spans:?}");
    // The first second includes the growth of the number of asks under way.
    assert!(spans[1..].iter().all(|&served| served >= 4750), "{spans:?}");
}

/// Costs of 10 and of 1 arrive equally often. In one process they are served equally often. In two, the small costs demand
/// less than half of the capacity, and the large ones receive the rest. No client leaves, and no bound applies.
#[tokio::test(start_paused = true)]
async fn large_cost_is_served() {
    let time = Duration::from_secs(60);
    let (calls, inner) = recorder();
    let service = limited(layer(bucket(10, 20)).max_wait(500 * SECOND), inner);
    let cost_of = |index: u32| if index.is_multiple_of(2) { 1 } else { 10 };
    open_loop(service, 4, 500 * SECOND, time, |index| Call::of(0).cost(cost_of(index))).await;
    let of_cost = |cost| calls.lock().unwrap().iter().filter(|(_, call)| call.cost == cost).count();
    println!("one process, costs 1 and 10: {} and {}", of_cost(1), of_cost(10));
    assert!(of_cost(10).abs_diff(of_cost(1)) <= 1, "{} and {}", of_cost(1), of_cost(10));

    let shared = bucket(10, 20);
    let mut loads = Vec::new();
    for cost in [1, 10] {
        let (calls, inner) = recorder();
        let service = limited(layer(shared.clone()).max_wait(500 * SECOND), inner);
        loads.push((calls, spawn(open_loop(service, 4, 500 * SECOND, time, move |_| Call::of(0).cost(cost)))));
    }
    let mut served = Vec::new();
    for (calls, load) in loads {
        load.await.expect("the load");
        served.push(calls.lock().unwrap().len());
    }
    println!("two processes, costs 1 and 10: {served:?}");
    // 600 units in a minute, and the burst.
    assert!(served[1] * 10 >= 300 && served[0] + served[1] * 10 >= 570, "{served:?}");
}

/// A thousand users of one organisation wait for the organisation's limit.
#[tokio::test(start_paused = true)]
async fn users_of_one_organisation_ask_fewer_than_three_times_per_start() {
    let fifty = Quota::per_second(50);
    for (name, organisation) in [("bucket", of_all(Gcra::new(fifty))), ("window", of_all(FixedWindow::new(fifty)))] {
        let limiter = several(vec![of_each(Gcra::new(Quota::per_second(5))), organisation]);
        let limiter = Remote::new(limiter, Duration::ZERO);
        let asks = Arc::clone(&limiter.asks);
        let (calls, inner) = recorder();
        let service = limited(layer(limiter).max_wait(30 * SECOND).max_waiters(2_000), inner);
        let warm_up = 50;
        open_loop(service.clone(), 50, 30 * SECOND, SECOND, Call::of).await;
        for user in warm_up..1_050_u32 {
            drop(spawn(service.clone().oneshot(Call::of(user))));
            if user % 10 == 0 {
                sleep(ms(1)).await;
            }
        }
        sleep(25 * SECOND).await;
        let (starts, asks) = (calls.lock().unwrap().len(), asks.load(Ordering::Relaxed));
        println!("{name}: {starts} starts, {asks} asks");
        assert_eq!(starts, 1_050);
        assert!(asks < 3 * 1_050, "{name}: {asks} asks for {starts} starts");
    }
}

/// The limit of the organisation of all users: ten starts a second.
fn organisation() -> BoxLimiter<u32> {
    several(vec![of_all(Gcra::new(Quota::per_second(10)).burst(1))])
}

/// The same limit, and one for each user. Limits of which one is idle schedule no starts.
fn user_and_organisation() -> BoxLimiter<u32> {
    let user = of_each(Gcra::new(Quota::per_second(5)));
    several(vec![user, of_all(Gcra::new(Quota::per_second(10)).burst(1))])
}

/// Returns what two processes with links of 0.2 and 25 ms (a timer's tick is 1 ms) served in each 15 s.
async fn served_by_two_processes(
    shared: BoxLimiter<u32>,
    client_timeout: Duration,
    time: Duration,
    call: fn(u32, u32) -> Call,
) -> [Vec<usize>; 2] {
    let (started, mut loads) = (Instant::now(), Vec::new());
    for (process, delay) in (0..).zip([Duration::from_micros(200), ms(25)]) {
        let (calls, inner) = recorder();
        let service = limited(layer(Remote::new(shared.clone(), delay)).max_wait(2 * client_timeout), inner);
        loads.push((calls, spawn(open_loop(service, 15, client_timeout, time, move |index| call(process, index)))));
    }
    let mut served = Vec::new();
    for (calls, load) in loads {
        load.await.expect("the load");
        served.push(per_span(&calls, started, 15 * SECOND, time));
    }
    served.try_into().expect("two processes")
}

/// Users of one organisation cannot use each other's starts. No process is left without starts, whatever its link, and no
/// start is lost to a client that is about to give up.
#[tokio::test(start_paused = true)]
async fn queues_of_many_users_share_the_limit_of_their_organisation() {
    let time = time_of_load();
    for (name, limiter) in [("one limit", organisation as fn() -> _), ("two limits", user_and_organisation)] {
        for client_timeout in [5 * SECOND, 500 * SECOND] {
            let own_user = |process, index| Call::of(index * 2 + process);
            let served = served_by_two_processes(limiter(), client_timeout, time, own_user).await;
            println!("{name}, users that wait {client_timeout:?}: fast and slow link, of 150 per 15 s: {served:?}");
            for (fast, slow) in served[0].iter().zip(&served[1]) {
                let total = fast + slow;
                assert!(total >= 143, "{name}: goodput below 95 %: {served:?}");
                assert!(fast * 10 >= total && slow * 10 >= total, "{name}: below 10 %: {served:?}");
            }
        }
    }
}

/// One process: its clients give up, and each has a key of its own.
#[tokio::test(start_paused = true)]
async fn goodput_with_impatient_users_of_one_organisation() {
    let time = time_of_load();
    for (per_second, client_timeout) in [(15, 5 * SECOND), (15, SECOND), (40, SECOND), (40, ms(60))] {
        for (name, limiter) in [("one limit", organisation()), ("two limits", user_and_organisation())] {
            let (calls, inner) = recorder();
            let service = limited(layer(limiter).max_wait(10 * SECOND), inner);
            let started = Instant::now();
            open_loop(service, per_second, client_timeout, time, Call::of).await;
            let spans = per_span(&calls, started, 15 * SECOND, time);
            println!("{name}, {per_second} users a second that wait {client_timeout:?}: served per 15 s: {spans:?}");
            assert!(spans.iter().all(|&served| served >= 143), "{name}, {per_second}, {client_timeout:?}: {spans:?}");
        }
    }
}
