//! What a refusal is where it is no HTTP response: an error, or what a closure makes of it.

use std::convert::Infallible;
use std::error::Error as _;

use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_ratelimit::key::Global;
use tower_ratelimit::response::{BoxError, RateLimitInfo, RejectWithError, Rejected, Rejection, Respond};
use tower_ratelimit::{Decision, Error, RateLimitLayer, Verdict};

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
    assert!(limited.refusal().is_over_limit());
    assert_eq!(limited.refusal().retry_after().map(|wait| wait.as_millis()), Some(1500));
    assert!(limited.source().is_none());

    let never = rejected(Says::never(), Job::of("a")).await;
    assert!(never.refusal().decision().expect("a decision").exceeds_limit());
    assert_eq!(never.refusal().retry_after(), None, "waiting does not help");

    let missing = rejected(Says::yes(), Job::NOBODYS).await;
    assert!(matches!(missing.refusal(), Rejection::MissingKey(missing) if !missing.is_server_error()));
    assert!(!missing.refusal().is_over_limit());
    assert_eq!(missing.to_string(), "nobody's");
}

#[tokio::test]
async fn as_an_error_a_broken_limiter_keeps_its_cause() {
    let broken = rejected(Says::broken(), Job::of("a")).await;
    assert!(matches!(broken.refusal(), Rejection::Unavailable(_)));
    assert!(!broken.refusal().is_over_limit());
    let cause = broken.source().and_then(|cause| cause.downcast_ref::<Error>()).expect("the limiter's error");
    assert!(cause.is_unavailable());
    assert_eq!(cause.to_string(), "the wire is cut");

    let policy = rejected(Says::by_policy(Verdict::ExceedsLimit), Job::of("a")).await;
    assert!(!policy.refusal().is_over_limit(), "the quota is not used up");
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

        fn wants_all_limits(&self) -> bool {
            true
        }

        fn admit(&self, request: &mut String, admission: RateLimitInfo) -> String {
            request.push_str(", admitted");
            format!("{:?}", admission.decision().and_then(Decision::remaining))
        }

        fn finish(mark: String, response: String) -> String {
            format!("{response}, then finished with {mark}")
        }

        fn refuse(&self, request: String, refusal: Rejection) -> Result<String, Failure> {
            if refusal.is_over_limit() { Ok(format!("{request}, refused")) } else { Err(Failure) }
        }
    }

    async fn ask(limiter: Says) -> Result<String, Failure> {
        let layer = RateLimitLayer::new(Global, limiter).responder(Diary);
        layer.layer(service_fn(async |request: String| Ok(request))).oneshot("asked".to_owned()).await
    }
    assert_eq!(ask(Says::yes()).await, Ok("asked, admitted, then finished with Some(3)".to_owned()));
    assert_eq!(ask(Says::no()).await, Ok("asked, refused".to_owned()));
    assert_eq!(ask(Says::broken()).await, Err(Failure));
}

/// One that is content with a look at the decision is not given it, settled or not; nor is it if that is not enough.
#[tokio::test]
async fn a_responder_of_ones_own_may_be_content_with_a_look_at_the_decision() {
    /// Content with what leaves at least so much.
    #[derive(Clone)]
    struct Looks(u64);

    impl Respond<u32, String, Failure> for Looks {
        type Response = String;
        type Error = Failure;
        type Context = &'static str;

        fn admit(&self, _request: &mut u32, _admission: RateLimitInfo) -> &'static str {
            "given"
        }

        fn admit_ref(&self, _request: &u32, decision: &Decision) -> Option<&'static str> {
            (decision.remaining()? >= self.0).then_some("looked at")
        }

        fn finish(mark: &'static str, response: String) -> String {
            format!("{response} {mark}")
        }

        fn refuse(&self, _request: u32, _refusal: Rejection) -> Result<String, Failure> {
            Err(Failure)
        }
    }

    let answer = service_fn(async |_: u32| Ok::<_, Failure>("answered,".to_owned()));
    let layer = |least| RateLimitLayer::new(Global, Says::yes()).responder(Looks(least));
    for (least, expected) in [(3, "answered, looked at"), (4, "answered, given")] {
        assert_eq!(layer(least).layer(answer).oneshot(1).await.as_deref(), Ok(expected));
        let settling = layer(least).settle(|_, _: Result<&String, &Failure>| 0);
        assert_eq!(settling.layer(answer).oneshot(1).await.as_deref(), Ok(expected), "settled");
    }
    let refused = RateLimitLayer::new(Global, Says::no()).responder(Looks(0)).layer(answer);
    assert_eq!(refused.oneshot(1).await, Err(Failure));
}

/// The inner service's error is the limited service's, wherever the responder adds none of its own.
#[tokio::test]
async fn what_fails_inside_is_not_finished() {
    let layer = RateLimitLayer::new(Global, Says::yes()).responder(|_: u32, _: Rejection| 0);
    let service = layer.layer(service_fn(async |_: u32| Err::<u32, _>(Failure)));
    assert_eq!(service.oneshot(1).await, Err(Failure));
}
