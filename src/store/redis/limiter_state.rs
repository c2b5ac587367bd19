use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwapOption;

use super::builder::{HashTag, RedisBuilder, Settings};
use super::client::{Client, ClientConfig, OperationKind, OperationTarget, PendingDecision, ServerClock};
use super::conflicts::Registration;
use super::health::ServerHealth;
use super::holds::HoldRegistry;
use super::key_format::KeyFormat;
use super::lease::{LeaseBook, LeaseClock};
use super::limits::RedisLimit;
use super::script::{LimitInfo, LimitSet, Operation, OperationTemplate, OwnAlgorithm};
use crate::clock::{Clock, SystemClock};
use crate::decision::{AcquireOptions, Costs, Decision, LimitStatus};
use crate::encode::KeyWriter;
use crate::error::Error;
use crate::limiter::{Held, LimiterFuture, LimitsOfKey, Outcome};
use crate::store::inner::{CallId, LimitOfKey, Name, Plan, ShareRole};

/// The part of a limiter that depends on its limits. [`Redis::replace`](super::Redis::replace) swaps it.
pub(super) struct LimiterState<Key: ?Sized> {
    pub(super) client: Arc<Client>,
    pub(super) limits: Arc<LimitSet>,
    pub(super) limit_fns: Arc<[RedisLimit<Key>]>,
    pub(super) settings: Settings,
    pub(super) key_format: KeyFormat,
    pub(super) hash_tag: Option<HashTag<Key>>,
    pub(super) leases: Option<Arc<LeaseBook>>,
    /// The leases of earlier limits that were not released when these limits replaced them.
    earlier_leases: Vec<Arc<LeaseBook>>,
    /// Registers this limiter for the conflict warnings of other limiters.
    _registration: Arc<Registration>,
    /// The last template, with what it depends on: most decisions have the same options.
    last_template: ArcSwapOption<(TemplateOptions, Arc<OperationTemplate>)>,
}

/// The operation, the costs, the maximum delay, and whether the request holds.
type TemplateOptions = (Operation, Costs, Option<Duration>, bool);

impl<Key: ?Sized> LimiterState<Key> {
    /// Returns the state, and the conflicts with other limiters of this process. `earlier` is the state that it replaces.
    pub(super) fn new(builder: RedisBuilder<Key>, earlier: Option<&Self>) -> Result<(Self, Vec<String>), Error> {
        let mut limits: Vec<_> = builder.limits.iter().map(|limit| limit.0.info()).collect();
        builder.check(&limits)?;
        let RedisBuilder { settings, limits: limit_fns, hash_tag } = builder;
        let shares =
            crate::store::inner::check_limits(&limits.iter().map(|limit| limit.facts.clone()).collect::<Vec<_>>())?;
        for limit in &mut limits {
            limit.facts.share.place(shares, limit.facts.cost);
            let is_same = |earlier: &&LimitInfo| earlier.facts.name.as_str() == limit.facts.name.as_str();
            let earlier = earlier.and_then(|earlier| earlier.limits().iter().find(is_same)?.warn_keys.as_ref());
            if let (Some(own), Some(earlier)) = (&limit.warn_keys, earlier) {
                limit.warn_keys = Some(own.continuing(earlier));
            }
        }
        let names = limits.iter().map(|LimitInfo { facts, script, .. }| {
            (facts.name.as_str(), facts.sub_key_name.as_ref().map_or("", Name::as_str), script.name())
        });
        let is_tag = settings.server.0.is_cluster() && limits.len() > 1 && hash_tag.is_none();
        let key_format = KeyFormat::new(&settings.prefix, &settings.name, names, settings.secret.as_deref(), is_tag);
        let generation = earlier.map_or(0, |earlier| earlier.limits.generation + 1);
        let limits = Arc::new(LimitSet::new(generation, limits, settings.lease.is_some(), settings.hold_expiry));
        let new_leases = |lease| -> Result<_, Error> {
            let clock = settings.clock.clone();
            #[cfg(test)]
            let clock = settings.lease_clock.clone().or(clock);
            let clock = LeaseClock::new(clock);
            let leases = LeaseBook::new(lease, Arc::clone(&limits), clock, &settings.name, &settings.observers)?;
            let earlier = earlier.and_then(|earlier| earlier.leases.as_ref());
            // A closed limiter stays closed.
            if earlier.is_some_and(|earlier| earlier.is_closed.load(Ordering::Acquire)) {
                leases.close();
            }
            Ok(Arc::new(leases))
        };
        let leases = settings.lease.map(new_leases).transpose()?;
        let (registration, conflicts) =
            Registration::register(settings.server.endpoints(), &settings.prefix, &settings.name, &limits.limits);
        let client = earlier.map_or_else(|| new_client(&settings), |earlier| Arc::clone(&earlier.client));
        let state = Self {
            earlier_leases: earlier.map_or_else(Vec::new, Self::unreleased_leases),
            client,
            limits,
            limit_fns,
            settings,
            key_format,
            hash_tag,
            leases,
            _registration: registration,
            last_template: ArcSwapOption::empty(),
        };
        Ok((state, conflicts))
    }

    /// Returns the leases that are not released.
    pub(super) fn unreleased_leases(&self) -> Vec<Arc<LeaseBook>> {
        self.leases.iter().chain(&self.earlier_leases).filter(|leases| leases.len() > 0).cloned().collect()
    }

    /// Returns a builder of the next state.
    pub(super) fn builder(&self) -> RedisBuilder<Key> {
        let (limits, hash_tag) = (Arc::clone(&self.limit_fns), self.hash_tag.clone());
        RedisBuilder { settings: self.settings.clone(), limits, hash_tag }
    }

    /// Checks that a limit names each unit of the options.
    #[inline]
    pub(super) fn check_units(&self, options: AcquireOptions) -> Result<(), Error> {
        options.check_units(|visit| self.units().for_each(visit))
    }

    pub(super) fn units(&self) -> impl Iterator<Item = &'static str> {
        self.limits().iter().filter_map(|limit| limit.facts.cost.unit())
    }

    /// Returns the index of the limit with this name, which must apply to the key.
    pub(super) fn limit_of(&self, name: &str, key: &Key) -> Result<usize, Error> {
        let index = self.limits().iter().position(|limit| limit.facts.name.as_str() == name);
        let index = index.ok_or_else(|| Error::no_such_limit(name))?;
        if self.limit_fns[index].0.applies_to(key) { Ok(index) } else { Err(Error::does_not_apply(name)) }
    }

    /// Returns for each limit the algorithm for this key. Empty if no limit's algorithm depends on the key.
    pub(super) fn algorithms(&self, key: &Key) -> Vec<OwnAlgorithm> {
        if self.limits().iter().all(|limit| limit.fixed_algorithm.is_some()) {
            return Vec::new();
        }
        self.limit_fns.iter().map(|limit| limit.0.own_algorithm(key)).collect()
    }

    /// The run time of one step of all limits in the script.
    fn weight(&self, algorithms: &[OwnAlgorithm]) -> usize {
        let weight = |(index, limit): (usize, &LimitInfo)| {
            limit.select(index, algorithms).map_or(1, |algorithm| usize::from(algorithm.weight()).max(1))
        };
        self.limits().iter().enumerate().map(weight).sum()
    }

    /// Returns for each limit the units that are kept free from requests of a key. Empty if no limit keeps any free.
    pub(super) fn kept_free(&self, key: &Key) -> Vec<Option<u64>> {
        if !self.limits().iter().any(|limit| limit.facts.keeps_free || limit.facts.share.role == ShareRole::Common) {
            return Vec::new();
        }
        let limits = self.limits().iter().zip(&*self.limit_fns);
        limits
            .map(|(limit, RedisLimit(fns))| {
                fns.applies_to(key).then(|| limit.facts.share.kept_free(fns.kept_free(key))).flatten()
            })
            .collect()
    }

    /// The template of a decision on all limits.
    pub(super) fn decision_template(
        &self,
        operation: Operation,
        key: &Key,
        algorithms: &[OwnAlgorithm],
        options: AcquireOptions,
    ) -> Arc<OperationTemplate> {
        let of_options = (operation, options.costs(), options.max_delay, options.hold);
        let kept_free = if operation == Operation::Settle { Vec::new() } else { self.kept_free(key) };
        if let Some((known, template)) = self.last_template.load().as_deref()
            && algorithms.is_empty()
            && template.kept_free == kept_free
            && *known == of_options
        {
            return Arc::clone(template);
        }
        let template = Arc::new(self.limits.template(algorithms, operation, options, kept_free, Vec::new()));
        if algorithms.is_empty() {
            self.last_template.store(Some(Arc::new((of_options, Arc::clone(&template)))));
        }
        template
    }

    /// The template of an operation on the limit with index `limit`. `None` if the key has no algorithm there.
    pub(super) fn operation(
        &self,
        operation: Operation,
        limit: usize,
        algorithms: &[OwnAlgorithm],
        cost: u64,
        arg1: u64,
    ) -> Option<Arc<OperationTemplate>> {
        let info = &self.limits()[limit];
        let algorithm = info.select(limit, algorithms)?;
        Some(Arc::new(info.template(limit, operation, algorithm, cost, arg1)))
    }

    /// Returns the limits and keys of an operation. The key of a limit that does not apply is empty.
    pub(super) fn target(&self, key: &Key, algorithms: Vec<OwnAlgorithm>) -> Result<OperationTarget, Error> {
        let tag = self.hash_tag.as_ref().map(|hash_tag| {
            let mut writer = KeyWriter::new();
            hash_tag(key, &mut writer);
            writer
        });
        let tag = tag.as_ref().map(KeyWriter::as_str);
        if tag == Some("") {
            return Err(Error::config(
                "the decision was not sent: `slot_by` returned an empty value, which selects no cluster slot; return a \
                 part of the key that is never empty",
            ));
        }
        let applies = |limit: usize| self.limit_fns[limit].0.applies_to(key);
        self.target_of(tag, algorithms, applies, |limit, writer| self.limit_fns[limit].0.encode(key, writer))
    }

    /// Returns the target of an operation on the limits that apply. `encode` writes the sub-key of a limit.
    pub(super) fn target_of(
        &self,
        tag: Option<&str>,
        algorithms: Vec<OwnAlgorithm>,
        applies: impl Fn(usize) -> bool,
        encode: impl Fn(usize, &mut KeyWriter),
    ) -> Result<OperationTarget, Error> {
        let count = self.limit_fns.len();
        let (mut names, mut key_offsets) = (KeyWriter::with_capacity(64 * count), Vec::with_capacity(count));
        for limit in 0..count {
            if applies(limit) {
                let mut is_empty = false;
                self.key_format.append(limit, tag, &mut names, |writer| {
                    encode(limit, writer);
                    is_empty = writer.as_str().is_empty();
                });
                if tag.is_some() && is_empty {
                    return Err(Error::config(
                        "the decision was not sent: `slot_by` cannot spread a limit on all keys together; make the limit \
                         a limiter of its own, and combine the two with `limiter::Chained`",
                    ));
                }
            }
            key_offsets.push(names.names_len());
        }
        let (keys, weight) = (names.into_names().into_bytes(), self.weight(&algorithms));
        Ok(OperationTarget { limits: Arc::clone(&self.limits), keys, key_offsets, algorithms, weight })
    }

    /// Submits a decision that charges or holds.
    #[inline(never)]
    pub(super) fn acquire_in_redis(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Outcome> {
        let (holds, once) = (options.hold || self.holds_until_end(key, true), options.charged_once());
        let submitted = if !options.keeps_guard && self.limits().iter().any(|limit| limit.held_until_end) {
            Err(Error::guard_not_kept())
        } else if self.is_exempt(key) {
            let holds = options.hold && options.reserve().is_none();
            let units = self.units().collect();
            let held = holds.then(|| Held::of_limits(options.costs(), units, |_| LimiterFuture::ready(Ok(()))));
            return LimiterFuture::ready(Ok(Outcome::of_store(self.exempt_decision(options), held)));
        } else if let Some(reserve) = options.reserve() {
            self.reserve(key, options, reserve)
        } else if holds || once.is_some() {
            self.submit_pending(key, options, holds, once)
        } else {
            self.decide(Operation::Acquisition, key, options)
        };
        LimiterFuture::of_result(submitted)
    }

    /// Submits a decision that charges, or a peek.
    pub(super) fn decide<T: From<Decision> + Send + 'static>(
        &self,
        operation: Operation,
        key: &Key,
        mut options: AcquireOptions,
    ) -> Result<LimiterFuture<T>, Error> {
        if options.hold || self.holds_until_end(key, false) {
            // The peek of a hold: a hold starts now.
            options.max_delay = Some(Duration::ZERO);
        }
        self.client.submit_decision(|reply| {
            let algorithms = self.algorithms(key);
            let template = self.decision_template(operation, key, &algorithms, options);
            Ok(self.target(key, algorithms)?.operation(OperationKind::Decide(options, template), reply))
        })
    }

    /// Submits a decision that holds costs, or charges an id once.
    fn submit_pending(
        &self,
        key: &Key,
        options: AcquireOptions,
        holds: bool,
        once: Option<CallId>,
    ) -> Result<LimiterFuture<Outcome>, Error> {
        let algorithms = self.algorithms(key);
        let template = once.is_none().then(|| self.decision_template(Operation::Hold, key, &algorithms, options));
        let target = self.target(key, algorithms)?;
        let id = |call_id: CallId| {
            call_id.check()?;
            self.id(&target, call_id, if options.hold { 0 } else { call_id.repeats }, |_, _| 0.0)
        };
        let once = once.map(id).transpose()?;
        // The template of a hold has them.
        let kept_free = if once.is_some() { self.kept_free(key) } else { Vec::new() };
        let request = PendingDecision { options, target, holds, once, kept_free };
        let template = template.unwrap_or_else(|| request.template(true, Vec::new()));
        self.client.submit_pending(request, template)
    }

    /// Submits an operation on each of these limits.
    pub(super) fn operate(
        &self,
        key: &Key,
        limits: impl Iterator<Item = usize>,
        operation: Operation,
        cost: u64,
        arg1: u64,
    ) -> LimiterFuture<()> {
        let algorithms = self.algorithms(key);
        let templates = limits.filter_map(|limit| self.operation(operation, limit, &algorithms, cost, arg1));
        let templates: Vec<_> = templates.collect();
        if templates.is_empty() {
            return LimiterFuture::ready(Ok(()));
        }
        self.client.submit_operation(|reply| {
            Ok(self.target(key, algorithms)?.operation(OperationKind::Mutate(templates), reply))
        })
    }

    /// Returns whether a limit that applies to a key holds every cost until the request ends.
    pub(super) fn holds_until_end(&self, key: &Key, with_shadows: bool) -> bool {
        self.limits().iter().zip(&*self.limit_fns).any(|(limit, RedisLimit(fns))| {
            limit.held_until_end && (with_shadows || !limit.facts.is_shadow) && fns.applies_to(key)
        })
    }

    /// Names the limits that apply to a key.
    pub(super) fn name_limits(&self, key: &Key, names: &mut LimitsOfKey<'_>) {
        let Ok(target) = self.target(key, Vec::new()) else { return };
        for ((limit, RedisLimit(fns)), redis_key) in self.limits().iter().zip(&*self.limit_fns).zip(target.keys()) {
            if !redis_key.is_empty() && !limit.facts.is_shadow {
                names.add_limit(LimitOfKey {
                    name: limit.facts.name.as_str(),
                    id: self.client.limit_id(redis_key),
                    is_of_store: true,
                    cost: limit.facts.cost,
                    kept_free: limit.facts.share.kept_free(fns.kept_free(key)).unwrap_or_default(),
                    share: limit.facts.share.role,
                    max_waiting: fns.max_waiting(key),
                });
            }
        }
    }

    /// Returns whether no limit applies to a key.
    pub(super) fn is_exempt(&self, key: &Key) -> bool {
        !self.limit_fns.iter().any(|limit| limit.0.applies_to(key))
    }

    /// Returns the decision on a key to which no limit applies. It needs no server.
    pub(super) fn exempt_decision(&self, options: AcquireOptions) -> Decision {
        let clock = self.client.config.clock.as_deref();
        let now = clock.map_or_else(|| SystemClock::new().now(), Clock::now);
        Plan::new([].iter()).decide(now, options, std::iter::empty::<LimitStatus>())
    }

    pub(super) fn limits(&self) -> &[LimitInfo] {
        &self.limits.limits
    }
}

pub(super) fn new_client(settings: &Settings) -> Arc<Client> {
    let Settings { name, server, observers, clock, .. } = settings.clone();
    Arc::new_cyclic(|client: &Weak<Client>| {
        let holds = Arc::new(HoldRegistry::new(settings.hold_expiry, &name, &observers, client.clone()));
        let health = ServerHealth::new(name, server.0, observers);
        Client::new(ClientConfig {
            health: Arc::new(health),
            deadline: settings.deadline,
            holds,
            clock: clock.clone(),
            server_clock: ServerClock::default(),
        })
    })
}

impl<Key: ?Sized> Drop for LimiterState<Key> {
    fn drop(&mut self) {
        if let Some(leases) = &self.leases {
            leases.release_on_drop(&*self.client);
        }
    }
}
