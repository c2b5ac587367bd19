use super::bound::{AnyBoundLimit, KeyState};
use crate::clock::Timestamp;
use crate::decision::{AcquireOptions, Decision};
use crate::error::Error;
use crate::limiter::AdminOperation;
use crate::store::inner::{LimitNumbers, LimitReading, Plan, ReadMode};

/// One decision or operation on a key, for a store of your own: from the states that the store has read, those to write.
///
/// A store does the following for each acquire call, and starts again if another call has changed a state meanwhile:
///
/// 1. It makes the transaction: [`StoreLimits::transaction`](super::StoreLimits::transaction).
/// 2. It reads the state of each of the [`keys`](Self::keys), and the time. All states must be from one moment.
/// 3. It calls [`decide`](Self::decide), which does no I/O, and reads no clock.
/// 4. If there is anything to write, it writes all states or none, and only if no state has changed since it was read: by
///    a compare-and-swap, or because it has locked them. A comparison of bytes suffices.
///
/// All processes should have one time: the database's. A state read at one time may be written later, so the time may
/// step back a little, as for every [`Algorithm`](crate::algorithm::Algorithm#laws).
///
/// # Keys
///
/// A key is text of ASCII characters: `1:NAME:STATE:SUBKEY`, for example `1:daily:fixed_window3:alice`.
///
/// | Part | Content |
/// |---|---|
/// | `1` | the version of this layout and of the states' layout |
/// | `NAME` | the limit's name, as [`KeyWriter::bytes`](crate::key::KeyWriter::bytes) writes it |
/// | `STATE` | the algorithm's [`STATE_NAME`](crate::algorithm::Algorithm::STATE_NAME) |
/// | `SUBKEY` | the sub-key, as [`EncodeKey`](crate::key::EncodeKey) writes it, or if that has more than 128 bytes `#` and its SHA-256 |
///
/// If several limiters share a table, put the limiter's name in front of each key. A version of this crate with another
/// layout uses other keys: while processes of both versions run, each version admits the quota.
///
/// # States
///
/// Numbers are little-endian; times are in microseconds since the Unix epoch.
///
/// | Bytes | Content |
/// |---|---|
/// | 0 | the version: 1 |
/// | 1 to 4 | the 32-bit FNV-1a hash of the algorithm's `STATE_NAME` and of all bytes behind the hash |
/// | 5 to 12 | the end of the key's block, 0 if the key is not blocked |
/// | 13 to 20 | the duration of the block, 0 if the key is not blocked; its highest bit says whether the reason is an [escalation](crate::BlockReason) |
/// | 21 to 28 | the time from which the key is idle, apart from the block |
/// | 29.. | the other words of the state, 8 bytes each; for a [`HitLog`](crate::algorithm::HitLog) the period and the limit of its charges, the same of earlier charges and the time until which those count, then the time and the weight of each hit |
///
/// In Redis the words are doubles, which Lua reads, and costs are held beside them. So the layouts differ.
///
/// Changed bytes, and the state of another algorithm, are an error for which [`is_unavailable`](Error::is_unavailable)
/// returns true.
pub struct StoreTransaction {
    pub(super) keys: Vec<String>,
    pub(super) limits: Vec<Box<dyn AnyBoundLimit>>,
    /// The names of the limits that do not apply to the key.
    pub(super) not_applying: Vec<String>,
    pub(super) options: AcquireOptions,
}

/// The new state of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreWrite {
    /// The state.
    pub state: Vec<u8>,
    /// The time from which the key is idle: the store may remove the state then.
    ///
    /// A store that removes a state earlier admits too much. One that keeps a state for longer only needs more space.
    pub expires_at: Timestamp,
}

impl StoreTransaction {
    /// Returns the keys of the states that the store must read, each once.
    ///
    /// There may be fewer keys than limits: one for each limit that applies to the request.
    pub fn keys(&self) -> &[String] {
        &self.keys
    }

    /// Decides. Returns the states to write as well: for each key in the order of [`keys`](Self::keys) the new state, or
    /// `None` if it stays.
    ///
    /// `states` has the present state of each key, or `None` for a key without a state. A denial writes nothing.
    ///
    /// # Errors
    ///
    /// Returns an error if a state was not written by this type, or if there are not as many states as keys.
    pub fn decide<State: AsRef<[u8]>>(
        &self,
        states: &[Option<State>],
        now: Timestamp,
    ) -> Result<(Decision, Vec<Option<StoreWrite>>), Error> {
        let (states, now) = (self.states(states)?, now.min(Timestamp::MAX));
        let (readings, plan) = self.plan(&states, now)?;
        let (mut writes, mut numbers) = (Vec::with_capacity(states.len()), Vec::with_capacity(states.len()));
        for ((limit, state), reading) in self.limits.iter().zip(&states).zip(&readings) {
            let delay = plan.charge_of(reading);
            let charged = delay.map(|delay| limit.charge(self.state(*state, now), delay, reading)).transpose()?;
            let (write, charged) = charged.unzip();
            writes.push(write);
            numbers.push(charged.unwrap_or(reading.numbers()));
        }
        Ok((self.decision(&plan, &readings, &numbers, now), writes))
    }

    /// Returns the decision that [`decide`](Self::decide) would return, without charging.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`decide`](Self::decide).
    pub fn peek<State: AsRef<[u8]>>(&self, states: &[Option<State>], now: Timestamp) -> Result<Decision, Error> {
        let (states, now) = (self.states(states)?, now.min(Timestamp::MAX));
        let (readings, plan) = self.plan(&states, now)?;
        let numbers: Vec<_> = readings.iter().map(LimitReading::numbers).collect();
        Ok(self.decision(&plan, &readings, &numbers, now))
    }

    /// Runs an administrative operation, for [`Limiter::administer`](crate::Limiter::administer).
    ///
    /// Returns the states to write, as [`decide`](Self::decide) does.
    ///
    /// # Errors
    ///
    /// Returns an error if no limit has the operation's name, if that limit does not apply to the key, and the errors of [`decide`](Self::decide).
    pub fn administer<State: AsRef<[u8]>>(
        &self,
        states: &[Option<State>],
        now: Timestamp,
        operation: AdminOperation<'_>,
    ) -> Result<Vec<Option<StoreWrite>>, Error> {
        let (states, now) = (self.states(states)?, now.min(Timestamp::MAX));
        let name = match operation {
            AdminOperation::SetUsage { limit, .. } | AdminOperation::Block { limit, .. } => Some(limit),
            AdminOperation::Reset => None,
            AdminOperation::Settle { .. } => {
                return Err(Error::unsupported(
                    "settling failed: `StoreLimits` does not support reservation ids; use `Memory` or `Redis`",
                ));
            }
        };
        if let Some(name) = name
            && !self.limits.iter().any(|limit| limit.name().as_str() == name)
        {
            let applies_to_others = self.not_applying.iter().any(|not_applying| not_applying == name);
            return Err(if applies_to_others { Error::does_not_apply(name) } else { Error::no_such_limit(name) });
        }
        let mut writes = Vec::with_capacity(states.len());
        for (limit, &stored) in self.limits.iter().zip(&states) {
            let state = self.state(stored, now);
            writes.push(match operation {
                _ if name.is_some_and(|name| limit.name().as_str() != name) => None,
                AdminOperation::SetUsage { used, .. } => Some(limit.set_usage(state, used)?),
                AdminOperation::Block { duration, reason, .. } => {
                    Some(limit.block(state, now.saturating_add(duration), reason)?)
                }
                AdminOperation::Settle { .. } => None,
                AdminOperation::Reset if stored.is_none() => None,
                AdminOperation::Reset => Some(limit.set_usage(state, 0)?),
            });
        }
        Ok(writes)
    }

    fn states<'a, State: AsRef<[u8]>>(&self, states: &'a [Option<State>]) -> Result<Vec<Option<&'a [u8]>>, Error> {
        if states.len() != self.limits.len() {
            return Err(Error::config(format!(
                "the decision failed: the store has passed {} states for {} keys; pass one for each of \
                 `StoreTransaction::keys`",
                states.len(),
                self.limits.len()
            )));
        }
        Ok(states.iter().map(|state| state.as_ref().map(AsRef::as_ref)).collect())
    }

    fn state<'a>(&self, stored: Option<&'a [u8]>, now: Timestamp) -> KeyState<'a> {
        KeyState { stored, now, options: self.options }
    }

    fn read(&self, states: &[Option<&[u8]>], now: Timestamp) -> Result<Vec<LimitReading>, Error> {
        let mode = if self.limits.len() > 1 { ReadMode::Together } else { ReadMode::Snapshot };
        let read = self.limits.iter().zip(states).map(|(limit, state)| limit.read(self.state(*state, now), mode));
        read.collect()
    }

    /// Reads all limits, and returns what they decide together.
    fn plan(&self, states: &[Option<&[u8]>], now: Timestamp) -> Result<(Vec<LimitReading>, Plan), Error> {
        let mut readings = self.read(states, now)?;
        let read_later = |_: &mut [_], blocked| self.read(states, now.saturating_add(blocked));
        let plan = Plan::of(&mut readings, self.options, read_later)?;
        Ok((readings, plan))
    }

    /// Builds the decision. The numbers are those after it.
    fn decision(&self, plan: &Plan, readings: &[LimitReading], numbers: &[LimitNumbers], now: Timestamp) -> Decision {
        let limits = self.limits.iter().zip(readings).zip(numbers);
        let statuses = limits.map(|((limit, reading), numbers)| limit.status(plan, reading, *numbers));
        plan.decide(now, self.options, statuses)
    }
}

impl_debug!(StoreTransaction |transaction| {
    limits: transaction.limits.iter().map(|limit| limit.name().as_str()).collect::<Vec<_>>(),
});
