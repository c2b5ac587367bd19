//! The trace on the page of the queue (`src/middleware/queue/mod.rs`), and ten more. Each follows from the rules there.

use tokio::time::{Instant, sleep};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_ratelimit::response::{BoxError, RejectWithError};
use tower_ratelimit::{
    FixedWindow, Gcra, Limit, Limiter, Memory, Quota, RateLimitLayer, SlidingLog, TokioClock, algorithm::Algorithm,
};

use crate::goodput::Remote;
use crate::support::{ms, spawn};

#[derive(Clone, Copy)]
struct Request {
    name: char,
    user: u32,
    cost: u64,
    arrives_at: u64,
    leaves_at: Option<u64>,
}

fn request(name: char) -> Request {
    Request { name, user: 1, cost: 1, arrives_at: 0, leaves_at: None }
}

/// Requests that arrive at 0, in alphabetical order.
fn requests(names: &str) -> Vec<Request> {
    names.chars().map(request).collect()
}

/// What became of a request, at a time in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Started(u128),
    Refused(u128),
    Left,
}

fn one(algorithm: impl Algorithm) -> impl Limiter<u32> + Clone {
    let limit = Limit::new("one", algorithm).keyed_by(|user: &u32| *user);
    Memory::builder(limit).clock(TokioClock::new()).build().expect("a limit")
}

fn ten_a_second(burst: u64) -> Gcra {
    Gcra::new(Quota::per_second(10)).burst(burst)
}

/// Sends the requests to a service that answers with the time of the start, and returns their ends by name.
async fn run<S>(service: S, requests: Vec<Request>) -> Vec<(char, End)>
where
    S: Service<Request, Response = Instant, Error = BoxError, Future: Send> + Clone + Send + 'static,
{
    let began = Instant::now();
    let calls: Vec<_> = requests
        .into_iter()
        .map(|request| {
            let service = service.clone();
            spawn(async move {
                sleep(ms(request.arrives_at)).await;
                let call = service.oneshot(request);
                let leaves_at = request.leaves_at.unwrap_or(1_000_000);
                let end = match tokio::time::timeout_at(began + ms(leaves_at), call).await {
                    Ok(Ok(at)) => End::Started((at - began).as_millis()),
                    Ok(Err(_)) => End::Refused(began.elapsed().as_millis()),
                    Err(_) => End::Left,
                };
                (request.name, end)
            })
        })
        .collect();
    let mut ends = Vec::new();
    for call in calls {
        ends.push(call.await.expect("no panic"));
    }
    ends
}

async fn ends(limiter: impl Limiter<u32> + Clone + 'static, max_wait: u64, requests: Vec<Request>) -> Vec<(char, End)> {
    let layer = RateLimitLayer::new(|request: &Request| Some(request.user), limiter).responder(RejectWithError);
    let layer = layer.cost(|request: &Request| request.cost).max_wait(ms(max_wait));
    run(layer.layer(service_fn(|_: Request| async { Ok::<_, BoxError>(Instant::now()) })), requests).await
}

fn started(ends: &[(char, u128)]) -> Vec<(char, End)> {
    ends.iter().map(|(name, at)| (*name, End::Started(*at))).collect()
}

/// The trace on the page: ten requests of one key, of which one is refused and two leave.
#[tokio::test(start_paused = true)]
async fn requests_of_the_trace_start_as_it_says() {
    let mut sent = requests("abcdefghij");
    (sent[1].leaves_at, sent[6].leaves_at) = (Some(99), Some(250));
    let ends = ends(one(ten_a_second(1)), 800, sent).await;
    let expected = [
        ('a', End::Started(0)),
        ('b', End::Left),
        ('c', End::Started(100)),
        ('d', End::Started(200)),
        ('e', End::Started(300)),
        ('f', End::Started(400)),
        ('g', End::Left),
        ('h', End::Started(500)),
        ('i', End::Started(600)),
        ('j', End::Refused(0)),
    ];
    assert_eq!(ends, expected);
}

#[tokio::test(start_paused = true)]
async fn starts_of_a_bucket_are_its_interval_apart() {
    let ends = ends(one(ten_a_second(1)), 800, requests("abcd")).await;
    assert_eq!(ends, started(&[('a', 0), ('b', 100), ('c', 200), ('d', 300)]));
}

#[tokio::test(start_paused = true)]
async fn start_of_a_request_that_leaves_belongs_to_the_next() {
    let mut sent = requests("abcd");
    sent[2].leaves_at = Some(199);
    let ends = ends(one(ten_a_second(1)), 800, sent).await;
    assert_eq!(ends, [('a', End::Started(0)), ('b', End::Started(100)), ('c', End::Left), ('d', End::Started(200))]);
}

#[tokio::test(start_paused = true)]
async fn log_admits_a_window_at_a_time_and_the_rest_is_refused_at_once() {
    let ends = ends(one(SlidingLog::new(Quota::per_second(3))), 1500, requests("abcdefgh")).await;
    let mut expected = started(&[('a', 0), ('b', 0), ('c', 0), ('d', 1000), ('e', 1000), ('f', 1000)]);
    expected.extend([('g', End::Refused(0)), ('h', End::Refused(0))]);
    assert_eq!(ends, expected);
}

#[tokio::test(start_paused = true)]
async fn small_cost_does_not_overtake_a_large_one() {
    let mut sent = requests("abc");
    (sent[0].cost, sent[1].cost) = (2, 2);
    let ends = ends(one(SlidingLog::new(Quota::per_second(3))), 1500, sent).await;
    assert_eq!(ends, started(&[('a', 0), ('b', 1000), ('c', 1000)]));
}

#[tokio::test(start_paused = true)]
async fn newest_first_starts_the_newest() {
    let mut sent = requests("abcd");
    for (index, request) in (0..).zip(&mut sent) {
        request.arrives_at = index;
    }
    let layer = RateLimitLayer::new(|request: &Request| Some(request.user), one(ten_a_second(1)));
    let layer = layer.responder(RejectWithError).max_wait(ms(800)).newest_first();
    let service = layer.layer(service_fn(|_: Request| async { Ok::<_, BoxError>(Instant::now()) }));
    let ends = run(service, sent).await;
    assert_eq!(ends, started(&[('a', 0), ('b', 300), ('c', 200), ('d', 100)]));
}

#[tokio::test(start_paused = true)]
async fn request_waits_in_the_queue_of_the_limit_that_denied_it() {
    let user = Limit::new("user", Gcra::new(Quota::per_second(5)).burst(1)).keyed_by(|user: &u32| *user);
    let organisation = Limit::new("organisation", ten_a_second(1)).keyed_by(|_: &u32| ());
    let limiter = Memory::builder((user, organisation)).clock(TokioClock::new()).build().expect("limits");
    let mut sent = requests("abc");
    sent[2].user = 2;
    let ends = ends(limiter, 800, sent).await;
    assert_eq!(ends, started(&[('a', 0), ('b', 200), ('c', 100)]));
}

#[tokio::test(start_paused = true)]
async fn end_of_a_hold_starts_the_next() {
    let layer = RateLimitLayer::new(|request: &Request| Some(request.user), one(FixedWindow::new(Quota::per_hour(1))));
    let layer = layer.responder(RejectWithError).max_wait(ms(2000));
    let service = layer.settle(|_: u64, _: Result<&Instant, &BoxError>| 0).layer(service_fn(|_: Request| async {
        let started = Instant::now();
        sleep(ms(300)).await;
        Ok::<_, BoxError>(started)
    }));
    let ends = run(service, requests("abc")).await;
    assert_eq!(ends, started(&[('a', 0), ('b', 300), ('c', 600)]));
}

#[tokio::test(start_paused = true)]
async fn later_request_takes_the_place_that_a_leaving_one_frees() {
    let mut sent = requests("abcde");
    sent[1].leaves_at = Some(500);
    sent[4].arrives_at = 600;
    let ends = ends(one(Gcra::new(Quota::per_second(1)).burst(1)), 2500, sent).await;
    let expected = [
        ('a', End::Started(0)),
        ('b', End::Left),
        ('c', End::Started(1000)),
        ('d', End::Refused(0)),
        ('e', End::Started(2000)),
    ];
    assert_eq!(ends, expected);
}

#[tokio::test(start_paused = true)]
async fn cost_of_zero_and_one_above_the_limit_are_answered_at_once() {
    let mut sent = requests("abcd");
    for (request, cost) in sent.iter_mut().zip([5, 3, 0, 6]) {
        request.cost = cost;
    }
    let ends = ends(one(ten_a_second(5)), 800, sent).await;
    let expected = [('a', End::Started(0)), ('b', End::Started(300)), ('c', End::Started(0)), ('d', End::Refused(0))];
    assert_eq!(ends, expected);
}

/// The limiter decides 10 ms after it is asked, and the answer takes 10 ms more.
#[tokio::test(start_paused = true)]
async fn start_over_a_link_is_known_before_its_time() {
    let ends = ends(Remote::new(one(ten_a_second(1)), ms(20)), 800, requests("abc")).await;
    assert_eq!(ends, started(&[('a', 20), ('b', 120), ('c', 220)]));
}
