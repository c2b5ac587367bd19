use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::key::{RequestKey, Rule, SubKey};
use super::part::Source;
use super::parts::{ExtractParts, NamedRoute, Plan, RequestParts};
use super::policy::{RouteCondition, RoutePolicies, RoutePolicy, routes_in};
use crate::config::{BuildLimit, Conditions, Policy, SubKeyFn, When, check_name, field_error};
use crate::error::Error;
use crate::key::NO_ROUTE;
use crate::middleware::cost::UnitCost;
use crate::middleware::{BodyEnd, RateLimitLayer};
use crate::response::Http;
use crate::store::{DynLimit, Memory};
#[cfg(feature = "redis")]
use crate::store::{Redis, RedisLimit};

/// Limits on the requests of all routes, from a configuration that can be replaced at run time.
///
/// See [the module](super). `S` is the limiter: [`Memory`] or `Redis`.
pub struct RouteLimits<A, U, S> {
    extractor: ExtractParts<A, U>,
    store: S,
    replacing: Arc<Mutex<()>>,
}

impl<A, U> RequestParts<A, U> {
    /// Builds limits in memory. `build` builds the limiter from its limits: `|limits| Memory::builder(limits).build()`.
    ///
    /// # Errors
    ///
    /// If the policies are invalid together, or the limiter cannot be built.
    pub fn in_memory(
        self,
        policies: &RoutePolicies,
        build: impl FnOnce(Vec<DynLimit<RequestKey>>) -> Result<Memory<RequestKey>, Error>,
    ) -> Result<RouteLimits<A, U, Memory<RequestKey>>, Error> {
        RouteLimits::new(self, policies, build)
    }

    /// Builds limits in Redis. `build` builds the limiter from its limits:
    /// `|limits| Redis::builder(server, "api", limits).build()`.
    ///
    /// # Errors
    ///
    /// As [`in_memory`](Self::in_memory), and if a policy counts by a header, a cookie or a Basic user and no
    /// [pepper](Self::pepper) is set.
    #[cfg(feature = "redis")]
    pub fn in_redis(
        self,
        policies: &RoutePolicies,
        build: impl FnOnce(Vec<RedisLimit<RequestKey>>) -> Result<Redis<RequestKey>, Error>,
    ) -> Result<RouteLimits<A, U, Redis<RequestKey>>, Error> {
        RouteLimits::new(self, policies, build)
    }
}

impl<A, U, S: RouteStore> RouteLimits<A, U, S> {
    fn new(
        parts: RequestParts<A, U>,
        policies: &RoutePolicies,
        build: impl FnOnce(Vec<S::Limit>) -> Result<S, Error>,
    ) -> Result<Self, Error> {
        let extractor = ExtractParts { parts: Arc::new(parts), plan: Arc::default() };
        let (plan, limits) = extractor.plan_of::<S>(policies)?;
        let store = build(limits)?;
        extractor.plan.store(Arc::new(plan));
        Ok(Self { extractor, store, replacing: Arc::default() })
    }

    /// Creates a layer with the limits. All its clones, and other layers of these limits, share the counts.
    ///
    /// The layer tracks requests until their responses end
    /// ([`release_on_body_end`](RateLimitLayer::release_on_body_end)), as limits on requests in flight need.
    pub fn layer(&self) -> RateLimitLayer<ExtractParts<A, U>, S, Http, UnitCost, BodyEnd> {
        RateLimitLayer::new(self.extractor.clone(), self.store.clone()).release_on_body_end()
    }

    /// Returns the extractor of the layer, which creates the keys of requests: for operations on a key, or for a layer with a
    /// limiter around this one.
    pub fn extractor(&self) -> &ExtractParts<A, U> {
        &self.extractor
    }

    /// Returns the limiter, for its operations.
    pub fn limiter(&self) -> &S {
        &self.store
    }

    /// Replaces the limits. The keys keep their usage, as `replace` of the limiter says.
    ///
    /// # Errors
    ///
    /// If the policies are invalid together. The earlier limits stay.
    pub fn replace(&self, policies: &RoutePolicies) -> Result<(), Error> {
        let _one_at_a_time = self.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        let (plan, limits) = self.extractor.plan_of::<S>(policies)?;
        let earlier = self.extractor.plan.load_full();
        // While the limits change, a request has the parts that either of them need.
        self.extractor.plan.store(Arc::new(earlier.with(&plan)));
        let replaced = self.store.replace_limits(limits);
        self.extractor.plan.store(if replaced.is_ok() { Arc::new(plan) } else { earlier });
        replaced
    }

    /// Returns the routes that conditions name and that no request had so far: perhaps their names are wrong.
    pub fn unmatched_routes(&self) -> Vec<String> {
        let plan = self.extractor.plan.load();
        let unmatched = plan.routes.iter().filter(|route| !route.has_matched.load(Ordering::Relaxed));
        unmatched.map(|route| route.name.clone()).collect()
    }
}

impl<A, U> ExtractParts<A, U> {
    /// Returns what the policies need of a request, and their limits.
    fn plan_of<S: RouteStore>(&self, policies: &RoutePolicies) -> Result<(Plan, Vec<S::Limit>), Error> {
        let (mut plan, mut limits) = (Plan::default(), Vec::new());
        let earlier = self.plan.load();
        for (index, policy) in policies.limits.iter().enumerate() {
            check_name(index, policy.policy(), policies.limits.iter().map(RoutePolicy::policy))?;
            let rule = policy.rule(&self.parts.pepper, &policies.conditions).map_err(|error| {
                Error::config(format!("limits[{index}] ({:?}), {error}", policy.policy().name())).with_source(error)
            })?;
            let rule = Arc::new(rule);
            self.check::<S>(index, policy, &rule)?;
            let (sub_key, conditions) = parts_of(&rule);
            limits.push(S::limit(&sub_key, policy.policy(), conditions));
            plan.rules.push(rule);
            let kept_free = policy.policy().keep_free().filter_map(|(name, _)| policies.conditions.get(name));
            for name in policy.routes().chain(kept_free.flat_map(RouteCondition::routes)) {
                let is_same = |route: &&Arc<NamedRoute>| route.name == name;
                if !plan.routes.iter().any(|route| is_same(&route)) {
                    let named = earlier.routes.iter().find(is_same).cloned();
                    plan.routes.push(named.unwrap_or_else(|| NamedRoute::new(name)));
                }
            }
        }
        Ok((plan, limits))
    }

    fn check<S: RouteStore>(&self, index: usize, policy: &RoutePolicy, rule: &Rule) -> Result<(), Error> {
        let by = rule.by.iter().map(|part| ("by", part));
        let when = rule.when.iter().map(|test| ("when", &test.part));
        let kept_free = rule.kept_free.iter().flat_map(|kept| &kept.tests).map(|test| ("keep_free", &test.part));
        for (field, part) in by.chain(when).chain(kept_free) {
            if matches!(part.source, Source::User) && !self.parts.has_user {
                let problem = "there is no source of users; call `RequestParts::user`";
                return Err(field_error(index, policy.policy(), field, problem));
            }
            // A condition compares in this process.
            if field == "by" && S::IS_SHARED && part.is_hashed() && !self.parts.is_shared {
                let problem = "keyed hashes in Redis need a pepper of all processes; call `RequestParts::pepper`";
                return Err(field_error(index, policy.policy(), field, problem));
            }
        }
        Ok(())
    }
}

impl NamedRoute {
    fn new(name: &str) -> Arc<Self> {
        Arc::new(Self { name: name.to_owned(), value: name.into(), has_matched: AtomicBool::new(name == NO_ROUTE) })
    }
}

impl RoutePolicy {
    /// Returns the routes that the condition names.
    fn routes(&self) -> impl Iterator<Item = &str> {
        let parts = match &self.policy().fields().when {
            Some(When::Parts(parts)) => Some(parts),
            _ => None,
        };
        parts.into_iter().flat_map(routes_in)
    }
}

impl Plan {
    fn with(&self, other: &Self) -> Self {
        let rules = self.rules.iter().chain(&other.rules).cloned().collect();
        Self { rules, routes: self.routes.iter().chain(&other.routes).cloned().collect() }
    }
}

/// A limiter whose limits can be replaced: [`Memory`] or `Redis`.
#[doc(hidden)]
pub trait RouteStore: Clone + sealed::Sealed {
    type Limit;

    /// Whether other processes see the keys.
    const IS_SHARED: bool;

    #[allow(private_interfaces, reason = "sealed")]
    fn limit(by: &dyn BuildLimit<RequestKey>, policy: &Policy, conditions: Conditions<RequestKey>) -> Self::Limit;

    fn replace_limits(&self, limits: Vec<Self::Limit>) -> Result<(), Error>;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Memory<super::RequestKey> {}
    #[cfg(feature = "redis")]
    impl Sealed for super::Redis<super::RequestKey> {}
}

/// Returns the sub-key and the condition of a limit.
fn parts_of(rule: &Arc<Rule>) -> (SubKeyFn<RequestKey, SubKey>, Conditions<RequestKey>) {
    let (by, when) = (Arc::clone(rule), Arc::clone(rule));
    let has_condition = !rule.when.is_empty();
    let when = has_condition.then(|| Arc::new(move |key: &RequestKey| when.applies(key)) as _);
    let kept_free = rule.kept_free.iter().cloned().map(|kept_free| {
        let units = kept_free.units;
        (Arc::new(move |key: &RequestKey| kept_free.applies(key)) as _, units)
    });
    (Arc::new(move |key| by.sub_key(key)), Conditions { when, kept_free: kept_free.collect() })
}

impl RouteStore for Memory<RequestKey> {
    type Limit = DynLimit<RequestKey>;

    const IS_SHARED: bool = false;

    #[allow(private_interfaces, reason = "sealed")]
    fn limit(by: &dyn BuildLimit<RequestKey>, policy: &Policy, conditions: Conditions<RequestKey>) -> Self::Limit {
        by.in_memory(policy, conditions)
    }

    fn replace_limits(&self, limits: Vec<Self::Limit>) -> Result<(), Error> {
        self.replace(limits)
    }
}

#[cfg(feature = "redis")]
impl RouteStore for Redis<RequestKey> {
    type Limit = RedisLimit<RequestKey>;

    const IS_SHARED: bool = true;

    #[allow(private_interfaces, reason = "sealed")]
    fn limit(by: &dyn BuildLimit<RequestKey>, policy: &Policy, conditions: Conditions<RequestKey>) -> Self::Limit {
        by.in_redis(policy, conditions)
    }

    fn replace_limits(&self, limits: Vec<Self::Limit>) -> Result<(), Error> {
        self.replace(limits)
    }
}

impl_clone!([A, U, S: Clone] RouteLimits<A, U, S> { extractor, store, replacing });

impl_debug!([A, U, S] RouteLimits<A, U, S> |limits| { plan: limits.extractor.plan });
