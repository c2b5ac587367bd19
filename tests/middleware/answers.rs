//! What a refusal is where it is no HTTP response: an error, or what a closure makes of it.

use std::convert::Infallible;
use std::error::Error as _;

use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_ratelimit::key::{Extracted, Global, MissingKey};
use tower_ratelimit::response::{BoxError, RejectWithError, Rejected, Rejection, Respond};
use tower_ratelimit::{Decision, Detail, Error, RateLimitLayer, Verdict};

use crate::support::{Failure, Job, Says, whose};

/// What a service of numbers answers to `job`, in the error mode.
async fn ask(limiter: Says, job: Job) -> Result<u32, BoxError> {
    let layer = RateLimitLayer::new(whose, limiter).responder(RejectWithError);
    layer.layer(service_fn(async |_: Job| Ok::<_, Infallible>(7))).oneshot(job).await
}

async fn rejected(limiter: Says, job: Job) -> Rejected {
    let error = ask(limiter, job).await.expect_err("a refusal");
    *error.downcast::<Rejected>().expect("a concrete type that can be found")
}

#[tokio::test]
async fn as_an_error_a_refusal_says_why() {
    assert_eq!(ask(Says::yes(), Job::of("a")).await.expect("allowed"), 7);

    let limited = rejected(Says::no(), Job::of("a")).await;
    assert_eq!(limited.to_string(), "rate limit \"told\" exceeded, retry after 1.5s");
    assert!(limited.rejection().is_over_limit());
    assert_eq!(limited.rejection().retry_after().map(|wait| wait.as_millis()), Some(1500));
    assert!(limited.source().is_none());

    let never = rejected(Says::never(), Job::of("a")).await;
    assert!(never.rejection().decision().expect("a decision").exceeds_limit());
    assert_eq!(never.rejection().retry_after(), None, "waiting does not help");

    let missing = rejected(Says::yes(), Job::NOBODYS).await;
    assert!(matches!(missing.rejection(), Rejection::MissingKey(missing) if !missing.is_server_error()));
    assert!(!missing.rejection().is_over_limit());
    assert_eq!(missing.to_string(), "nobody's");
}

#[tokio::test]
async fn as_an_error_a_broken_limiter_keeps_its_cause() {
    let broken = rejected(Says::broken(), Job::of("a")).await;
    assert!(matches!(broken.rejection(), Rejection::Unavailable(_)));
    assert!(!broken.rejection().is_over_limit());
    let cause = broken.source().and_then(|cause| cause.downcast_ref::<Error>()).expect("the limiter's error");
    assert!(cause.is_unavailable());
    assert_eq!(cause.to_string(), "the wire is cut");

    let policy = rejected(Says::by_policy(Verdict::ExceedsLimit), Job::of("a")).await;
    assert!(!policy.rejection().is_over_limit(), "the quota is not used up");
}

/// Both kinds of error come out of one service, and can be told apart.
#[tokio::test]
async fn as_an_error_the_services_own_stay_what_they_are() {
    let layer = RateLimitLayer::new(whose, Says::yes()).responder(RejectWithError);
    let failing = layer.layer(service_fn(async |_: Job| Err::<u32, _>(Failure)));
    let error = failing.oneshot(Job::of("a")).await.expect_err("a failure");
    assert!(error.downcast_ref::<Rejected>().is_none());
    assert_eq!(error.downcast_ref(), Some(&Failure));
}

/// Outer layers of tower's own, which box errors, find it as well.
#[tokio::test]
async fn as_an_error_it_passes_through_towers_layers() {
    let service = ServiceBuilder::new()
        .load_shed()
        .concurrency_limit(5)
        .layer(RateLimitLayer::new(whose, Says::no()).responder(RejectWithError))
        .service_fn(async |_: Job| Ok::<u32, Infallible>(7));
    let error = service.oneshot(Job::of("a")).await.expect_err("a refusal");
    assert!(error.is::<Rejected>());
}

#[tokio::test]
async fn a_closure_makes_the_answer_from_the_request_and_the_refusal() {
    let responder = |job: Job, refusal: Rejection| format!("{:?}: {refusal}", job.key);
    let layer = RateLimitLayer::new(whose, Says::no()).responder(responder);
    let service = layer.layer(service_fn(async |_: Job| Ok::<_, Failure>("hello".to_owned())));

    let answer = |job| service.clone().oneshot(job);
    assert_eq!(answer(Job::of("exempt")).await, Ok("hello".to_owned()), "what is let through is left as it is");
    let limited = answer(Job::of("a")).await;
    assert_eq!(limited, Ok("Some(\"a\"): rate limit \"told\" exceeded, retry after 1.5s".to_owned()));
    assert_eq!(answer(Job::NOBODYS).await, Ok("None: nobody's".to_owned()));
}

/// A responder of one's own sees what it needs at each of its moments, and no more.
#[tokio::test]
async fn a_responder_of_ones_own_carries_its_mark_from_the_request_to_the_response() {
    #[derive(Clone)]
    struct Diary;

    impl Respond<String, String, Failure> for Diary {
        type Response = String;
        type Error = Failure;
        type Context = String;

        fn detail(&self) -> Detail {
            Detail::All
        }

        fn on_allowed(&self, request: &mut String, decision: Option<&Decision>) -> String {
            request.push_str(", allowed");
            format!("{:?}", decision.and_then(Decision::remaining))
        }

        fn map_response(context: String, response: String) -> String {
            format!("{response}, then mapped with {context}")
        }

        fn on_rejected(&self, request: String, rejection: Rejection) -> Result<String, Failure> {
            if rejection.is_over_limit() { Ok(format!("{request}, rejected")) } else { Err(Failure) }
        }
    }

    async fn ask(limiter: Says) -> Result<String, Failure> {
        let layer = RateLimitLayer::new(Global, limiter).responder(Diary);
        layer.layer(service_fn(async |request: String| Ok(request))).oneshot("asked".to_owned()).await
    }
    assert_eq!(ask(Says::yes()).await, Ok("asked, allowed, then mapped with Some(3)".to_owned()));
    assert_eq!(ask(Says::no()).await, Ok("asked, rejected".to_owned()));
    assert_eq!(ask(Says::broken()).await, Err(Failure));
}

/// Also with settlement, where the layer keeps the hold of the decision.
#[tokio::test]
async fn on_allowed_sees_the_decision_with_and_without_settlement() {
    #[derive(Clone)]
    struct Remaining;

    impl Respond<u32, String, Failure> for Remaining {
        type Response = String;
        type Error = Failure;
        type Context = Option<u64>;

        fn on_allowed(&self, _request: &mut u32, decision: Option<&Decision>) -> Option<u64> {
            decision?.remaining()
        }

        fn map_response(remaining: Option<u64>, response: String) -> String {
            format!("{response} {remaining:?}")
        }

        fn on_rejected(&self, _request: u32, _rejection: Rejection) -> Result<String, Failure> {
            Err(Failure)
        }
    }

    let answer = service_fn(async |_: u32| Ok::<_, Failure>("answered,".to_owned()));
    let layer = || RateLimitLayer::new(Global, Says::yes()).responder(Remaining);
    assert_eq!(layer().layer(answer).oneshot(1).await.as_deref(), Ok("answered, Some(3)"));
    let settling = layer().settle(|_, _: Result<&String, &Failure>| 0);
    assert_eq!(settling.layer(answer).oneshot(1).await.as_deref(), Ok("answered, Some(3)"), "settled");
    let exempt = RateLimitLayer::new(|_: &u32| Extracted::<u32>::Exempt, Says::yes()).responder(Remaining);
    assert_eq!(exempt.layer(answer).oneshot(1).await.as_deref(), Ok("answered, None"), "exempt");
    let rejected = RateLimitLayer::new(Global, Says::no()).responder(Remaining).layer(answer);
    assert_eq!(rejected.oneshot(1).await, Err(Failure));
}

/// Observers receive the details.
#[tokio::test]
async fn the_rejection_text_of_a_misconfigured_server_contains_no_details() {
    let missing = |_: &u32| Extracted::<u32>::Missing(MissingKey::from_server("add the layer that finds the user"));
    let layer = RateLimitLayer::new(missing, Says::yes());
    let inner = service_fn(async |_: u32| Ok::<_, BoxError>(String::new()));

    let closure = layer.clone().responder(|_: u32, rejection: Rejection| rejection.to_string()).layer(inner);
    assert_eq!(closure.oneshot(1).await.expect("an answer"), "server misconfigured");
    let error = layer.responder(RejectWithError).layer(inner).oneshot(1).await.expect_err("a rejection");
    assert_eq!(error.to_string(), "server misconfigured");
}

/// The inner service's error is the limited service's, wherever the responder adds none of its own.
#[tokio::test]
async fn what_fails_inside_is_not_finished() {
    let layer = RateLimitLayer::new(Global, Says::yes()).responder(|_: u32, _: Rejection| 0);
    let service = layer.layer(service_fn(async |_: u32| Err::<u32, _>(Failure)));
    assert_eq!(service.oneshot(1).await, Err(Failure));
}
