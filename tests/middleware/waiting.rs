//! Tower's contract while requests wait for their start: waiting holds nothing of the inner service, and a request that stops
//! waiting leaks nothing and stays charged. (When each has its turn is tested in `tests/waiting.rs`.)
//!
//! The timers and the limiters run on tokio's paused clock, which each test moves by hand.

use std::future::Future;
use std::time::Duration;

use tokio::time::advance;
use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok, task};
use tower::Layer;
use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::limiter::Limiter;
use tower_ratelimit::response::{BoxError, RejectWithError, Rejected};
use tower_ratelimit::{
    AcquireOptions, Clock, FixedWindow, Gcra, ManualClock, Memory, Quota, RateLimitLayer, TokioClock, Verdict,
};
use tower_test::mock;

use crate::support::{Act, Counter, Elsewhere, Failure, Job, Limited, Pool, Says, Whose, decision, limited, whose};

const SECOND: Duration = Duration::from_secs(1);

fn after(delay: Duration) -> Says {
    Says(Ok(decision(Verdict::AllowedAfter(delay))))
}

type Paced<A> = Memory<A, TokioClock>;

fn paced<A: Algorithm>(algorithm: A) -> Paced<A> {
    Memory::builder(algorithm).max_keys(100).clock(TokioClock::new()).build().expect("a limiter")
}

/// One a second for each key, without bursts.
fn one_a_second() -> Paced<Gcra> {
    paced(Gcra::new(Quota::per_second(1)).burst(1))
}

/// Requests wait for up to ten seconds.
fn waiting<A: Algorithm, C: Clock>(limiter: &Memory<A, C>) -> RateLimitLayer<Whose, Memory<A, C>, RejectWithError> {
    RateLimitLayer::new(whose as Whose, limiter.clone()).responder(RejectWithError).max_wait(10 * SECOND)
}

/// How long one more request would have to wait.
fn next_turn<C: Clock>(limiter: &Memory<Gcra, C>) -> Duration {
    let peeked = limiter.peek(&"a", AcquireOptions::default().max_delay(100 * SECOND)).try_ready().expect("memory");
    peeked.expect("a decision").delay()
}

/// Makes it ready, and calls it.
fn send<A>(
    service: &mut Limited<Counter, A>,
    job: Job,
) -> task::Spawn<impl Future<Output = Result<usize, BoxError>> + use<A>>
where
    A: Limiter<&'static str>,
{
    assert_ready_ok!(service.poll_ready());
    task::spawn(service.call(job))
}

fn refused_for(error: &BoxError) -> Duration {
    let rejected = error.downcast_ref::<Rejected>().expect("the limiter's error");
    rejected.rejection().retry_after().expect("a wait")
}

#[tokio::test(start_paused = true)]
async fn a_delayed_request_lets_go_of_readiness_and_makes_a_fresh_instance_ready_in_its_turn() {
    let pool = Pool::of(1);
    let mut service = limited(pool.service(), after(SECOND));
    let mut neighbour = service.clone();
    assert_ready_ok!(service.poll_ready());
    let ready = service.get_ref().get_ref().instance;
    assert_pending!(neighbour.poll_ready());

    let mut response = task::spawn(service.call(Job::of("a")));
    assert_eq!(pool.free(), 1, "released in `call`");
    assert!(neighbour.is_woken(), "waiting holds nobody else up");
    assert_pending!(response.poll());

    advance(Duration::from_millis(999)).await;
    assert_pending!(response.poll());
    assert_eq!(pool.calls(), [], "not before its turn");
    advance(Duration::from_millis(1)).await;
    assert!(response.is_woken());
    let by = assert_ready_ok!(response.poll());
    assert_ne!(by, ready);
    assert_eq!(pool.calls(), [(by, Job::of("a"))]);
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_is_promised_elsewhere_lets_go_of_readiness_as_well() {
    let (pool, limiter) = (Pool::of(1), Elsewhere::default());
    let mut service = limited(pool.service(), limiter.clone());
    let mut response = send(&mut service, Job::of("a"));
    assert_pending!(response.poll());
    assert_eq!(pool.free(), 0, "kept while it is decided");

    limiter.asked().answer(after(SECOND));
    assert_pending!(response.poll());
    assert_eq!(pool.free(), 1, "and not while it waits");
    advance(SECOND).await;
    assert_ready_ok!(response.poll());
}

/// The turn has come, and the inner service is busy.
#[tokio::test(start_paused = true)]
async fn in_its_turn_a_request_waits_for_readiness() {
    let pool = Pool::of(1);
    let mut service = limited(pool.service(), after(SECOND));
    let mut response = send(&mut service, Job::of("a"));
    let busy = send(&mut service, Job::of("exempt").that(Act::Hang));
    assert_pending!(response.poll());
    advance(SECOND).await;
    assert_pending!(response.poll());
    drop(busy);
    assert!(response.is_woken());
    assert_ready_ok!(response.poll());
}

#[tokio::test(start_paused = true)]
async fn inner_service_that_fails_to_get_ready_is_its_error_and_leaves_the_charge() {
    let limiter = one_a_second();
    let (inner, mut handle) = mock::pair::<Job, usize>();
    let mut service = mock::Spawn::new(waiting(&limiter).layer(inner));
    assert_ready_ok!(service.poll_ready());
    let _first = service.call(Job::of("a"));
    assert_ready_ok!(service.poll_ready());
    let mut second = task::spawn(service.call(Job::of("a")));
    assert_pending!(second.poll());
    assert_eq!(next_turn(&limiter), 2 * SECOND);

    advance(SECOND).await;
    handle.send_error(Failure);
    assert_eq!(assert_ready_err!(second.poll()).downcast_ref(), Some(&Failure));
    drop(second);
    assert_eq!(next_turn(&limiter), SECOND, "its start is charged");
}

/// Dropped at each stage: the charge stays, and no permit is lost.
#[tokio::test(start_paused = true)]
async fn waiting_request_that_is_dropped_stays_charged_and_leaks_nothing() {
    for stage in ["not polled", "waiting", "its turn", "getting ready"] {
        let (limiter, pool) = (one_a_second(), Pool::of(1));
        let mut service = mock::Spawn::new(waiting(&limiter).layer(pool.service()));
        drop(send(&mut service, Job::of("a")));
        assert_eq!(next_turn(&limiter), SECOND);
        let mut response = send(&mut service, Job::of("a"));
        assert_eq!(next_turn(&limiter), 2 * SECOND);
        let mut busy = None;
        match stage {
            "not polled" => {}
            "waiting" => assert_pending!(response.poll()),
            "its turn" => {
                assert_pending!(response.poll());
                advance(SECOND).await;
            }
            _ => {
                busy = Some(send(&mut service, Job::of("exempt").that(Act::Hang)));
                advance(SECOND).await;
                assert_pending!(response.poll());
            }
        }
        let before = next_turn(&limiter);
        drop(response);
        assert_eq!(before, next_turn(&limiter), "{stage}: what it was charged");
        drop(busy);
        assert_eq!(pool.free(), 1, "{stage}");
        let forwarded = pool.calls().iter().filter(|(_, job)| *job == Job::of("a")).count();
        assert_eq!(forwarded, 1, "{stage}: none but the first");
    }
}

/// Once it is forwarded it stays charged, as any other.
#[tokio::test(start_paused = true)]
async fn whoever_has_waited_and_was_let_through_stays_charged() {
    for act in [Act::Answer, Act::Fail, Act::Hang] {
        let (limiter, pool) = (one_a_second(), Pool::of(1));
        let mut service = mock::Spawn::new(waiting(&limiter).layer(pool.service()));
        drop(send(&mut service, Job::of("a")));
        let mut response = send(&mut service, Job::of("a").that(act));
        assert_pending!(response.poll());
        advance(SECOND).await;
        let _ = response.poll();
        drop(response);
        assert_eq!(next_turn(&limiter), SECOND, "{act:?}");
        assert_eq!(pool.free(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn only_so_many_wait_at_a_time() {
    let (limiter, pool) = (one_a_second(), Pool::of(9));
    let layer = waiting(&limiter).max_waiters(2);
    // The services of one layer count together.
    let mut service = mock::Spawn::new(layer.layer(pool.service()));
    let mut other = mock::Spawn::new(layer.clone().layer(pool.service()));
    drop(send(&mut service, Job::of("a")));
    let first = send(&mut service, Job::of("a"));
    let second = send(&mut other, Job::of("a"));
    let mut third = send(&mut service, Job::of("a"));
    assert_eq!(refused_for(&assert_ready_err!(third.poll())), 3 * SECOND, "when its turn would have been");
    assert_eq!(next_turn(&limiter), 3 * SECOND, "it was not charged");
    assert_ready_ok!(send(&mut service, Job::of("b")).poll());

    drop(second);
    let mut third = send(&mut other, Job::of("a"));
    assert_pending!(third.poll());
    assert_ready_err!(send(&mut service, Job::of("a")).poll());
    drop(first);
}

/// A window promises no turns: who waits for it asks again.
#[tokio::test(start_paused = true)]
async fn whoever_waits_for_a_window_asks_again() {
    let limiter = paced(FixedWindow::new(Quota::new(1, 4 * SECOND)));
    let pool = Pool::of(1);
    let mut service = mock::Spawn::new(waiting(&limiter).layer(pool.service()));
    assert_ready_ok!(send(&mut service, Job::of("a")).poll());

    let mut waiting = [(); 2].map(|()| send(&mut service, Job::of("a")));
    assert_eq!(pool.free(), 1, "they hold nothing");
    for response in &mut waiting {
        assert_pending!(response.poll());
    }
    advance(4 * SECOND).await;
    let [mut first, mut second] = waiting;
    assert_ready_ok!(first.poll());
    drop(first);
    assert_pending!(second.poll());
    advance(4 * SECOND).await;
    assert_ready_ok!(second.poll());
    assert_eq!(pool.calls().len(), 3);
}

/// Where there is no timer, nobody waits: denied with the time until its start, for which it was charged.
#[test]
fn outside_of_a_runtime_nobody_waits() {
    let limiter = Memory::builder(Gcra::new(Quota::per_second(1)).burst(1)).clock(ManualClock::new()).build();
    let (limiter, pool) = (limiter.expect("a limiter"), Pool::of(1));
    let mut service = mock::Spawn::new(waiting(&limiter).layer(pool.service()));
    assert_ready_ok!(send(&mut service, Job::of("a")).poll());
    assert_eq!(refused_for(&assert_ready_err!(send(&mut service, Job::of("a")).poll())), SECOND);
    assert_eq!(next_turn(&limiter), 2 * SECOND);
    assert_eq!(pool.free(), 1);
}
