use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use super::altered::altered;
use super::report::{Report, ReportBuilder};
use super::suggestion::MaxDenied;
use super::traffic::{ALL, Arrival, Traffic};
use super::units::{Counted, Units};
use tower_ratelimit::config::{AlgorithmName, KeyParts, Policy};
use tower_ratelimit::{AcquireOptions, Decision, Detail, DynLimit, Error, ManualClock, Memory, Timestamp};

/// The value of a condition's column in rows to which the limit applies.
const APPLIES: &str = "true";

/// Decides traffic as a server with the same limits does.
///
/// The limiter is a [`Memory`] on a [`ManualClock`] that is set to the time of each arrival. It has a slot for each key
/// of the traffic, so it evicts none.
///
/// The `when` and `keep_free` of a policy name columns: a condition holds for arrivals whose value there is `true`. A report
/// leaves out arrivals to which no limit applies. A `unit` names the column of the costs in this unit: whole numbers, and 0
/// where the column is empty.
///
/// Retries of clients, and requests that wait in the layer's queue, are not simulated. With
/// [`max_delay`](Self::max_delay), the limiter schedules later starts.
pub struct Simulation<'a> {
    policies: Vec<Policy>,
    traffic: &'a Traffic,
    keys: Keys,
    units: Units,
    detail: Detail,
    clock: ManualClock,
    limiter: Memory<[usize], Vec<DynLimit<[usize]>>>,
    max_delay: Option<Duration>,
}

impl<'a> Simulation<'a> {
    /// Creates a simulation of one limit by itself. A shadow limit denies too, and a guaranteed share denies the requests
    /// that would borrow.
    ///
    /// # Errors
    ///
    /// As for [`together`](Self::together).
    pub fn alone(policy: &Policy, traffic: &'a Traffic) -> Result<Self, Error> {
        let alone = altered(policy, [("shadow", false.into()), ("guarantee", serde_json::Value::Null)])?;
        Self::together(&[alone], traffic)
    }

    /// Creates a simulation of a limiter with these limits: all of them allow a request, or none is charged.
    ///
    /// # Errors
    ///
    /// Returns an error if the traffic has no column for a policy, if two policies have one name, if the column of a unit
    /// contains a value that is no cost, or if a policy limits requests in flight or escalates.
    pub fn together(policies: &[Policy], traffic: &'a Traffic) -> Result<Self, Error> {
        let refuse = |policy: &Policy, problem: &str| {
            Err(Error::config(format!("the simulation of policy {:?} failed: {problem}", policy.name())))
        };
        for policy in policies {
            if policy.algorithm() == AlgorithmName::InFlight {
                let problem = "traffic has no durations of requests, which `in-flight` needs; remove the policy";
                return refuse(policy, problem);
            }
            if policy.escalation().is_some() {
                return refuse(policy, "the blocks of an escalation are not simulated; remove `escalate`");
            }
        }
        let units = Units::new(policies, traffic)?;
        let mut parts = KeyParts::<[usize]>::new().add(ALL, |_: &[usize]| ());
        for (index, column) in traffic.columns().iter().enumerate() {
            parts = parts.add(column.clone(), move |row: &[usize]| row.get(index).copied());
            let applies = traffic.value_index(index, APPLIES);
            parts = parts.add_condition(column.clone(), move |row: &[usize]| {
                applies.is_some() && row.get(index).copied() == applies
            });
        }
        let clock = ManualClock::at(Timestamp::EPOCH);
        let limiter = Memory::builder(parts.limits(policies)?)
            .max_keys(traffic.rows().len().max(1))
            // A log takes 16 bytes for each arrival, whatever the product of limit and keys is.
            .max_heap_bytes(usize::MAX)
            .clock(clock.clone())
            .build()?;
        let keys = Keys::new(policies, traffic);
        // Decisions list every limit only where the report needs it.
        let has_shares = policies.iter().any(|policy| policy.guarantee().is_some());
        let detail = if has_shares { Detail::All } else { Detail::default() };
        Ok(Self { policies: policies.to_vec(), traffic, keys, units, detail, clock, limiter, max_delay: None })
    }

    /// Sets the longest delay that each request accepts: see [`AcquireOptions::max_delay`].
    #[must_use]
    pub fn max_delay(self, max_delay: Duration) -> Self {
        Self { max_delay: Some(max_delay), ..self }
    }

    /// Decides one arrival of the traffic. Call it in the order of [`Traffic::arrivals`].
    pub fn decide(&self, arrival: &Arrival) -> Decision {
        self.clock.set(arrival.time);
        let row = self.traffic.row(arrival);
        let options = AcquireOptions::from(self.units.costs(arrival.cost, row));
        self.limiter.check(row, options.max_delay(self.max_delay).detail(self.detail))
    }

    /// Returns the decision on a cost of zero at a time, for the key of an arrival: it contains the remaining cost.
    pub fn peek(&self, arrival: &Arrival, time: Timestamp) -> Decision {
        self.clock.set(time);
        self.limiter.check(self.traffic.row(arrival), AcquireOptions::cost(0))
    }

    /// Returns the cost of an arrival in the unit in which the report counts.
    pub(super) fn counted_cost(&self, arrival: &Arrival) -> u64 {
        match Counted::of(&self.policies) {
            Counted::Requests => 1,
            Counted::Unit(unit) => self.units.cost(unit, self.traffic.row(arrival)),
            Counted::Cost => arrival.cost,
        }
    }

    /// Decides all arrivals.
    #[must_use]
    pub fn run(self) -> Report {
        self.run_with(|_, _| {})
    }

    /// Decides all arrivals, and calls `observe` with each decision.
    #[must_use]
    pub fn run_with(self, mut observe: impl FnMut(&Arrival, &Decision)) -> Report {
        let arrivals = self.traffic.arrivals();
        let mut report = ReportBuilder::new(&self.policies, self.keys.len(), arrivals.len());
        for arrival in arrivals.iter() {
            let decision = self.decide(arrival);
            if !decision.is_exempt() {
                report.add(self.keys.of(arrival), arrival, self.counted_cost(arrival), &decision);
            }
            observe(arrival, &decision);
        }
        report.finish(|key| self.keys.name(key, self.traffic))
    }

    /// Returns the number of keys.
    #[must_use]
    pub fn keys(&self) -> u64 {
        self.keys.len() as u64
    }

    /// Returns the first arrival of a key, which has the name that a [report](Report::top_keys) gives it.
    #[must_use]
    pub fn first_arrival(&self, key: &str) -> Option<Arrival> {
        let is_key = |arrival: &&Arrival| self.keys.name(self.keys.of(arrival), self.traffic) == key;
        self.traffic.arrivals().iter().find(is_key).copied()
    }

    /// Decides the arrivals in their order, and returns whether at most this number is denied.
    pub(super) fn denies_at_most(&self, max_denied: MaxDenied, arrivals: &[Arrival]) -> bool {
        let mut is_denied = vec![false; self.keys.len()];
        let (mut keys, mut requests) = (0, 0);
        arrivals.iter().all(|arrival| {
            if !self.decide(arrival).is_allowed() {
                requests += 1;
                if let Some(is_denied) = is_denied.get_mut(self.keys.of(arrival)) {
                    keys += u64::from(!std::mem::replace(is_denied, true));
                }
            }
            match max_denied {
                MaxDenied::Keys(max) => keys <= max,
                MaxDenied::Requests(max) => requests <= max,
            }
        })
    }
}

impl fmt::Debug for Simulation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulation").field("policies", &self.policies).finish_non_exhaustive()
    }
}

/// The keys of a report: the distinct values in the columns by which the policies count.
struct Keys {
    columns: Vec<usize>,
    /// The key of each row of the traffic.
    of_row: Vec<usize>,
    values: Vec<Box<[usize]>>,
}

impl Keys {
    fn new(policies: &[Policy], traffic: &Traffic) -> Self {
        let mut columns: Vec<_> = policies.iter().filter_map(|policy| traffic.column_index(&policy.by())).collect();
        columns.sort_unstable();
        columns.dedup();
        let mut indices: HashMap<Box<[usize]>, usize> = HashMap::new();
        let mut values = Vec::new();
        let of_row = traffic.rows().iter().map(|row| {
            let key: Box<[usize]> = columns.iter().filter_map(|&column| row.get(column).copied()).collect();
            *indices.entry(key).or_insert_with_key(|key| {
                values.push(key.clone());
                values.len() - 1
            })
        });
        let of_row = of_row.collect();
        Self { columns, of_row, values }
    }

    fn len(&self) -> usize {
        self.values.len()
    }

    fn of(&self, arrival: &Arrival) -> usize {
        self.of_row.get(arrival.row).copied().unwrap_or(0)
    }

    /// Returns the values of a key, separated by commas, or `all` without a column.
    fn name(&self, key: usize, traffic: &Traffic) -> String {
        let values = self.values.get(key).map_or(&[][..], |values| values);
        let names: Vec<_> =
            self.columns.iter().zip(values).map(|(&column, &value)| traffic.value(column, value)).collect();
        if names.is_empty() { ALL.to_owned() } else { names.join(", ") }
    }
}
