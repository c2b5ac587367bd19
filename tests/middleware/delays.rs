//! Waiting for one's turn, in virtual time: who waits departs when it was promised, in the order of asking; who can't
//! make it is refused at once; nobody is lost; a cancelled waiter frees its permit, and its charge stays; and whoever waits
//! holds nothing that others need.
//!
//! All times are whole milliseconds, the resolution of tokio's timer, so that departures are exact. Where something is
//! "at once", virtual time has not moved.

use std::collections::HashMap;
use std::future::{Future, Ready, ready};
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tower::limit::ConcurrencyLimit;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::key::Global;
use tower_ratelimit::limiter::{Acquisition, BoxFuture, Held, LimiterFuture, Outcome};
use tower_ratelimit::response::{BoxError, RejectWithError, Rejected};
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, Decision, Error, FixedWindow, Gcra, LeakyBucket, LeakyQueue, Limit, Limiter, Memory,
    Quota, RateLimitLayer, SlidingLog, SlidingWindow, TokenBucket, TokioClock, Verdict,
};

const SECOND: Duration = Duration::from_secs(1);

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// One each 100 ms.
const TEN_A_SECOND: Quota = Quota::per_second(10);

fn memory(algorithm: impl Algorithm) -> BoxLimiter<()> {
    BoxLimiter::new(Memory::builder(algorithm).max_keys(100).clock(TokioClock::new()).build().unwrap())
}

fn layer<A>(limiter: A) -> RateLimitLayer<Global, A, RejectWithError> {
    RateLimitLayer::new(Global, limiter).responder(RejectWithError)
}

/// A service that answers with the virtual time at which it was called.
fn desk() -> impl Service<u32, Response = Duration, Error = BoxError, Future: Send> + Clone + Send + 'static {
    let opened = Instant::now();
    service_fn(move |_: u32| ready(Ok(opened.elapsed())))
}

/// What became of a caller: when it was served, or when it was refused and until when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum RetryHint {
    Served(Duration),
    Refused { at: Duration, retry_after: Option<Duration> },
}

use RetryHint::{Refused, Served};

fn refused(at: Duration, retry_after: Duration) -> RetryHint {
    Refused { at, retry_after: Some(retry_after) }
}

/// Calls the service now, and lets somebody else wait for the answer.
fn call<S>(service: &S, caller: u32, opened: Instant) -> JoinHandle<RetryHint>
where
    S: Service<u32, Response = Duration, Error = BoxError, Future: Send> + Clone + Send + 'static,
{
    let response = service.clone().call(caller);
    tokio::spawn(async move {
        match response.await {
            Ok(at) => Served(at),
            Err(error) => {
                let rejected = error.downcast::<Rejected>().expect("the limiter's error");
                Refused { at: opened.elapsed(), retry_after: rejected.rejection().retry_after() }
            }
        }
    })
}

/// So many callers ask at one moment, one after another. The desk is always ready.
async fn all<S>(service: &S, callers: u32) -> Vec<RetryHint>
where
    S: Service<u32, Response = Duration, Error = BoxError, Future: Send> + Clone + Send + 'static,
{
    let opened = Instant::now();
    let answers: Vec<_> = (0..callers).map(|caller| call(service, caller, opened)).collect();
    let mut told = Vec::new();
    for answer in answers {
        told.push(answer.await.unwrap());
    }
    told
}

fn served_each(spacing: Duration, callers: u32) -> Vec<RetryHint> {
    (0..callers).map(|caller| Served(spacing * caller)).collect()
}

// ---------------------------------------------------------------------------------------------------------------------
// The queue
// ---------------------------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn a_queue_lets_out_at_a_constant_spacing() {
    let service = layer(memory(LeakyQueue::new(TEN_A_SECOND).max_waiting(19))).layer(desk());
    assert_eq!(all(&service, 20).await, served_each(ms(100), 20));
}

#[tokio::test(start_paused = true)]
async fn a_queue_spaces_out_whoever_comes_whenever() {
    let service = layer(memory(LeakyQueue::new(TEN_A_SECOND).max_waiting(50))).layer(desk());
    let opened = Instant::now();
    let mut answers = Vec::new();
    // Bunches, stragglers and a pause in which the queue runs empty.
    for (caller, pause) in [0, 0, 0, 30, 0, 250, 1, 1, 0, 2000, 0, 99, 2, 0].into_iter().enumerate() {
        sleep(ms(pause)).await;
        let came = opened.elapsed();
        answers.push((came, call(&service, u32::try_from(caller).unwrap(), opened)));
    }
    let mut free_at = Duration::ZERO;
    for (came, answer) in answers {
        let turn = came.max(free_at);
        assert_eq!(answer.await.unwrap(), Served(turn));
        free_at = turn + ms(100);
    }
}

#[tokio::test(start_paused = true)]
async fn at_most_so_many_wait_and_one_more_is_refused_at_once() {
    let service = layer(memory(LeakyQueue::new(TEN_A_SECOND).max_waiting(4))).layer(desk());
    let mut expected = served_each(ms(100), 5);
    // There is room for the sixth when the second has left.
    expected.extend([refused(Duration::ZERO, ms(100)); 3]);
    assert_eq!(all(&service, 8).await, expected);

    // All have left; the last left 100 ms before there is another turn.
    sleep(ms(100)).await;
    let told = all(&service, 8).await;
    assert_eq!(told.iter().filter(|told| matches!(told, Served(_))).count(), 5);
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_a_queue_without_places() {
    let service = layer(memory(LeakyQueue::new(TEN_A_SECOND).max_waiting(0))).layer(desk());
    let expected = [Served(Duration::ZERO), refused(Duration::ZERO, ms(100))];
    assert_eq!(all(&service, 2).await, expected);
}

#[tokio::test(start_paused = true)]
async fn max_wait_shortens_the_wait_in_a_queue_and_never_lengthens_the_queue() {
    let queue = || memory(LeakyQueue::new(TEN_A_SECOND).max_waiting(3));

    let none = layer(queue()).max_wait(Duration::ZERO).layer(desk());
    assert_eq!(all(&none, 2).await, [Served(Duration::ZERO), refused(Duration::ZERO, ms(100))]);

    let opened = Instant::now();
    let some = layer(queue()).max_wait(ms(150)).layer(desk());
    let told = [Served(Duration::ZERO), Served(ms(100)), refused(Duration::ZERO, ms(50))];
    assert_eq!(all(&some, 3).await, told);
    assert_eq!(opened.elapsed(), ms(100));

    let long = layer(queue()).max_wait(Duration::from_secs(3600)).layer(desk());
    let mut told = served_each(ms(100), 4);
    told.push(refused(Duration::ZERO, ms(100)));
    assert_eq!(all(&long, 5).await, told);
}

// ---------------------------------------------------------------------------------------------------------------------
// `max_wait`
// ---------------------------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn without_max_wait_only_a_queue_waits() {
    let limiters = [
        memory(Gcra::new(Quota::per_second(1))),
        memory(TokenBucket::new(Quota::per_second(1))),
        memory(LeakyBucket::new(Quota::per_second(1))),
        memory(FixedWindow::new(Quota::per_second(1))),
        memory(SlidingWindow::new(Quota::per_second(1))),
        memory(SlidingLog::new(Quota::per_second(1))),
    ];
    for limiter in limiters {
        let service = layer(limiter).layer(desk());
        let told = all(&service, 2).await;
        assert_eq!(told[0], Served(Duration::ZERO));
        assert!(matches!(told[1], Refused { at: Duration::ZERO, retry_after: Some(_) }), "{told:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_bucket_promises_turns_first_come_first_served() {
    let limiters = [
        memory(Gcra::new(TEN_A_SECOND).burst(2)),
        memory(TokenBucket::new(TEN_A_SECOND).burst(2)),
        memory(LeakyBucket::new(TEN_A_SECOND).burst(2)),
    ];
    for limiter in limiters {
        let service = layer(limiter).max_wait(SECOND).layer(desk());
        // Two at once, then one each 100 ms.
        let mut expected: Vec<_> = (0..12).map(|caller: u32| Served(ms(100) * caller.saturating_sub(1))).collect();
        // The thirteenth would wait for 1.1 s, the others of them as long: nothing is charged for a refusal.
        expected.extend([refused(Duration::ZERO, ms(100)); 3]);
        assert_eq!(all(&service, 15).await, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_turn_is_waited_for_as_long_as_it_costs() {
    let limiter = memory(TokenBucket::new(TEN_A_SECOND).burst(5));
    let service = layer(limiter).max_wait(SECOND).cost(|tokens: &u32| u64::from(*tokens)).layer(desk());
    let opened = Instant::now();
    let answers: Vec<_> = [5, 3, 0, 1, 6, 5, 2].into_iter().map(|cost| call(&service, cost, opened)).collect();
    let mut told = Vec::new();
    for answer in answers {
        told.push(answer.await.unwrap());
    }
    let at_once = Duration::ZERO;
    let expected = [
        Served(at_once),
        Served(ms(300)),
        // A cost of zero is a question: it is answered when the key is no longer in debt beyond its burst.
        Served(ms(300)),
        Served(ms(400)),
        // Six never fit.
        Refused { at: at_once, retry_after: None },
        Served(ms(900)),
        refused(at_once, ms(100)),
    ];
    assert_eq!(told, expected);
}

/// Windows and logs promise no turns: who waits asks again when there should be room.
#[tokio::test(start_paused = true)]
async fn who_waits_for_a_window_or_a_log_asks_again_and_nobody_is_lost() {
    let three_a_second = Quota::per_second(3);
    for limiter in [memory(FixedWindow::new(three_a_second)), memory(SlidingLog::new(three_a_second))] {
        let service = layer(limiter).max_wait(3 * SECOND).layer(desk());
        let mut told = all(&service, 20).await;
        told.sort();
        let mut expected: Vec<_> = (0..12).map(|index: u32| Served(SECOND * (index / 3))).collect();
        // At the end of their patience the other eight have asked for the last time.
        expected.extend([refused(3 * SECOND, SECOND); 8]);
        assert_eq!(told, expected);
    }
}

/// Its windows are aligned to the clock, which starts at any moment: departures are not whole milliseconds, bounds
/// hold.
#[tokio::test(start_paused = true)]
async fn who_waits_for_a_sliding_window_asks_again_and_nobody_is_lost() {
    for window in [SlidingWindow::new(Quota::per_second(3)), SlidingWindow::new(Quota::per_second(3)).weighted()] {
        let service = layer(memory(window)).max_wait(3 * SECOND).layer(desk());
        let told = all(&service, 20).await;
        let mut served: Vec<_> =
            told.iter().filter_map(|told| if let Served(at) = told { Some(*at) } else { None }).collect();
        served.sort();
        // A hit counts for up to 1.1 s: three at 0, and at the latest at 1.1 s and at 2.2 s.
        assert!((9..=12).contains(&served.len()), "{served:?}");
        assert_eq!(served[2], Duration::ZERO);
        for told in told {
            let (Served(at) | Refused { at, .. }) = told;
            // Waking up late by a timer's tick is no waiting for longer.
            assert!(at <= 3 * SECOND + ms(1) * 20, "{told:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn who_cannot_make_it_is_refused_at_once() {
    let limiters = [
        memory(Gcra::new(Quota::per_minute(1))),
        memory(TokenBucket::new(Quota::per_minute(1))),
        memory(LeakyBucket::new(Quota::per_minute(1))),
        memory(LeakyQueue::new(Quota::per_minute(1))),
        memory(FixedWindow::new(Quota::per_minute(1))),
        memory(SlidingLog::new(Quota::per_minute(1))),
    ];
    for limiter in limiters {
        let service = layer(limiter).max_wait(ms(59_999)).layer(desk());
        let opened = Instant::now();
        assert_eq!(call(&service, 0, opened).await.unwrap(), Served(Duration::ZERO));
        for _ in 0..3 {
            let told = call(&service, 1, opened).await.unwrap();
            assert!(matches!(told, Refused { at: Duration::ZERO, retry_after: Some(_) }), "{told:?}");
        }
        // A millisecond later it can be made.
        sleep(ms(1)).await;
        assert!(matches!(call(&service, 1, opened).await.unwrap(), Served(_)));
        assert_eq!(opened.elapsed(), Duration::from_secs(60));
    }
}

/// The patience is for the whole wait, however often it is asked again, and however late a timer wakes.
#[tokio::test(start_paused = true)]
async fn patience_is_not_stretched_by_asking_often() {
    /// Says each time that there is something in a moment, and never has it.
    #[derive(Clone)]
    struct Soon(TokioClock);

    impl Limiter<()> for Soon {
        type Future = Ready<Result<Outcome, Error>>;

        fn acquire(&self, (): &(), _ask: AcquireOptions) -> Acquisition<Self::Future> {
            use tower_ratelimit::Clock;

            let verdict = Verdict::Denied { retry_after: Duration::from_micros(100) };
            Acquisition::Ready(Ok(Decision::by_policy(self.0.now(), verdict).into()))
        }
    }

    let service = layer(Soon(TokioClock::new())).max_wait(ms(50)).layer(desk());
    let told = all(&service, 1).await;
    let Refused { at, .. } = told[0] else { panic!("{told:?}") };
    assert!(at <= ms(51), "it waited for {at:?}");
}

// ---------------------------------------------------------------------------------------------------------------------
// Many
// ---------------------------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn a_thousand_wait_for_a_bucket_in_the_order_of_asking() {
    let limiter = memory(Gcra::new(Quota::per_second(1000)).strict());
    let service = layer(limiter).max_wait(ms(600)).layer(desk());
    let mut expected = served_each(ms(1), 601);
    expected.extend([refused(Duration::ZERO, ms(1)); 399]);
    assert_eq!(all(&service, 1000).await, expected);
}

#[tokio::test(start_paused = true)]
async fn a_thousand_of_ten_keys_wait_each_in_its_own_line() {
    let memory = Memory::builder(LeakyQueue::new(TEN_A_SECOND).max_waiting(1000)).max_keys(100);
    let limiter = memory.clock(TokioClock::new()).build().unwrap();
    let by_last_digit = |caller: &u32| Some(*caller % 10);
    let service = RateLimitLayer::new(by_last_digit, limiter).responder(RejectWithError).layer(desk());
    let expected: Vec<_> = (0..1000_u32).map(|caller| Served(ms(100) * (caller / 10))).collect();
    assert_eq!(all(&service, 1000).await, expected);
}

#[tokio::test(start_paused = true)]
async fn a_thousand_wait_for_a_window_and_all_are_told_within_their_patience() {
    for limiter in [memory(FixedWindow::new(Quota::per_second(100))), memory(SlidingLog::new(Quota::per_second(100)))] {
        let service = layer(limiter).max_wait(5 * SECOND).layer(desk());
        let mut told = all(&service, 1000).await;
        told.sort();
        let mut expected: Vec<_> = (0..600).map(|index: u32| Served(SECOND * (index / 100))).collect();
        expected.extend([refused(5 * SECOND, SECOND); 400]);
        assert_eq!(told, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn no_more_than_max_waiters_wait_and_one_more_is_refused_at_once() {
    let layer = layer(memory(LeakyQueue::new(TEN_A_SECOND).max_waiting(100))).max_waiters(3);
    let service = layer.layer(desk());
    let opened = Instant::now();
    // They wait over all services of a layer.
    let other = layer.layer(desk());
    let services = [&service, &other, &service, &other, &service, &other];
    let answers: Vec<_> = (0..6).map(|caller| call(services[caller as usize], caller, opened)).collect();
    let mut told = Vec::new();
    for answer in answers {
        told.push(answer.await.unwrap());
    }
    let mut expected = served_each(ms(100), 4);
    expected.extend([refused(Duration::ZERO, ms(400)); 2]);
    assert_eq!(told, expected);

    // A request without a permit was denied before it was charged: the next start is at 400 ms. And the permits are free again.
    let told = all(&service, 5).await;
    let mut expected: Vec<_> = (4..7).map(|turn: u32| Served(ms(100) * turn)).collect();
    expected.extend([refused(ms(300), ms(400)); 2]);
    assert_eq!(told[..3], expected[..3]);
    assert!(told[3..].iter().all(|told| matches!(told, Refused { .. })), "{told:?}");
}

/// Nobody is charged for a turn that there is no place to wait for, not even until it is refused.
#[tokio::test(start_paused = true)]
async fn who_finds_no_place_is_told_how_the_key_stands() {
    let limiter = memory(Gcra::new(TEN_A_SECOND).burst(2));
    let mut service = layer(limiter.clone()).max_wait(SECOND).max_waiters(0).layer(desk());
    for caller in 0..2 {
        assert!(service.call(caller).await.is_ok());
    }
    let rejected = service.call(2).await.unwrap_err().downcast::<Rejected>().unwrap();
    let told = rejected.rejection().decision().unwrap();
    let peeked = limiter.peek(&(), AcquireOptions::default()).await.unwrap();
    assert_eq!((told.retry_after(), told.reset()), (Some(ms(100)), Some(ms(200))));
    assert_eq!((peeked.retry_after(), peeked.reset()), (Some(ms(100)), Some(ms(200))));
}

#[tokio::test(start_paused = true)]
async fn a_blocked_key_is_asked_for_again_when_the_block_ends() {
    for (longest, told) in [(500, Served(ms(500))), (499, refused(Duration::ZERO, ms(500)))] {
        for limiter in [memory(Gcra::new(TEN_A_SECOND)), memory(LeakyQueue::new(TEN_A_SECOND))] {
            limiter.block("default", &(), ms(500)).await.unwrap();
            let service = layer(limiter).max_wait(ms(longest)).layer(desk());
            assert_eq!(all(&service, 1).await, [told]);
        }
    }
    // A turn that comes too late whatever the block is refused at once.
    let limiter = memory(Gcra::new(Quota::per_second(1)).strict());
    let service = layer(limiter.clone()).max_wait(ms(900)).layer(desk());
    assert_eq!(all(&service, 1).await, [Served(Duration::ZERO)]);
    limiter.block("default", &(), ms(500)).await.unwrap();
    assert_eq!(all(&service, 1).await, [refused(Duration::ZERO, ms(500))]);
}

#[tokio::test(start_paused = true)]
async fn those_who_ask_again_count_among_the_waiters() {
    let service =
        layer(memory(FixedWindow::new(Quota::per_second(1)))).max_wait(10 * SECOND).max_waiters(2).layer(desk());
    let mut told = all(&service, 5).await;
    told.sort();
    let mut expected = served_each(SECOND, 3);
    expected.extend([refused(Duration::ZERO, SECOND); 2]);
    assert_eq!(told, expected);
}

#[tokio::test(start_paused = true)]
async fn without_places_nobody_waits() {
    for limiter in [memory(LeakyQueue::new(TEN_A_SECOND)), memory(FixedWindow::new(Quota::new(1, ms(100))))] {
        let service = layer(limiter).max_wait(SECOND).max_waiters(0).layer(desk());
        assert_eq!(all(&service, 2).await, [Served(Duration::ZERO), refused(Duration::ZERO, ms(100))]);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Cancellation
// ---------------------------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn cancelled_waiter_frees_its_permit_and_other_starts_stay() {
    let service = layer(memory(LeakyQueue::new(TEN_A_SECOND).max_waiting(4))).max_waiters(4).layer(desk());
    let opened = Instant::now();
    let mut answers: Vec<_> = (0..5).map(|caller| call(&service, caller, opened)).collect();
    sleep(ms(50)).await;
    // The queue is full, and so are the seats.
    assert!(matches!(call(&service, 5, opened).await.unwrap(), Refused { .. }));
    answers.remove(2).abort();
    sleep(ms(1)).await;
    // Its permit is free, but it stays charged, and the last start is where it was.
    assert_eq!(call(&service, 6, opened).await.unwrap(), refused(ms(51), ms(49)));
    sleep(ms(49)).await;
    let newcomer = call(&service, 7, opened);
    assert!(matches!(call(&service, 8, opened).await.unwrap(), Refused { .. }));

    let mut told = Vec::new();
    for answer in answers {
        told.push(answer.await.unwrap());
    }
    assert_eq!(told, [0, 100, 300, 400].map(|at| Served(ms(at))));
    assert_eq!(newcomer.await.unwrap(), Served(ms(500)));
}

/// Its charge stays, and so does the start that nobody takes.
#[tokio::test(start_paused = true)]
async fn cancelled_last_waiter_stays_charged() {
    for limiter in [memory(LeakyQueue::new(TEN_A_SECOND)), memory(Gcra::new(TEN_A_SECOND).strict())] {
        let service = layer(limiter).max_wait(SECOND).layer(desk());
        let opened = Instant::now();
        let mut answers: Vec<_> = (0..4).map(|caller| call(&service, caller, opened)).collect();
        sleep(ms(50)).await;
        answers.pop().unwrap().abort();
        sleep(ms(1)).await;
        assert_eq!(call(&service, 4, opened).await.unwrap(), Served(ms(400)));
        for (turn, answer) in (0_u32..).zip(answers) {
            assert_eq!(answer.await.unwrap(), Served(ms(100) * turn));
        }
        assert_eq!(call(&service, 5, opened).await.unwrap(), Served(ms(500)));
    }
}

/// What a queue stands before must never see two at once, whoever goes away.
#[tokio::test(start_paused = true)]
async fn the_spacing_holds_whoever_is_cancelled() {
    for limiter in [memory(LeakyQueue::new(TEN_A_SECOND).max_waiting(50)), memory(Gcra::new(TEN_A_SECOND).strict())] {
        let service = layer(limiter).max_wait(10 * SECOND).layer(desk());
        let opened = Instant::now();
        let mut answers: Vec<_> = (0..10).map(|caller| call(&service, caller, opened)).collect();
        sleep(ms(50)).await;
        for cancelled in [7, 4, 2] {
            answers.remove(cancelled).abort();
        }
        sleep(ms(1)).await;
        answers.extend((10..15).map(|caller| call(&service, caller, opened)));
        let mut served = Vec::new();
        for answer in answers {
            let Served(at) = answer.await.unwrap() else { panic!("there is room for all") };
            served.push(at);
        }
        served.sort();
        assert!(served.windows(2).all(|pair| pair[1] >= pair[0] + ms(100)), "{served:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_goes_away_while_asking_again_was_never_charged() {
    let limiter = memory(FixedWindow::new(Quota::per_second(2)));
    let service = layer(limiter.clone()).max_wait(10 * SECOND).max_waiters(1).layer(desk());
    let opened = Instant::now();
    let answers: Vec<_> = (0..3).map(|caller| call(&service, caller, opened)).collect();
    sleep(ms(500)).await;
    answers[2].abort();
    sleep(ms(600)).await;
    assert_eq!(limiter.peek(&(), AcquireOptions::default()).await.unwrap().remaining(), Some(2));
    // Its seat is free.
    let answers: Vec<_> = (3..6).map(|caller| call(&service, caller, opened)).collect();
    for (answer, at) in answers.into_iter().zip([1100, 1100, 2100]) {
        assert_eq!(answer.await.unwrap(), Served(ms(at)));
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_response_dropped_unpolled_stays_charged() {
    let limiter = memory(LeakyQueue::new(TEN_A_SECOND));
    let mut service = layer(limiter.clone()).layer(desk());
    assert!(service.call(0).await.is_ok());
    let turn = service.call(1);
    assert_eq!(limiter.peek(&(), AcquireOptions::default()).await.unwrap().delay(), ms(200));
    drop(turn);
    assert_eq!(limiter.peek(&(), AcquireOptions::default()).await.unwrap().delay(), ms(200));
    // And drains as if it had been forwarded.
    sleep(ms(200)).await;
    assert_eq!(limiter.peek(&(), AcquireOptions::default()).await.unwrap().delay(), Duration::ZERO);
}

// ---------------------------------------------------------------------------------------------------------------------
// Readiness
// ---------------------------------------------------------------------------------------------------------------------

/// A service with a number of permits: `poll_ready` takes one, which is free again when the instance or the response's
/// future is dropped. Calling it unready panics.
struct Permits {
    shared: Arc<Shared>,
    ready: bool,
}

struct Shared {
    free: AtomicU32,
    /// How often an instance was made ready, and called.
    readied: AtomicU32,
    called: AtomicU32,
    readiness: Mutex<Readiness>,
    opened: Instant,
}

#[derive(Clone, Copy)]
enum Readiness {
    Permits,
    NotBefore(Instant),
    Broken,
}

impl Permits {
    fn new(permits: u32) -> Self {
        let shared = Shared {
            free: AtomicU32::new(permits),
            readied: AtomicU32::new(0),
            called: AtomicU32::new(0),
            readiness: Mutex::new(Readiness::Permits),
            opened: Instant::now(),
        };
        Self { shared: Arc::new(shared), ready: false }
    }
}

impl Shared {
    fn free(&self) -> u32 {
        self.free.load(Ordering::SeqCst)
    }
}

impl Clone for Permits {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), ready: false }
    }
}

impl Drop for Permits {
    fn drop(&mut self) {
        if self.ready {
            self.shared.free.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Service<u32> for Permits {
    type Response = Duration;
    type Error = BoxError;
    type Future = BoxFuture<Result<Duration, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        let readiness = *self.shared.readiness.lock().unwrap();
        let not_yet = match readiness {
            Readiness::Broken => return Poll::Ready(Err("broken".into())),
            Readiness::NotBefore(moment) => Instant::now() < moment,
            Readiness::Permits => false,
        };
        let take = |free: u32| free.checked_sub(1);
        if self.ready {
            return Poll::Ready(Ok(()));
        }
        if not_yet || self.shared.free.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_err() {
            // A double may look again each millisecond.
            let waker = cx.waker().clone();
            tokio::spawn(async move {
                sleep(ms(1)).await;
                waker.wake();
            });
            return Poll::Pending;
        }
        self.shared.readied.fetch_add(1, Ordering::SeqCst);
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _caller: u32) -> Self::Future {
        assert!(self.ready, "called an instance that was not made ready");
        self.ready = false;
        self.shared.called.fetch_add(1, Ordering::SeqCst);
        // The permit goes with the response.
        let permit = Self { shared: Arc::clone(&self.shared), ready: true };
        Box::pin(async move { Ok(permit.shared.opened.elapsed()) })
    }
}

/// Makes the service ready, and calls it. It stays alive as long as the call: what it holds is not let go by dropping
/// it.
async fn ready_call<S>(service: &S, caller: u32) -> JoinHandle<Result<Duration, BoxError>>
where
    S: Service<u32, Response = Duration, Error = BoxError, Future: Send> + Clone + Send + 'static,
{
    let mut service = service.clone();
    let ready = tokio::time::timeout(60 * SECOND, service.ready()).await.expect("not starved");
    let response = ready.unwrap().call(caller);
    tokio::spawn(async move {
        let answer = response.await;
        drop(service);
        answer
    })
}

#[tokio::test(start_paused = true)]
async fn who_waits_holds_no_permit() {
    let limiters = [
        memory(LeakyQueue::new(Quota::per_second(1)).max_waiting(2)),
        memory(Gcra::new(Quota::per_second(1))),
        memory(FixedWindow::new(Quota::per_second(1))),
    ];
    for limiter in limiters {
        let permits = Permits::new(1);
        let shared = Arc::clone(&permits.shared);
        let service = layer(limiter).max_wait(2 * SECOND).layer(permits);
        assert_eq!(ready_call(&service, 0).await.await.unwrap().unwrap(), Duration::ZERO);

        let waiting = [ready_call(&service, 1).await, ready_call(&service, 2).await];
        assert_eq!(shared.free(), 1, "those who wait hold it");
        let (called, readied) = (shared.called.load(Ordering::SeqCst), shared.readied.load(Ordering::SeqCst));
        assert_eq!((called, readied), (1, 3));
        for waiting in waiting {
            waiting.await.unwrap().unwrap();
        }
        assert_eq!(shared.free(), 1);
        // Each was made ready again, once, when its turn had come.
        assert_eq!((shared.called.load(Ordering::SeqCst), shared.readied.load(Ordering::SeqCst)), (3, 5));
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_starves_nobody_behind_a_concurrency_limit() {
    let limiter = Memory::builder(Gcra::new(Quota::per_minute(1))).max_keys(100).clock(TokioClock::new());
    let by_caller = |caller: &u32| Some(*caller);
    let limit =
        RateLimitLayer::new(by_caller, limiter.build().unwrap()).responder(RejectWithError).max_wait(60 * SECOND);
    let service = limit.layer(ConcurrencyLimit::new(desk(), 1));

    assert_eq!(ready_call(&service, 7).await.await.unwrap().unwrap(), Duration::ZERO);
    let waiting = ready_call(&service, 7).await;
    for other in 0..5 {
        let served = tokio::time::timeout(SECOND, ready_call(&service, other)).await.expect("not starved");
        assert_eq!(served.await.unwrap().unwrap(), Duration::ZERO);
    }
    assert_eq!(waiting.await.unwrap().unwrap(), 60 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn after_the_wait_the_request_is_held_until_the_service_is_ready() {
    let permits = Permits::new(1);
    let shared = Arc::clone(&permits.shared);
    let service = layer(memory(LeakyQueue::new(TEN_A_SECOND))).layer(permits);
    ready_call(&service, 0).await.await.unwrap().unwrap();
    let waiting = ready_call(&service, 1).await;
    *shared.readiness.lock().unwrap() = Readiness::NotBefore(shared.opened + ms(700));
    assert_eq!(waiting.await.unwrap().unwrap(), ms(700));
}

#[tokio::test(start_paused = true)]
async fn service_that_breaks_during_the_wait_leaves_the_charge() {
    let permits = Permits::new(1);
    let shared = Arc::clone(&permits.shared);
    let limiter = memory(LeakyQueue::new(TEN_A_SECOND));
    let service = layer(limiter.clone()).layer(permits);
    ready_call(&service, 0).await.await.unwrap().unwrap();
    let waiting = ready_call(&service, 1).await;
    assert_eq!(limiter.peek(&(), AcquireOptions::default()).await.unwrap().delay(), ms(200));
    *shared.readiness.lock().unwrap() = Readiness::Broken;

    assert_eq!(waiting.await.unwrap().unwrap_err().to_string(), "broken");
    assert_eq!((shared.called.load(Ordering::SeqCst), shared.free()), (1, 1));
    // Its start was at 100 ms, which is now.
    assert_eq!(limiter.peek(&(), AcquireOptions::default()).await.unwrap().delay(), ms(100));
}

#[tokio::test(start_paused = true)]
async fn client_that_leaves_while_the_service_gets_ready_leaves_the_charge() {
    let permits = Permits::new(1);
    let shared = Arc::clone(&permits.shared);
    let limiter = memory(Gcra::new(Quota::per_second(1)).burst(2));
    let service = layer(limiter.clone()).max_wait(5 * SECOND).layer(permits);
    for caller in 0..2 {
        ready_call(&service, caller).await.await.unwrap().unwrap();
    }
    let waiting = ready_call(&service, 2).await;
    *shared.readiness.lock().unwrap() = Readiness::NotBefore(shared.opened + 60 * SECOND);
    sleep(ms(1500)).await;
    let remaining = async || limiter.peek(&(), AcquireOptions::default()).await.unwrap().remaining().unwrap();
    assert_eq!(remaining().await, 0);
    waiting.abort();
    sleep(ms(1)).await;
    assert_eq!(remaining().await, 0);
    // Three were charged: the third has drained after three seconds.
    sleep(ms(1499)).await;
    assert_eq!(remaining().await, 2);
}

/// A layer that settles holds from now on, or asks again: no start is scheduled.
#[tokio::test(start_paused = true)]
async fn layer_that_settles_asks_again_until_a_hold_ends() {
    for limiter in [memory(FixedWindow::new(Quota::per_hour(1))), memory(Gcra::new(Quota::per_hour(1)).strict())] {
        // Each is answered after 300 ms, and pays nothing.
        let slow = service_fn(|_: u32| async {
            sleep(ms(300)).await;
            Ok::<_, BoxError>(())
        });
        let free = |_: u64, _: Result<&(), &BoxError>| 0;
        let service = layer(limiter.clone()).settle(free).max_wait(2 * 3600 * SECOND).layer(slow);
        let opened = Instant::now();
        let mut first = pin!(service.clone().call(0));
        assert!(tokio::time::timeout(ms(1), first.as_mut()).await.is_err(), "it is with the service");
        let denied = limiter.peek(&(), AcquireOptions::default()).await.unwrap();
        assert!(!denied.is_allowed() && denied.is_estimate());
        let mut second = pin!(service.clone().call(1));
        assert!(tokio::time::timeout(ms(1), second.as_mut()).await.is_err(), "it waits");
        first.await.unwrap();
        assert_eq!(opened.elapsed(), ms(300));
        second.await.unwrap();
        // It asked again each 100 ms, not after the estimate of an hour.
        assert!((ms(600)..ms(701)).contains(&opened.elapsed()), "{:?}", opened.elapsed());
        assert!(limiter.peek(&(), AcquireOptions::default()).await.unwrap().is_allowed(), "nothing was charged");
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Limiters that answer later
// ---------------------------------------------------------------------------------------------------------------------

/// A limiter elsewhere, by the caller: how long it takes, and what it decides then, call by call. It holds if it is asked to.
#[derive(Clone, Default)]
struct Elsewhere {
    script: Arc<Mutex<HashMap<u32, Vec<Verdict>>>>,
    settled: Arc<Mutex<Vec<(u32, u64)>>>,
}

const THINKS: Duration = ms(5);

impl Elsewhere {
    fn says(&self, caller: u32, verdicts: impl IntoIterator<Item = Verdict>) {
        self.script.lock().unwrap().insert(caller, verdicts.into_iter().collect());
    }
}

impl Limiter<u32> for Elsewhere {
    type Future = BoxFuture<Result<Outcome, Error>>;

    fn acquire(&self, caller: &u32, ask: AcquireOptions) -> Acquisition<Self::Future> {
        let verdict = self.script.lock().unwrap().get_mut(caller).expect("a caller of the script").remove(0);
        let (settled, caller) = (Arc::clone(&self.settled), *caller);
        Acquisition::Pending(Box::pin(async move {
            sleep(THINKS).await;
            let decision = Decision::by_policy(tower_ratelimit::Timestamp::EPOCH, verdict);
            let settle = move |actual| {
                LimiterFuture::pending(async move {
                    sleep(THINKS).await;
                    settled.lock().unwrap().push((caller, actual));
                    Ok(())
                })
            };
            let held = (ask.hold && verdict.is_allowed()).then(|| Held::new(ask.cost, settle));
            Ok(Outcome { decision, held })
        }))
    }
}

fn by_caller<A>(limiter: A) -> RateLimitLayer<impl Fn(&u32) -> Option<u32> + Clone, A, RejectWithError> {
    RateLimitLayer::new(|caller: &u32| Some(*caller), limiter).responder(RejectWithError)
}

#[tokio::test(start_paused = true)]
async fn a_decision_on_its_way_keeps_the_ready_instance_and_a_delay_lets_it_go() {
    let limiter = Elsewhere::default();
    limiter.says(0, [Verdict::Allowed]);
    limiter.says(1, [Verdict::AllowedAfter(ms(100))]);
    let permits = Permits::new(1);
    let shared = Arc::clone(&permits.shared);
    let service = by_caller(limiter).layer(permits);

    let allowed = ready_call(&service, 0).await;
    sleep(ms(1)).await;
    assert_eq!(shared.free(), 0, "it goes to the instance that was made ready");
    assert_eq!(allowed.await.unwrap().unwrap(), THINKS);
    assert_eq!(shared.readied.load(Ordering::SeqCst), 1);

    let delayed = ready_call(&service, 1).await;
    sleep(ms(1)).await;
    assert_eq!(shared.free(), 0);
    sleep(THINKS).await;
    assert_eq!(shared.free(), 1);
    assert_eq!(delayed.await.unwrap().unwrap(), 2 * THINKS + ms(100));
    assert_eq!(shared.readied.load(Ordering::SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn a_limiter_elsewhere_is_asked_again_when_there_should_be_room() {
    let in_100_ms = Verdict::Denied { retry_after: ms(100) };
    let limiter = Elsewhere::default();
    limiter.says(0, [in_100_ms, in_100_ms, Verdict::Allowed]);
    // Asked again it promises a turn.
    limiter.says(1, [in_100_ms, Verdict::AllowedAfter(ms(50))]);
    limiter.says(2, [in_100_ms, Verdict::ExceedsLimit]);
    limiter.says(3, [Verdict::Denied { retry_after: ms(301) }]);
    let service = by_caller(limiter).max_wait(ms(300)).layer(desk());
    let at = |waited: u64, thought: u32| ms(waited) + THINKS * thought;
    let expected = [
        Served(at(200, 3)),
        Served(at(150, 2)),
        Refused { at: at(100, 2), retry_after: None },
        refused(at(0, 1), ms(301)),
    ];
    assert_eq!(all(&service, 4).await, expected);
}

/// Deciding is not waiting, but what it takes counts against the patience.
#[tokio::test(start_paused = true)]
async fn the_deadline_holds_for_a_slow_limiter_too() {
    let limiter = Elsewhere::default();
    limiter.says(0, vec![Verdict::Denied { retry_after: ms(1) }; 1000]);
    let service = by_caller(limiter).max_wait(ms(100)).layer(desk());
    let told = all(&service, 1).await;
    let Refused { at, .. } = told[0] else { panic!("{told:?}") };
    assert!(at <= ms(100) + THINKS, "it waited for {at:?}");
}

/// A layer that settles, whose service is made ready late: it holds from the decision on, and releases if it never forwards.
#[tokio::test(start_paused = true)]
async fn hold_elsewhere_is_released_in_the_background_if_the_request_is_not_forwarded() {
    let limiter = Elsewhere::default();
    let whole = |held: u64, _: Result<&Duration, &BoxError>| held;
    for (caller, leaves) in [(0, true), (1, false)] {
        // Asked again it may pass, and needs the service made ready anew.
        limiter.says(caller, [Verdict::Denied { retry_after: ms(100) }, Verdict::Allowed]);
        let permits = Permits::new(1);
        let shared = Arc::clone(&permits.shared);
        let service = by_caller(limiter.clone()).settle(whole).max_wait(SECOND).layer(permits);
        let waiting = ready_call(&service, caller).await;
        *shared.readiness.lock().unwrap() = Readiness::NotBefore(shared.opened + 60 * SECOND);
        sleep(ms(200)).await;
        assert!(limiter.settled.lock().unwrap().is_empty());
        if leaves {
            waiting.abort();
        } else {
            *shared.readiness.lock().unwrap() = Readiness::Broken;
        }
        sleep(ms(10)).await;
        assert_eq!(shared.called.load(Ordering::SeqCst), 0);
        assert_eq!(std::mem::take(&mut *limiter.settled.lock().unwrap()), [(caller, 0)]);
    }
}

/// A limiter of one's own may hold for a later start: the hold is released if the request leaves before, and else settled.
#[tokio::test(start_paused = true)]
async fn hold_for_a_later_start_is_released_if_the_request_leaves_before() {
    let limiter = Elsewhere::default();
    limiter.says(0, [Verdict::AllowedAfter(SECOND)]);
    limiter.says(1, [Verdict::AllowedAfter(SECOND)]);
    let whole = |held: u64, _: Result<&Duration, &BoxError>| held;
    let service = by_caller(limiter.clone()).cost(|_: &u32| 3).settle(whole).layer(desk());
    let opened = Instant::now();
    let (leaving, staying) = (call(&service, 0, opened), call(&service, 1, opened));
    sleep(ms(500)).await;
    leaving.abort();
    sleep(ms(10)).await;
    assert_eq!(*limiter.settled.lock().unwrap(), [(0, 0)]);
    assert_eq!(staying.await.unwrap(), Served(THINKS + SECOND));
    assert_eq!(*limiter.settled.lock().unwrap(), [(0, 0), (1, 3)]);
}

/// A scheduled start is charged when it is scheduled: there is nothing to settle.
#[tokio::test(start_paused = true)]
async fn scheduled_start_elsewhere_is_waited_for_beyond_max_waiters() {
    let limiter = Elsewhere::default();
    limiter.says(0, [Verdict::AllowedAfter(SECOND)]);
    limiter.says(1, [Verdict::AllowedAfter(SECOND)]);
    let service = by_caller(limiter.clone()).max_waiters(1).layer(desk());
    // Both were asked for while the permit was free.
    assert_eq!(all(&service, 2).await, [Served(THINKS + SECOND); 2]);
    assert!(limiter.settled.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn who_goes_away_during_a_decision_leaves_the_charge_to_the_limiter() {
    let limiter = Elsewhere::default();
    limiter.says(0, [Verdict::Allowed]);
    let permits = Permits::new(1);
    let shared = Arc::clone(&permits.shared);
    let service = by_caller(limiter.clone()).layer(permits);
    let deciding = ready_call(&service, 0).await;
    sleep(ms(1)).await;
    deciding.abort();
    sleep(ms(50)).await;
    assert_eq!((shared.called.load(Ordering::SeqCst), shared.free()), (0, 1));
    assert!(limiter.settled.lock().unwrap().is_empty());
}

// ---------------------------------------------------------------------------------------------------------------------
// Several limits
// ---------------------------------------------------------------------------------------------------------------------

fn several<L>(limits: L) -> Memory<L, TokioClock>
where
    L: tower_ratelimit::store::MemoryLimits<tower_ratelimit::store::DefaultHashBuilder>,
{
    Memory::builder(limits).max_keys(100).clock(TokioClock::new()).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn several_limits_promise_a_turn_that_all_owe_until_already() {
    let limiter = several((
        Limit::new("spacing", LeakyQueue::new(TEN_A_SECOND).max_waiting(100)),
        Limit::new("minute", Gcra::new(Quota::per_second(1)).burst(5)),
    ));
    let service = layer(limiter).max_wait(2 * SECOND).layer(desk());
    // KeyedBy 400 ms the spacing has nothing against anybody: who then waits for the other one asks again.
    let mut told = all(&service, 8).await;
    told[5..].sort();
    let mut expected: Vec<_> = [0, 100, 200, 300, 400, 1000, 2000].map(|at| Served(ms(at))).into();
    expected.push(refused(2 * SECOND, SECOND));
    assert_eq!(told, expected);
}

/// A turn that one promises, another might not have left by then: they promise together or not at all.
#[tokio::test(start_paused = true)]
async fn a_queue_beside_a_window_promises_nothing() {
    let limits = || {
        several((
            Limit::new("spacing", LeakyQueue::new(TEN_A_SECOND).max_waiting(100)),
            Limit::new("second", FixedWindow::new(Quota::per_second(3))),
        ))
    };
    let service = layer(limits()).layer(desk());
    assert_eq!(all(&service, 2).await, [Served(Duration::ZERO), refused(Duration::ZERO, ms(100))]);

    // Who accepts to wait asks again, and keeps to both limits.
    let service = layer(limits()).max_wait(ms(1100)).layer(desk());
    let mut told = all(&service, 6).await;
    told.sort();
    let mut expected: Vec<_> = [0, 100, 200, 1000, 1100].map(|at| Served(ms(at))).into();
    expected.push(refused(ms(1100), ms(100)));
    assert_eq!(told, expected);
}

/// Whoever waits for a limit of its own must not hold up those who share another limit with it.
#[tokio::test(start_paused = true)]
async fn who_waits_for_its_own_limit_does_not_close_a_shared_one() {
    let limiter = several((
        Limit::new("caller", Gcra::new(Quota::per_minute(1))).keyed_by(|caller: &u32| *caller),
        Limit::new("all", Gcra::new(Quota::per_second(100))).keyed_by(|_: &u32| ()),
    ));
    let service = by_caller(limiter).max_wait(60 * SECOND).layer(desk());
    let opened = Instant::now();
    assert_eq!(call(&service, 7, opened).await.unwrap(), Served(Duration::ZERO));
    let waiting = call(&service, 7, opened);
    assert_eq!(call(&service, 8, opened).await.unwrap(), Served(Duration::ZERO));
    assert_eq!(waiting.await.unwrap(), Served(60 * SECOND));
}

/// A shadow changes nothing: not how others wait either.
#[tokio::test(start_paused = true)]
async fn a_shadow_that_promises_no_turns_does_not_keep_anybody_waiting() {
    let limiter = several((
        Limit::new("enforced", Gcra::new(Quota::per_second(1)).strict()),
        Limit::new("trial", FixedWindow::new(Quota::per_second(1))).shadow(),
    ));
    let service = layer(limiter).max_wait(SECOND).layer(desk());
    let expected = [Served(Duration::ZERO), Served(SECOND), refused(Duration::ZERO, SECOND)];
    assert_eq!(all(&service, 3).await, expected);
}

// ---------------------------------------------------------------------------------------------------------------------
// Without a timer
// ---------------------------------------------------------------------------------------------------------------------

/// Waiting needs tokio's timer. Outside of a runtime a request that would have to wait is denied; it was charged for its start.
#[test]
fn outside_of_a_runtime_nobody_waits() {
    let limiter = Memory::builder(LeakyQueue::new(Quota::per_hour(1))).max_keys(100).build().unwrap();
    let service = service_fn(|_: u32| ready(Ok::<_, BoxError>(())));
    let mut service = layer(limiter.clone()).layer(service);
    let mut now = |caller| {
        let mut response = pin!(service.call(caller));
        match response.as_mut().poll(&mut Context::from_waker(std::task::Waker::noop())) {
            Poll::Ready(answer) => answer,
            Poll::Pending => panic!("it waits for nothing"),
        }
    };
    assert!(now(0).is_ok());
    for caller in 1..4 {
        let rejected = now(caller).unwrap_err().downcast::<Rejected>().unwrap();
        let retry_after = rejected.rejection().retry_after().unwrap();
        assert!(retry_after <= Duration::from_secs(3600), "nobody before it was charged: {retry_after:?}");
    }
}

/// A runtime without a timer: nobody can wait in it.
#[test]
fn without_a_timer_a_later_turn_is_refused() {
    let limiter = BoxLimiter::new(Memory::new(LeakyQueue::new(TEN_A_SECOND).max_waiting(5)));
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let mut service = layer(limiter).layer(service_fn(|_: u32| ready(Ok::<_, BoxError>(()))));
        assert!(service.ready().await.expect("ready").call(1).await.is_ok());
        let error = service.ready().await.expect("ready").call(2).await.expect_err("it would have to wait");
        assert!(error.downcast::<Rejected>().is_ok());
    });
}

/// The estimate is the time that the held cost would take to drain, an hour here: a waiter does not sleep for it.
#[tokio::test(start_paused = true)]
async fn waiter_denied_by_a_hold_starts_soon_after_it_is_settled() {
    let opened = Instant::now();
    let inner = service_fn(move |_: u32| async move {
        sleep(Duration::from_millis(250)).await;
        Ok::<_, BoxError>(opened.elapsed())
    });
    let limiter = memory(FixedWindow::new(Quota::per_hour(1)));
    let nothing = |_: u64, _: Result<&Duration, &BoxError>| 0;
    let service = layer(limiter).settle(nothing).max_wait(Duration::from_secs(5)).layer(inner);
    let (first, second) = (call(&service, 1, opened), call(&service, 2, opened));
    assert_eq!(first.await.unwrap(), Served(Duration::from_millis(250)));
    let Served(at) = second.await.unwrap() else { panic!("the first one was released in time") };
    // Denied at 0, 100 and 200 ms, and started at 300 ms.
    assert_eq!(at, Duration::from_millis(550));

    // Within its bound, and not for the estimate.
    let brief = layer(memory(FixedWindow::new(Quota::per_hour(1)))).settle(nothing);
    let brief = brief.max_wait(Duration::from_millis(150)).layer(service_fn(move |_: u32| async move {
        sleep(Duration::from_secs(10)).await;
        Ok::<_, BoxError>(opened.elapsed())
    }));
    let began = opened.elapsed();
    let (_first, second) = (call(&brief, 1, opened), call(&brief, 2, opened));
    let Refused { at, .. } = second.await.unwrap() else { panic!("the first one takes ten seconds") };
    assert_eq!(at, began + Duration::from_millis(150));
}
