//! Conditional limits behind the layer, and in configuration.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Method, Request, Response};
use http_body_util::Full;
use tokio::time::Instant;
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::config::{KeyParts, Policy};
use tower_ratelimit::observe::{Event, Observer};
use tower_ratelimit::response::{BoxError, Headers};
use tower_ratelimit::{DynLimit, Gcra, Http, Limit, Memory, Quota, RateLimitInfo, RateLimitLayer};

use crate::load;
use crate::support::{Page, spawn};

#[derive(Clone, Default)]
struct Outcomes(Arc<Mutex<Vec<&'static str>>>);

impl Observer for Outcomes {
    fn observe(&self, event: &Event<'_>) {
        self.0.lock().expect("no panic").extend(event.outcome());
    }
}

async fn answer(request: Request<()>) -> Result<Page, BoxError> {
    let info = request.extensions().get::<RateLimitInfo>().expect("the layer's extension").clone();
    Ok(Response::new(Full::from(format!("{}", info == RateLimitInfo::Exempt))))
}

/// A request to which no limit applies is treated as one that the extractor exempts: as an event, for handlers, and in
/// the response.
#[tokio::test]
async fn request_to_which_no_limit_applies_is_exempt_for_the_layer() {
    use http_body_util::BodyExt as _;

    let limit = Limit::new("writes", Gcra::new(Quota::per_minute(1)));
    let limit = limit.keyed_by(|_: &Method| ()).only_if(|method: &Method| *method == Method::POST);
    let outcomes = Outcomes::default();
    let layer = RateLimitLayer::new(|request: &Request<()>| Some(request.method().clone()), Memory::new(limit))
        .responder(Http::new().headers(Headers::new().request_extension(true)))
        .observe(outcomes.clone());
    for (method, is_exempt) in [(Method::GET, true), (Method::POST, false), (Method::GET, true)] {
        let request = Request::builder().method(method).body(()).expect("a request");
        let response = layer.layer(service_fn(answer)).oneshot(request).await.expect("an answer");
        assert_eq!(response.headers().contains_key("ratelimit"), !is_exempt);
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        assert_eq!(body, is_exempt.to_string());
    }
    assert_eq!(*outcomes.0.lock().expect("no panic"), ["exempt", "allowed", "exempt"]);
}

/// (user, whether the call writes).
type Call = (u64, bool);

fn parts() -> KeyParts<Call> {
    KeyParts::new().add("user", |call: &Call| call.0).add_condition("write", |call: &Call| call.1)
}

fn policies(when: &str) -> Vec<Policy> {
    let policy = |name: &str, quota: &str, when: &str| {
        let text = format!("name = '{name}'\nalgorithm = 'gcra'\nquota = '{quota}'\nby = 'user'\n{when}");
        toml::from_str::<Policy>(&text).expect("a policy")
    };
    vec![policy("calls", "50/min", ""), policy("writes", "5/min", when)]
}

#[test]
fn policy_with_a_condition_applies_to_the_keys_that_satisfy_it() {
    let policies = policies("when = 'write'");
    assert_eq!((policies[0].when(), policies[1].when()), (None, Some("write".into())));
    let again: Policy = serde_json::from_str(&serde_json::to_string(&policies[1]).expect("JSON")).expect("a policy");
    assert_eq!(again, policies[1]);
    let limiter = Memory::new(parts().limits(&policies).expect("limits"));
    assert_eq!(limiter.check(&(7, false), 1).remaining(), Some(49));
    assert_eq!(limiter.check(&(7, true), 1).remaining(), Some(4));
    // Usage is kept when a condition is removed and added.
    limiter.replace(parts().limits(&self::policies("")).expect("limits")).expect("replaced");
    assert_eq!(limiter.check(&(7, false), 1).remaining(), Some(3));
    limiter.replace(parts().limits(&policies).expect("limits")).expect("replaced");
    assert_eq!(limiter.check(&(7, true), 1).remaining(), Some(2));
}

#[test]
fn unknown_condition_is_an_error_that_names_the_field() {
    let error = |parts: KeyParts<Call>| parts.limits(&policies("when = 'read'")).expect_err("unknown").to_string();
    let expected = "limits[1] (\"writes\"), when: unknown condition \"read\"; use one of \"write\"";
    assert_eq!(error(parts()), expected);
    let without = KeyParts::new().add("user", |call: &Call| call.0);
    assert!(error(without).ends_with("when: unknown condition \"read\"; add it with `KeyParts::add_condition`"));
}

#[test]
fn configured_limits_decide_as_limits_in_code() {
    let calls = Limit::new("calls", Gcra::new(Quota::per_minute(50))).keyed_by(|call: &Call| call.0);
    let writes = Limit::new("writes", Gcra::new(Quota::per_minute(5))).keyed_by(|call: &Call| call.0);
    let in_code = vec![DynLimit::new(calls), DynLimit::new(writes.only_if(|call: &Call| call.1))];
    let (in_code, configured) =
        (Memory::new(in_code), Memory::new(parts().limits(&policies("when = 'write'")).unwrap()));
    for step in 0_u64..40 {
        let call = (step % 2, step % 3 == 0);
        let [ours, theirs] = [in_code.check(&call, 1), configured.check(&call, 1)];
        assert_eq!((ours.is_allowed(), ours.remaining()), (theirs.is_allowed(), theirs.remaining()), "{step}");
    }
}

#[test]
fn policy_keeps_units_free_from_the_keys_that_satisfy_a_condition() {
    let policy = |algorithm: &str, keep_free: &str| {
        let text =
            format!("name = 'all'\nquota = '40/min'\nby = 'user'\nalgorithm = '{algorithm}'\nkeep_free = {keep_free}");
        toml::from_str::<Policy>(&text)
    };
    let parts = parts().add_condition("bulk", |call: &Call| call.0 > 10);
    let policies = [policy("gcra", "{ bulk = 30, write = 10 }").expect("a policy")];
    assert_eq!(policies[0].keep_free().collect::<Vec<_>>(), [("bulk", 30), ("write", 10)]);
    let again: Policy = serde_json::from_str(&serde_json::to_string(&policies[0]).expect("JSON")).expect("a policy");
    assert_eq!(again, policies[0]);
    let limiter = Memory::new(parts.limits(&policies).expect("limits"));
    for (call, remaining) in [((1, false), 39), ((1, true), 28), ((11, false), 9), ((12, true), 9)] {
        assert_eq!(limiter.check(&call, 1).remaining(), Some(remaining), "{call:?}");
    }
    let error = policy("leaky-queue", "{ bulk = 30 }").expect_err("a queue").to_string();
    assert!(error.contains("keep_free: it does not apply to leaky-queue"), "{error}");
    let error = parts.limits(&[policy("gcra", "{ slow = 1 }").expect("a policy")]).expect_err("unknown").to_string();
    assert_eq!(error, "limits[0] (\"all\"), keep_free: unknown condition \"slow\"; use one of \"write\", \"bulk\"");
}

/// A bulk request waits until the whole limit is free. Requests of the higher class do not wait behind it.
#[tokio::test(start_paused = true)]
async fn waiting_request_of_a_lower_class_does_not_hold_up_a_higher_one() {
    const BULK: load::Call = load::Call::of(1);
    const OTHER: load::Call = load::Call::of(0);

    let all = Limit::new("all", Gcra::new(Quota::per_second(10))).keyed_by(|_: &u32| ());
    let all = all.keep_free_by(|key: &u32| if *key == BULK.key { 9 } else { 0 });
    let layer = load::layer(load::several(vec![DynLimit::new(all)])).max_wait(Duration::from_secs(5));
    let service = load::limited(layer, load::inner());
    let begun = Instant::now();
    for _ in 0..5 {
        service.clone().oneshot(OTHER).await.expect("served");
    }
    let waiting = spawn(service.clone().oneshot(BULK));
    tokio::time::sleep(Duration::from_millis(100)).await;
    service.clone().oneshot(OTHER).await.expect("served");
    assert_eq!(begun.elapsed(), Duration::from_millis(100), "served at once");
    assert!(!waiting.is_finished());
    waiting.await.expect("no panic").expect("served");
    let waited = begun.elapsed();
    assert!((Duration::from_millis(600)..Duration::from_millis(620)).contains(&waited), "{waited:?}");
}
