//! The trace on the page of the queue (`src/middleware/queue/mod.rs`), six more, and random ones: each follows from the rules
//! there.

use tokio::time::{Instant, sleep};
use tower::{ServiceExt, service_fn};
use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::response::{BoxError, Rejection};
use tower_ratelimit::waiting::until_ready;
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, Clock as _, DynLimit, FixedWindow, Gcra, InFlight, LeakyQueue, Limit, LimitStatus,
    Limiter, Memory, Quota, SlidingLog, TokioClock, Verdict,
};

use crate::load::{Call, CallService, Remote, in_flight, inner, layer, limited, memory, of_all, of_each, several};
use crate::random::Random;
use crate::support::{ms, spawn};

#[derive(Clone, Copy, Debug)]
struct Request {
    name: char,
    call: Call,
    arrives_at: u64,
    leaves_at: Option<u64>,
    /// The time until a bucket would start a request that is refused, and, if it schedules starts, let the request wait.
    wait: Option<[u64; 2]>,
}

fn request(name: char) -> Request {
    Request { name, call: Call::of(1), arrives_at: 0, leaves_at: None, wait: None }
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

fn ten_a_second(burst: u64) -> Gcra {
    Gcra::new(Quota::per_second(10)).burst(burst)
}

/// Sends the requests to a service that answers with the time of the start, and returns their ends by name.
async fn run(service: CallService, requests: Vec<Request>) -> Vec<(char, End)> {
    run_checked(service, requests, |_: &BoxError, _: Request| ()).await
}

/// The same, with a check of each rejection at its time.
async fn run_checked(
    service: CallService,
    requests: Vec<Request>,
    check: impl Fn(&BoxError, Request) + Clone + Send + 'static,
) -> Vec<(char, End)> {
    let began = Instant::now();
    let calls: Vec<_> = requests
        .into_iter()
        .map(|request| {
            let (service, check) = (service.clone(), check.clone());
            spawn(async move {
                sleep(ms(request.arrives_at)).await;
                let call = service.oneshot(request.call);
                let leaves_at = request.leaves_at.unwrap_or(1_000_000);
                let end = match tokio::time::timeout_at(began + ms(leaves_at), call).await {
                    Ok(Ok(at)) => End::Started((at - began).as_millis()),
                    Ok(Err(error)) => {
                        check(&error, request);
                        End::Refused(began.elapsed().as_millis())
                    }
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

async fn ends(limiter: BoxLimiter<u32>, max_wait: u64, requests: Vec<Request>) -> Vec<(char, End)> {
    run(limited(layer(limiter).max_wait(ms(max_wait)), inner()), requests).await
}

fn started(ends: &[(char, u128)]) -> Vec<(char, End)> {
    ends.iter().map(|(name, at)| (*name, End::Started(*at))).collect()
}

/// The trace on the page: ten requests of one key, of which one is refused and two leave.
#[tokio::test(start_paused = true)]
async fn requests_of_the_trace_start_as_it_says() {
    let mut sent = requests("abcdefghij");
    (sent[1].leaves_at, sent[6].leaves_at) = (Some(99), Some(250));
    let ends = ends(memory(ten_a_second(1)), 800, sent).await;
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
async fn log_admits_a_window_at_a_time_and_the_rest_is_refused_at_once() {
    let ends = ends(memory(SlidingLog::new(Quota::per_second(3))), 1500, requests("abcdefgh")).await;
    let mut expected = started(&[('a', 0), ('b', 0), ('c', 0), ('d', 1000), ('e', 1000), ('f', 1000)]);
    expected.extend([('g', End::Refused(0)), ('h', End::Refused(0))]);
    assert_eq!(ends, expected);
}

#[tokio::test(start_paused = true)]
async fn small_cost_does_not_overtake_a_large_one() {
    let mut sent = requests("abc");
    (sent[0].call.cost, sent[1].call.cost) = (2, 2);
    let ends = ends(memory(SlidingLog::new(Quota::per_second(3))), 1500, sent).await;
    assert_eq!(ends, started(&[('a', 0), ('b', 1000), ('c', 1000)]));
}

#[tokio::test(start_paused = true)]
async fn newest_first_starts_the_newest() {
    let mut sent = requests("abcd");
    for (index, request) in (0..).zip(&mut sent) {
        request.arrives_at = index;
    }
    let layer = layer(memory(ten_a_second(1))).max_wait(ms(800)).newest_first();
    let ends = run(limited(layer, inner()), sent).await;
    assert_eq!(ends, started(&[('a', 0), ('b', 300), ('c', 200), ('d', 100)]));
}

#[tokio::test(start_paused = true)]
async fn request_waits_in_the_queue_of_the_limit_that_denied_it() {
    let user = of_each(Gcra::new(Quota::per_second(5)).burst(1));
    let limiter = several(vec![user, of_all(ten_a_second(1))]);
    let mut sent = requests("abc");
    sent[2].call.key = 2;
    let ends = ends(limiter, 800, sent).await;
    assert_eq!(ends, started(&[('a', 0), ('b', 200), ('c', 100)]));
}

#[tokio::test(start_paused = true)]
async fn cost_of_zero_and_one_above_the_limit_are_answered_at_once() {
    let mut sent = requests("abcd");
    for (request, cost) in sent.iter_mut().zip([5, 3, 0, 6]) {
        request.call.cost = cost;
    }
    let ends = ends(memory(ten_a_second(5)), 800, sent).await;
    let expected = [('a', End::Started(0)), ('b', End::Started(300)), ('c', End::Started(0)), ('d', End::Refused(0))];
    assert_eq!(ends, expected);
}

/// The limiter decides 10 ms after it is asked, and the answer takes 10 ms more.
#[tokio::test(start_paused = true)]
async fn start_over_a_link_is_known_before_its_time() {
    let ends = ends(BoxLimiter::new(Remote::new(memory(ten_a_second(1)), ms(20))), 800, requests("abc")).await;
    assert_eq!(ends, started(&[('a', 20), ('b', 120), ('c', 220)]));
}

// ---------------------------------------------------------------------------------------------------------------------
// Random traces
// ---------------------------------------------------------------------------------------------------------------------

/// A limit of one key, with times in milliseconds.
#[derive(Clone, Copy, Debug)]
enum Pace {
    Bucket { interval: u64, burst: u64 },
    Queue { interval: u64, max_waiting: u64 },
    Window { limit: u64, period: u64 },
    Log { limit: u64, period: u64 },
}

impl Pace {
    fn random(random: &mut Random) -> Self {
        let (interval, period) = (10 + random.below(120), 50 + random.below(400));
        let limit = 1 + random.below(4);
        match random.below(4) {
            0 => Self::Bucket { interval, burst: limit },
            1 => Self::Queue { interval, max_waiting: random.below(8) },
            2 => Self::Window { limit, period },
            _ => Self::Log { limit, period },
        }
    }

    /// The limit, larger by the units that are kept free.
    fn limiter(self, beside: Beside, clock: TokioClock) -> BoxLimiter<u32> {
        let kept = beside.kept;
        let of_interval = |interval| Quota::new(1, ms(interval));
        match self {
            Self::Bucket { interval, burst } => {
                beside.limiter(Gcra::new(of_interval(interval)).burst(burst + kept), clock)
            }
            Self::Queue { interval, max_waiting } => {
                beside.limiter(LeakyQueue::new(of_interval(interval)).max_waiting(max_waiting), clock)
            }
            Self::Window { limit, period } => {
                beside.limiter(FixedWindow::new(Quota::new(limit + kept, ms(period))), clock)
            }
            Self::Log { limit, period } => beside.limiter(SlidingLog::new(Quota::new(limit + kept, ms(period))), clock),
        }
    }

    /// The earliest start from `now` on after these starts.
    fn next(self, starts: &[u64], now: u64) -> u64 {
        let full = |interval: u64, burst: u64| {
            let drained = starts.iter().fold(0, |drained: u64, start| drained.max(*start) + interval);
            now.max(drained.saturating_sub((burst - 1) * interval))
        };
        match self {
            Self::Bucket { interval, burst } => full(interval, burst),
            Self::Queue { interval, .. } => full(interval, 1),
            Self::Window { limit, period } => {
                let mut window = None;
                for start in starts {
                    window = match window {
                        Some((begin, count)) if *start < begin + period => Some((begin, count + 1)),
                        _ => Some((*start, 1)),
                    };
                }
                window.filter(|(_, count)| *count == limit).map_or(now, |(begin, _)| now.max(begin + period))
            }
            Self::Log { limit, period } => {
                let oldest = starts.len().checked_sub(usize::try_from(limit).expect("small"));
                oldest.map_or(now, |oldest| now.max(starts[oldest] + period))
            }
        }
    }

    /// The start of the last of `count` requests that wait.
    fn start_of_last(self, starts: &[u64], now: u64, count: usize) -> u64 {
        let (mut starts, mut last) = (starts.to_vec(), now);
        for _ in 0..count {
            last = self.next(&starts, last);
            starts.push(last);
        }
        last
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Layer,
    /// A layer that tracks the end of each request.
    Tracking,
    /// Without a layer, and so without a bound of places.
    UntilReady,
}

/// What a limit is used with. None of it changes a start.
#[derive(Clone, Copy, Debug)]
struct Beside {
    /// The units that are kept free from all requests.
    kept: u64,
    way: Way,
    /// A shadow that would deny most requests.
    shadow: bool,
    /// A limit on requests in flight that is never reached, before the limit or after it.
    in_flight: Option<bool>,
    /// The bound of each wait. A layer without it waits for a `LeakyQueue` only, which schedules the first start.
    max_wait: Option<u64>,
}

impl Beside {
    fn random(random: &mut Random, pace: Pace) -> Self {
        let is_queue = matches!(pace, Pace::Queue { .. });
        let kept = if is_queue { 0 } else { random.choose(&[0, 0, 1, 5, 40]) };
        let way = random.choose(&[Way::Layer, Way::Tracking, Way::UntilReady]);
        let max_wait = match pace {
            // The queue knows the next start of a log, and estimates those after it.
            Pace::Log { .. } => Some(20_000),
            _ => Some(random.choose(&[0, 30, 150, 500, 2000])),
        };
        // Without a layer, the places of a `LeakyQueue` are no bound, but the wait for one counts as a denial.
        let max_wait = max_wait.filter(|_| random.below(4) > 0 && !(is_queue && way == Way::UntilReady));
        // Beside requests in flight a `LeakyQueue` schedules nothing, so its bounds are estimates.
        let in_flight = random.choose(&[None, Some(false), Some(true)]).filter(|_| way == Way::Tracking && !is_queue);
        Self { kept, way, shadow: random.below(3) == 0, in_flight, max_wait }
    }

    /// How long a request waits at most, and how many of them.
    fn bounds(self, pace: Pace, places: usize) -> (u64, usize) {
        match (self.way, pace) {
            (Way::UntilReady, _) => (self.max_wait.unwrap_or(1_000_000), usize::MAX),
            (_, Pace::Queue { max_waiting, .. }) => {
                (self.max_wait.unwrap_or(1_000_000), places.min(usize::try_from(max_waiting).expect("small")))
            }
            _ => (self.max_wait.unwrap_or(0), places),
        }
    }

    fn service(self, limiter: BoxLimiter<u32>, places: usize) -> CallService {
        if self.way == Way::UntilReady {
            let mut options = AcquireOptions::default();
            options.max_delay = self.max_wait.map(ms);
            return CallService::new(service_fn(move |call: Call| {
                let limiter = limiter.clone();
                async move {
                    let decision = until_ready(&limiter, &call.key, options).await?;
                    if decision.is_allowed() { Ok(Instant::now()) } else { Err("denied".into()) }
                }
            }));
        }
        let layer = layer(limiter).max_waiters(places).max_waiters_per_key(places);
        let layer = if let Some(max_wait) = self.max_wait { layer.max_wait(ms(max_wait)) } else { layer };
        if self.way == Way::Tracking { in_flight(layer, inner()) } else { limited(layer, inner()) }
    }

    fn limiter(self, algorithm: impl Algorithm, clock: TokioClock) -> BoxLimiter<u32> {
        let (kept, limit) = (self.kept, Limit::new("one", algorithm).keyed_by(|key: &u32| *key));
        let mut limits = vec![match kept {
            0 => DynLimit::new(limit),
            _ => DynLimit::new(limit.keep_free_by(move |_: &u32| kept)),
        }];
        if let Some(is_first) = self.in_flight {
            limits.insert(usize::from(!is_first), of_all(InFlight::new(50)));
        }
        if self.shadow {
            let limit = Limit::new("shadow", FixedWindow::new(Quota::per_second(1))).keyed_by(|key: &u32| *key);
            limits.push(DynLimit::new(limit.shadow()));
        }
        BoxLimiter::new(Memory::builder(limits).clock(clock).build().expect("limits"))
    }
}

/// What the rules say of random arrivals: requests start in order of arrival, as early as the limit allows; a request that
/// could not start within its bound, or that finds all places taken, is refused at once; and a request that leaves, with
/// others behind it, gives its start to the next.
///
/// Returns `None` if two events are in one millisecond, whose order the rules leave open.
fn by_the_rules(pace: Pace, max_wait: u64, places: usize, random: &mut Random) -> Option<(Vec<Request>, Vec<End>)> {
    let mut requests: Vec<Request> = Vec::new();
    let (mut ends, mut starts, mut waiting): (Vec<End>, Vec<u64>, Vec<usize>) = Default::default();
    let mut pause = 0_u64;
    for now in 0..20_000 {
        let mut events = 0;
        while let Some(first) = waiting.first().copied().filter(|_| pace.next(&starts, now) == now) {
            waiting.remove(0);
            starts.push(now);
            ends[first] = End::Started(now.into());
            events |= 1;
        }
        if waiting.len() > 1 && random.below(60) == 0 {
            let left = waiting.remove(random.index(waiting.len()));
            requests[left].leaves_at = Some(now);
            ends[left] = End::Left;
            events |= 2;
        }
        if requests.len() < 30 && pause == 0 {
            pause = random.choose(&[1, 1, 3, 20, 90, 700]);
            requests
                .push(Request { arrives_at: now, ..request(char::from(b'A' + u8::try_from(requests.len()).ok()?)) });
            let start = pace.start_of_last(&starts, now, waiting.len() + 1);
            ends.push(if waiting.is_empty() && start == now {
                starts.push(now);
                End::Started(now.into())
            } else if start - now > max_wait || waiting.len() >= places {
                let waits = start - now;
                let bounded = if waits > max_wait { waits - max_wait } else { waits };
                requests.last_mut()?.wait = Some([waits, bounded]).filter(|_| matches!(pace, Pace::Bucket { .. }));
                End::Refused(now.into())
            } else {
                waiting.push(requests.len() - 1);
                End::Left
            });
            events |= 4;
        }
        pause = pause.saturating_sub(1);
        if events != 0 && !u32::is_power_of_two(events) {
            return None;
        }
    }
    waiting.is_empty().then_some((requests, ends))
}

/// A rejection names the limit, states that nothing remains, and states the times as of now. If no request may wait, it has
/// the limiter's own numbers.
fn check_rejection(rejection: &BoxError, clock: TokioClock, limiter: Option<&BoxLimiter<u32>>, request: Request) {
    let rejected = rejection.downcast_ref::<Rejection>().expect("a rejection");
    let decision = rejected.decision().expect("over the limit");
    let status = decision.most_restrictive().expect("a limit");
    let is_denied = matches!(status.verdict(), Verdict::Denied { .. });
    assert!(status.name() == "one" && is_denied, "{decision:?}");
    assert!(limiter.is_some() || status.remaining() == 0, "{decision:?}");
    let wait = decision.retry_after().expect("a wait");
    assert!(
        decision.is_estimate()
            || request.wait.is_none_or(|waits| wait == ms(waits[usize::from(decision.supports_scheduling())])),
        "{request:?}: {decision:?}"
    );
    assert!(decision.decided_at() == clock.now() && status.reset() >= wait, "{:?}: {decision:?}", clock.now());
    let listed = decision.limits().iter().find(|status| status.name() == "one").expect("the limit");
    assert_eq!(listed, status, "{decision:?}");
    if let Some(limiter) = limiter.filter(|_| request.wait.is_some()) {
        let peeked = limiter.peek(&request.call.key, AcquireOptions::default()).try_ready().expect("memory");
        let unchanged = peeked.expect("a decision").most_restrictive().map(LimitStatus::snapshot);
        assert_eq!(unchanged, Some(status.snapshot()));
    }
}

/// The law: every request of a random trace ends as the rules say, to the millisecond.
#[tokio::test(start_paused = true)]
async fn requests_of_random_traces_end_as_the_rules_say() {
    let mut counts = [0; 4];
    for seed in 0..600 {
        let mut random = Random::new(seed);
        let pace = Pace::random(&mut random);
        let beside = Beside::random(&mut random, pace);
        let set_places = random.choose(&[0, 1, 3, 50]);
        let (max_wait, places) = beside.bounds(pace, set_places);
        let Some((sent, expected)) = by_the_rules(pace, max_wait, places, &mut random) else { continue };
        let clock = TokioClock::new();
        let limiter = pace.limiter(beside, clock);
        let service = beside.service(limiter.clone(), set_places);
        let limiter = Some(limiter).filter(|_| max_wait == 0 || places == 0);
        let check = move |rejection: &BoxError, request: Request| {
            if beside.way != Way::UntilReady {
                check_rejection(rejection, clock, limiter.as_ref(), request);
            }
        };
        let ends = run_checked(service, sent.clone(), check).await;
        let ends: Vec<_> = ends.into_iter().map(|(_, end)| end).collect();
        let arrivals: Vec<_> = sent.iter().map(|request| (request.arrives_at, request.leaves_at)).collect();
        assert_eq!(ends, expected, "seed {seed}, {pace:?}, {beside:?}, {places} places, {arrivals:?}");
        for (request, end) in sent.iter().zip(&expected) {
            counts[match end {
                End::Started(at) if *at == u128::from(request.arrives_at) => 0,
                End::Started(_) => 1,
                End::Refused(_) => 2,
                End::Left => 3,
            }] += 1;
        }
    }
    println!("{counts:?}");
    assert!(counts.iter().all(|count| *count > 100), "{counts:?}");
}
