//! Limits of all routes from a configuration: a model that is written from the documentation of `routes` decides each
//! request as the layer does, in memory and in Redis.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use axum::Router;
use axum::body::Body;
use axum::routing::any;
use http::{Method, Request, StatusCode};
use tower::ServiceExt as _;
use tower_ratelimit::key::{Extracted, MissingKey, Pepper};
use tower_ratelimit::limiter::{Escalating, Escalation};
use tower_ratelimit::routes::{RequestKey, RequestParts, RoutePolicies};
use tower_ratelimit::{AcquireOptions, BlockReason, ExtractKey, Limiter as _, Memory, PeerIp, Quota, RateLimitLayer};

use crate::random::Random;
use crate::server::Server;

/// The user that an outer layer inserts. An empty name stands for a user that an application cannot use.
#[derive(Clone)]
struct User(&'static str);

/// What the model knows of a request: the value of each part, or the status of a request without the part.
type Parts = BTreeMap<&'static str, Result<String, u16>>;

/// One limit in the words of the model.
#[derive(Clone, Debug)]
struct Rule {
    quota: u64,
    by: BTreeSet<&'static str>,
    /// The part, whether the values are negated, and the values.
    when: When,
    /// The units that are kept free from the requests of a condition.
    kept: Option<(u64, When)>,
}

type When = Vec<(&'static str, bool, Vec<&'static str>)>;

const PATHS: [(&str, &str); 5] = [
    ("/a", "/a"),
    ("/users/1", "/users/{id}"),
    ("/users/2", "/users/{id}"),
    ("/n/m/c", "/n/m/c"),
    ("/other", "no route"),
];
const METHODS: [(&str, &str); 4] = [("GET", "GET"), ("HEAD", "GET"), ("POST", "POST"), ("DELETE", "DELETE")];
const BY: [&str; 7] = ["address", "method", "route", "path", "host", "user", "header:x-tenant"];
const VALUES: [(&str, &[&str]); 7] = [
    ("address", &["192.0.2.1", "::ffff:192.0.2.2", "2001:db8::"]),
    ("method", &["GET", "POST", "DELETE", "PATCH"]),
    ("route", &["/a", "/users/{id}", "/n/m/c", "no route", "/never"]),
    ("path", &["/a", "/users/2", "/n/m/c"]),
    ("host", &["one.test", "TWO.test"]),
    ("user", &["1", "auth0|1", "two words"]),
    ("header:x-tenant", &["red", "blue"]),
];

impl Rule {
    fn random(random: &mut Random) -> Self {
        let by = (0..random.below(4)).map(|_| random.choose(&BY)).collect();
        let (when, kept) = (random_when(random), random_when(random));
        let kept = (!kept.is_empty() && random.below(2) == 0).then(|| (1 + random.below(6), kept));
        Self { quota: 1 + random.below(12), by, when, kept }
    }

    fn to_json(&self, index: usize) -> serde_json::Value {
        let by: Vec<_> = self.by.iter().copied().collect();
        let mut policy = serde_json::json!({
            "name": format!("limit-{index}"), "algorithm": "fixed-window", "quota": format!("{}/d", self.quota),
            "by": if by.is_empty() { serde_json::json!("all") } else { serde_json::json!(by) },
        });
        if !self.when.is_empty() {
            policy["when"] = when_to_json(&self.when);
        }
        if let Some((units, _)) = &self.kept {
            policy["keep_free"] = serde_json::json!({ format!("kept-{index}"): units });
        }
        policy
    }

    /// Returns the values by which the limit counts a request, with the units that it keeps free, `None` if it does not
    /// apply, and the statuses of the missing parts.
    fn counts(&self, parts: &Parts) -> Result<Option<(Vec<String>, u64)>, BTreeSet<u16>> {
        let (mut missing, mut kept_free) = (BTreeSet::new(), 0);
        match holds(&self.when, parts) {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(statuses) => missing.extend(statuses),
        }
        if let Some((units, when)) = &self.kept {
            // A part that the client has not sent has none of the values.
            let sent = |part: &&str| parts[part] != Err(400);
            let (sent, absent): (When, When) = when.iter().cloned().partition(|(part, ..)| sent(part));
            let none_holds = absent.iter().any(|(_, is_negated, _)| !is_negated);
            match if none_holds { Ok(false) } else { holds(&sent, parts) } {
                Ok(holds) => kept_free = if holds { *units } else { 0 },
                Err(statuses) => missing.extend(statuses),
            }
        }
        let values: Vec<_> = self.by.iter().map(|part| parts[part].clone()).collect();
        missing.extend(values.iter().filter_map(|value| value.as_ref().err()));
        if missing.is_empty() { Ok(Some((values.into_iter().flatten().collect(), kept_free))) } else { Err(missing) }
    }
}

fn random_when(random: &mut Random) -> When {
    let mut when = Vec::new();
    for (part, values) in VALUES {
        if random.below(4) == 0 {
            let values = (0..=random.below(2)).map(|_| random.choose(values)).collect();
            when.push((part, random.below(3) == 0, values));
        }
    }
    when
}

fn when_to_json(when: &When) -> serde_json::Value {
    let mut parts = serde_json::Map::new();
    for (part, is_negated, values) in when {
        let values = if let [one] = values[..] { serde_json::json!(one) } else { serde_json::json!(values) };
        let values = if *is_negated { serde_json::json!({ "not": values }) } else { values };
        parts.insert((*part).to_owned(), values);
    }
    parts.into()
}

/// Returns whether a condition holds, or the statuses of the missing parts, unless another part shows that it does not.
fn holds(when: &When, parts: &Parts) -> Result<bool, BTreeSet<u16>> {
    let mut missing = BTreeSet::new();
    for (part, is_negated, values) in when {
        match &parts[part] {
            Ok(value) => {
                let is_listed = values.iter().any(|listed| {
                    let address = || Some(listed.parse::<IpAddr>().ok()?.to_canonical().to_string());
                    listed.eq_ignore_ascii_case(value) || address().is_some_and(|address| address == *value)
                });
                if is_listed == *is_negated {
                    return Ok(false);
                }
            }
            Err(status) => _ = missing.insert(*status),
        }
    }
    if missing.is_empty() { Ok(true) } else { Err(missing) }
}

/// The usage of each limit, by its index and the values of its parts.
#[derive(Default)]
struct Model {
    usage: BTreeMap<(usize, Vec<String>), u64>,
}

impl Model {
    /// Returns the statuses that the layer may answer, and charges an admitted request.
    fn decide(&mut self, rules: &[Rule], parts: &Parts, status: u16) -> BTreeSet<u16> {
        let (mut counts, mut missing) = (Vec::new(), BTreeSet::new());
        for (index, rule) in rules.iter().enumerate() {
            match rule.counts(parts) {
                Ok(counted) => counts.extend(counted.map(|(values, kept)| ((index, values), kept))),
                Err(statuses) => missing.extend(statuses),
            }
        }
        if !missing.is_empty() {
            return missing;
        }
        let used = |key: &(usize, Vec<String>)| self.usage.get(key).copied().unwrap_or_default();
        if counts.iter().any(|(key, kept)| used(key) + kept >= rules[key.0].quota) {
            return BTreeSet::from([429]);
        }
        for (key, _) in counts {
            *self.usage.entry(key).or_default() += 1;
        }
        BTreeSet::from([status])
    }
}

fn policies(rules: &[Rule]) -> RoutePolicies {
    let limits: Vec<_> = rules.iter().enumerate().map(|(index, rule)| rule.to_json(index)).collect();
    let kept = rules
        .iter()
        .enumerate()
        .filter_map(|(index, rule)| Some((format!("kept-{index}"), when_to_json(&rule.kept.as_ref()?.1))));
    let conditions: serde_json::Map<_, _> = kept.collect();
    let json = serde_json::json!({ "limits": limits, "conditions": conditions }).to_string();
    serde_json::from_str(&json).unwrap_or_else(|error| panic!("{json}: {error}"))
}

/// Returns a random request, what the model knows of it, and the status of an admitted one.
fn request(random: &mut Random) -> (Request<Body>, Parts, u16) {
    let ((path, route), (method, counted)) = (random.choose(&PATHS), random.choose(&METHODS));
    let mut parts: Parts = BTreeMap::from([("method", Ok(counted.to_owned())), ("route", Ok(route.to_owned()))]);
    parts.insert("path", Ok(path.to_owned()));
    // The addresses of a client, and its key.
    let (address, key) = random.choose(&[
        ("192.0.2.1", "192.0.2.1"),
        ("192.0.2.2", "192.0.2.2"),
        ("2001:db8::1", "2001:db8::"),
        ("2001:db8::2", "2001:db8::"),
    ]);
    let address = SocketAddr::new(address.parse().expect("an address"), 4711);
    parts.insert("address", Ok(key.to_owned()));
    let mut builder = Request::builder().uri(path).method(Method::from_bytes(method.as_bytes()).expect("a method"));
    builder = builder.extension(address);
    let host = random.choose(&["one.test", "One.Test:80", "two.test", ""]);
    let name = host.split(':').next().unwrap_or_default().to_lowercase();
    parts.insert("host", if host.is_empty() { Err(400) } else { Ok(name) });
    if !host.is_empty() {
        builder = builder.header("host", host);
    }
    let user = random.choose(&[Some("1"), Some("auth0|1"), Some("two words"), Some("\u{e9}"), Some(""), None]);
    let known = user.filter(|user| !user.is_empty()).map(str::to_owned);
    parts.insert("user", known.ok_or(if user.is_some() { 403 } else { 400 }));
    if let Some(user) = user {
        builder = builder.extension(User(user));
    }
    let tenant = random.choose(&["red", "blue", "green", ""]);
    parts.insert("header:x-tenant", if tenant.is_empty() { Err(400) } else { Ok(tenant.to_owned()) });
    if !tenant.is_empty() {
        builder = builder.header("x-tenant", tenant);
    }
    let status = if route == "no route" { 404 } else { 200 };
    (builder.body(Body::empty()).expect("a request"), parts, status)
}

fn user_of(request: &Request<Body>) -> Extracted<&'static str> {
    match request.extensions().get::<User>() {
        Some(User("")) => Extracted::Missing(MissingKey::from_server("a user that cannot be used")),
        Some(user) => Extracted::Key(user.0),
        None => Extracted::Missing(MissingKey::from_request("no user")),
    }
}

fn parts() -> RequestParts<PeerIp, impl ExtractKey<Request<Body>, Key = &'static str> + Clone + Send + Sync + 'static> {
    RequestParts::new(PeerIp::new()).user(user_of).pepper(Pepper::new(&[7; 32]).expect("a pepper"))
}

fn router() -> Router {
    let nested = Router::new().nest("/m", Router::new().route("/c", any(async || "c")));
    Router::new().route("/a", any(async || "a")).route("/users/{id}", any(async || "user")).nest("/n", nested)
}

/// The law: every request is decided as the documentation says, also after the limits were replaced.
#[tokio::test]
async fn route_limits_decide_as_documented_in_memory_and_redis() {
    let server = Server::start();
    let mut random = Random::new(56);
    let mut seen = BTreeMap::<u16, u64>::new();
    for round in 0..40 {
        let mut rules: Vec<_> = (0..=random.below(4)).map(|_| Rule::random(&mut random)).collect();
        let memory = parts().in_memory(&policies(&rules), |limits| Memory::builder(limits).max_keys(1_000).build());
        let redis = parts().in_redis(&policies(&rules), |limits| {
            tower_ratelimit::Redis::builder(server.open(), &format!("round-{round}"), limits)
                .deadline(crate::helpers::LONG_DEADLINE)
                .build()
        });
        let (memory, redis) = (memory.expect("limits"), redis.expect("limits"));
        let apps = [router().layer(memory.layer()), router().layer(redis.layer())];
        let mut model = Model::default();
        for step in 0..60 {
            if random.below(20) == 0 {
                // Other quotas and conditions keep the usage.
                for rule in &mut rules {
                    let by = rule.by.clone();
                    *rule = Rule { by, ..Rule::random(&mut random) };
                }
                memory.replace(&policies(&rules)).expect("limits");
                redis.replace(&policies(&rules)).expect("limits");
            }
            let (request, parts, status) = request(&mut random);
            let (head, _) = request.into_parts();
            // The model's 403 is a misconfigured server.
            let expected = model.decide(&rules, &parts, status);
            for app in &apps {
                let request = Request::from_parts(head.clone(), Body::empty());
                let answer = app.clone().oneshot(request).await.expect("a response").status().as_u16();
                let answer = if answer == 500 { 403 } else { answer };
                assert!(expected.contains(&answer), "{round}.{step}: {answer}, not {expected:?}\n{head:?}\n{rules:#?}");
                *seen.entry(answer).or_default() += 1;
            }
        }
    }
    assert!([200, 404, 429, 400, 403].iter().all(|status| seen[status] > 30), "{seen:?}");
}

/// Outside of the router there is no route: each request that needs it fails, instead of passing without a limit.
#[tokio::test]
async fn route_condition_outside_of_the_router_rejects_each_request() {
    let rule = |when| Rule { quota: 9, by: BTreeSet::from(["address"]), when, kept: None };
    let status = async |rules: &[Rule]| {
        let limits = parts().in_memory(&policies(rules), |limits| Memory::builder(limits).build()).expect("limits");
        let app = tower::ServiceBuilder::new().layer(limits.layer()).service(router());
        let request = Request::get("/a").extension(SocketAddr::from(([192, 0, 2, 1], 1)));
        app.oneshot(request.body(Body::empty()).expect("a request")).await.expect("a response").status()
    };
    assert_eq!(status(&[rule(vec![("route", true, vec!["/never"])])]).await, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(status(&[rule(vec![("route", false, vec!["/never"])])]).await, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(status(&[rule(vec![("method", false, vec!["GET"])])]).await, StatusCode::OK);
    // Routes that no request had are reported, each once, also after other limits replaced those that name them.
    let rules = [rule(vec![("route", false, vec!["/a", "/typo"])]), rule(vec![("route", true, vec!["/typo"])])];
    let limits = parts().in_memory(&policies(&rules), |limits| Memory::builder(limits).build()).expect("limits");
    assert_eq!(limits.unmatched_routes(), ["/a", "/typo"]);
    let app = router().layer(limits.layer());
    let request = Request::get("/a").extension(SocketAddr::from(([192, 0, 2, 1], 1)));
    app.oneshot(request.body(Body::empty()).expect("a request")).await.expect("a response");
    assert_eq!(limits.unmatched_routes(), ["/typo"]);
    limits.replace(&policies(&rules[..1])).expect("limits");
    assert_eq!(limits.unmatched_routes(), ["/typo"]);
    // A request of another method has the route, too.
    let rules = [rule(vec![("method", false, vec!["PUT"]), ("route", false, vec!["/a"])])];
    let limits = parts().in_memory(&policies(&rules), |limits| Memory::builder(limits).build()).expect("limits");
    let app = router().layer(limits.layer());
    let request = Request::get("/a").extension(SocketAddr::from(([192, 0, 2, 1], 1)));
    app.oneshot(request.body(Body::empty()).expect("a request")).await.expect("a response");
    assert_eq!(limits.unmatched_routes(), [""; 0]);
    // Another part shows that the limit does not apply.
    assert_eq!(
        status(&[rule(vec![("method", false, vec!["PUT"]), ("route", false, vec!["/a"])])]).await,
        StatusCode::OK
    );
}

/// The extractor creates the key of a request: for operations, and for a layer with an escalation.
#[tokio::test]
async fn extractor_of_route_limits_creates_the_key_of_a_request() {
    let rules = [Rule { quota: 1, by: BTreeSet::from(["address", "path"]), when: Vec::new(), kept: None }];
    let limits = parts().in_memory(&policies(&rules), |limits| Memory::builder(limits).build()).expect("limits");
    let escalation = Escalation::new("limit-0", Quota::per_hour(2));
    let counts: Memory<RequestKey, _> = Memory::new(escalation.limits());
    let limiter = Escalating::new(limits.limiter().clone(), counts, escalation);
    let app = router().layer(RateLimitLayer::new(limits.extractor().clone(), limiter));
    let request = || {
        let request = Request::get("/a").extension(SocketAddr::from(([192, 0, 2, 1], 1)));
        request.body(Body::empty()).expect("a request")
    };
    let Extracted::Key(key) = limits.extractor().extract(&request()) else { panic!("a key") };
    let mut seen = Vec::new();
    for _ in 0..4 {
        let status = app.clone().oneshot(request()).await.expect("a response").status();
        let decision = limits.limiter().peek(&key, AcquireOptions::default()).await.expect("a decision");
        seen.push((status.as_u16(), decision.block_reason()));
    }
    assert_eq!(seen, [(200, None), (429, None), (429, None), (429, Some(BlockReason::Escalation))]);
}
