//! Laws of the rules of a queue.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower::ServiceExt;
use tower_ratelimit::{BoxLimiter, FixedWindow, Gcra, LeakyQueue, Limiter, Quota};

use crate::fairness::{served_per_tenant, tenants_below_one_capacity};
use crate::load::{Call, Counts, Remote, SECOND, held, inner, layer, limited, memory, open_loop, per_span, recorder};
use crate::support::{ms, spawn};

fn bucket(per_second: u64) -> BoxLimiter<u32> {
    memory(Gcra::new(Quota::per_second(per_second)).burst(1))
}

/// The load of one of several processes that share a limit: its link, its longest wait, its requests a second, and the time.
#[derive(Clone, Copy)]
struct Process {
    link: Duration,
    max_wait: Duration,
    per_second: u32,
    time: Duration,
}

/// Runs the processes, and returns how many requests of each start, and what all their queues do.
async fn run(limiter: BoxLimiter<u32>, processes: &[Process]) -> (Vec<usize>, Arc<Counts>) {
    let (counts, mut loads) = (Arc::new(Counts::default()), Vec::new());
    for process in processes {
        let (calls, inner) = recorder();
        let layer = layer(Remote::new(limiter.clone(), process.link)).max_wait(process.max_wait);
        let service = limited(counts.of(layer), inner);
        loads.push((calls, spawn(open_loop(service, process.per_second, 100 * SECOND, process.time, Call::number))));
    }
    let mut served = Vec::new();
    for (calls, load) in loads {
        load.await.expect("the load");
        served.push(calls.lock().unwrap().len());
    }
    (served, counts)
}

/// The process with the short link does not take every start.
#[tokio::test(start_paused = true)]
async fn processes_with_unequal_links_share_a_bucket() {
    let processes = [Duration::from_micros(200), ms(25), ms(25)].map(|link| Process {
        link,
        max_wait: 5 * SECOND,
        per_second: 40,
        time: 20 * SECOND,
    });
    let (served, _) = run(bucket(50), &processes).await;
    assert!(served.iter().all(|&served| served >= 200), "{served:?} of 1000");
    assert!(served.iter().sum::<usize>() >= 950, "{served:?} of 1000");
}

/// Three tenants (40/s) with twenty workers each, below one capacity (50/s) that is 25 ms away. Without the rule the delays
/// of asks decide, which are random: in two of three runs one tenant receives four times as much as the others.
#[tokio::test(start_paused = true)]
async fn tenants_with_many_workers_receive_equal_parts() {
    for _ in 0..5 {
        let [of_tenant, of_all] = [40, 50].map(|rate| Gcra::new(Quota::per_second(rate)).burst(5));
        let limiter = Remote::new(tenants_below_one_capacity(of_tenant, of_all, true), ms(25));
        let served = served_per_tenant(BoxLimiter::new(limiter), &[20; 3], 3 * SECOND, ms(20)).await;
        assert!(served.iter().all(|served| (400..=600).contains(served)), "{served:?} of 1500");
    }
}

/// Users of one organisation that all give up after a second, over a link of 25 ms: the first in order are about to leave.
#[tokio::test(start_paused = true)]
async fn users_that_give_up_lose_no_starts() {
    let [user, organisation] = [5, 50].map(|rate| Gcra::new(Quota::per_second(rate)));
    let limiter = Remote::new(tenants_below_one_capacity(user, organisation, true), ms(25));
    let (calls, inner) = recorder();
    let (service, started) = (limited(layer(limiter).max_wait(10 * SECOND), inner), Instant::now());
    open_loop(service, 75, SECOND, 12 * SECOND, Call::of).await;
    let spans = per_span(&calls, started, 3 * SECOND, 12 * SECOND);
    assert!(spans.iter().all(|&served| served >= 135), "{spans:?} of 150");
}

/// 15 requests a second, of which 10 can start.
#[tokio::test(start_paused = true)]
async fn request_that_cannot_start_in_time_is_refused_at_once() {
    let counts = Arc::new(Counts::default());
    let service = limited(counts.of(layer(bucket(10)).max_wait(2 * SECOND)), inner());
    open_loop(service, 15, 100 * SECOND, 20 * SECOND, Call::number).await;
    let (refused, rejected) = (counts.refused.load(Relaxed), counts.rejected.load(Relaxed));
    assert!(refused >= 75 && rejected <= 2, "{refused} at once, {rejected} late");
}

/// Two processes share a bucket, and each receives half.
#[tokio::test(start_paused = true)]
async fn process_that_receives_a_part_refuses_by_its_part() {
    let process = Process { link: ms(2), max_wait: 2 * SECOND, per_second: 20, time: 30 * SECOND };
    let (_, counts) = run(bucket(20), &[process; 2]).await;
    let (refused, rejected) = (counts.refused.load(Relaxed), counts.rejected.load(Relaxed));
    // 600 of 1200 requests start.
    assert!(rejected <= refused && refused + rejected >= 500, "{refused} at once, {rejected} late");
}

/// Eight processes ask for the starts of one bucket, each of which only one can receive.
#[tokio::test(start_paused = true)]
async fn processes_ask_about_as_often_as_a_limit_admits() {
    let process = Process { link: ms(25), max_wait: 5 * SECOND, per_second: 93, time: 6 * SECOND };
    let (started, counts) = run(bucket(500), &[process; 8]).await;
    let (started, asks) = (started.iter().sum::<usize>(), counts.asks.load(Relaxed));
    assert!(started >= 2_850 && asks <= 4 * started, "{started} of 3000, {asks} asks");
}

/// The end of a hold makes the time of the next start unknown. The queue asks after each release, and not in vain again and
/// again.
#[tokio::test(start_paused = true)]
async fn held_units_are_asked_for_seldom() {
    let limiter = Remote::new(memory(FixedWindow::new(Quota::per_hour(10))), Duration::from_micros(200));
    let (counts, (calls, inner)) = (Arc::new(Counts::default()), recorder());
    let service = held(counts.of(layer(limiter).max_wait(SECOND)), inner);
    open_loop(service, 75, 100 * SECOND, 10 * SECOND, |_| Call::of(0).work(ms(200))).await;
    let (asks, served) = (counts.asks.load(Relaxed), calls.lock().unwrap().len());
    assert!(served >= 475 && asks <= 3 * served, "{served} of 500, {asks} asks");
}

/// A queue asks again within a second, however far its first forecast is: another process may have reset the key.
#[tokio::test(start_paused = true)]
async fn reset_by_another_process_is_seen_within_a_second() {
    let limiter = memory(FixedWindow::new(Quota::per_hour(1)));
    let service = limited(layer(Remote::new(limiter.clone(), ms(1))).max_wait(10_000 * SECOND), inner());
    service.clone().oneshot(Call::of(0)).await.expect("the first");
    let waiting = spawn(service.oneshot(Call::of(0)));
    sleep(ms(10)).await;
    // The queue does not know of an operation on the limiter behind its link.
    limiter.reset(&0).await.expect("a limiter in memory");
    let reset_at = Instant::now();
    waiting.await.expect("no panic").expect("a start");
    assert!(reset_at.elapsed() <= ms(1010), "{:?}", reset_at.elapsed());
}

/// Two processes share a `LeakyQueue` with one place. A denial says when a place is free, whatever start the ask accepts.
#[tokio::test(start_paused = true)]
async fn full_leaky_queue_is_asked_when_a_place_is_free() {
    let process = Process { link: ms(1), max_wait: 2 * SECOND, per_second: 10, time: 20 * SECOND };
    let limiter = memory(LeakyQueue::new(Quota::per_second(5)).max_waiting(1));
    let (started, counts) = run(limiter, &[process; 2]).await;
    let (started, asks) = (started.iter().sum::<usize>(), counts.asks.load(Relaxed));
    assert!(started >= 95 && asks <= 4 * started, "{started} of 100, {asks} asks");
}
