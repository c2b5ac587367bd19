use super::{Algorithm, State};
use crate::calendar::Calendar;
use crate::clock::Timestamp;
use crate::decision::{AcquireOptions, LazySnapshot};

/// An algorithm with a Lua implementation of the same transition, which Redis runs.
///
/// The Lua implementation is a chunk that returns a table, the *kernel*. The store calls the kernel's functions with
/// `s`, the numbers of the state; `now`, the server's time in microseconds; and `p`, the parameters of
/// [`params`](Self::params):
///
/// | | |
/// |---|---|
/// | `words` | the number of numbers in a state; all zeros is the state of a never-seen key, the first number is the time at which the key is idle |
/// | `params` | the number of parameters |
/// | `supports_scheduling` | whether the algorithm schedules later starts: see [`supports_scheduling`](Algorithm::supports_scheduling) |
/// | `peek(s, now, max_delay, p)` | returns 0: allowed; above 0: denied for that many microseconds; -1: exceeds the limit; below -1: allowed after a delay of `-1 - result`. `max_delay` is the longest delay that the caller accepts, -1 if the caller set none |
/// | `commit(s, now, delay, p)` | charges the cost of `p` to `s`, for a start after `delay` |
/// | `charge(s, now, cost, p)` | charges `cost` instead of the cost of `p`; required to [hold](crate::limiter::Held) costs |
/// | `held_until_end`, `room(held, p)` | required with `HELD_UNTIL_END`: true, and how much more can be held beside `held`. `peek` then finds the held costs in `s.held` (nil for none), and `commit` and `charge` do nothing |
/// | `owed_for(s, now, p)` | required with `supports_scheduling`: the time until the key is idle |
///
/// Without `charge`, holding a cost is an error for which [`is_unsupported`](crate::Error::is_unsupported) returns
/// true. With `charge`, the script decides about a key with held costs on a copy of the state to which the held costs
/// are charged.
///
/// Lua's numbers are exact integers up to 2^53. The laws of [`Algorithm`] apply. Rust computes the limit status of a
/// decision from the state that the script read, and replays the script's charges. So both implementations must agree
/// to the microsecond.
///
/// The script runs atomically inside the server, which does nothing else meanwhile. Keep the chunk short, and do not
/// call Redis commands in it.
///
/// # Example
///
/// The cool-down of the example of [`Algorithm`]:
///
/// ```
/// # use std::time::Duration;
/// use tower_ratelimit::algorithm::{LuaScript, LuaAlgorithm};
/// # use tower_ratelimit::algorithm::{Algorithm, ChargeOptions, Step};
/// # use tower_ratelimit::{LimitSnapshot, LazySnapshot, Timestamp};
/// # #[derive(Debug)]
/// # struct CoolDown(Duration);
/// # impl Algorithm for CoolDown {
/// #     type State = [u64; 1];
/// #     fn decide(&self, &[open_at]: &[u64; 1], now: Timestamp, options: ChargeOptions) -> Step<[u64; 1]> {
/// #         let wait = Timestamp::from_micros(open_at).saturating_since(now);
/// #         if !options.is_forced() && options.cost > 1 { Step::Exceeds }
/// #         else if !options.is_forced() && !wait.is_zero() && wait <= 2 * self.0 { Step::deny_for(wait) }
/// #         else {
/// #             let start = now.saturating_add(options.forced_delay());
/// #             Step::Allow { next: [start.saturating_add(self.0).as_micros()], delay: 0 }
/// #         }
/// #     }
/// #     fn snapshot(&self, &[open_at]: &[u64; 1], now: Timestamp) -> LazySnapshot {
/// #         let wait = Timestamp::from_micros(open_at).saturating_since(now);
/// #         let remaining = u64::from(wait.is_zero());
/// #         LimitSnapshot::new(1, self.0).with_remaining(remaining).with_reset(wait).with_next_token_after(wait).into()
/// #     }
/// #     fn max_reset(&self) -> Duration { self.0 }
/// # }
///
/// impl LuaAlgorithm for CoolDown {
///     const SCRIPT: LuaScript = LuaScript::new("cool_down1", "
///         local function peek(s, now, max_delay, p)
///           if p[2] > 1 then return -1 end
///           local wait = s[1] - now
///           if wait <= 0 or wait > 2 * p[1] then return 0 end
///           return wait
///         end
///         local function commit(s, now, delay, p) s[1] = now + delay + p[1] end
///         local function charge(s, now, cost, p) s[1] = now + p[1] end
///         return { words = 1, params = 2, supports_scheduling = false, peek = peek, commit = commit, charge = charge }
///     ");
///
///     fn params(&self, cost: u64, params: &mut Vec<u64>) {
///         params.extend([u64::try_from(self.0.as_micros()).unwrap_or(u64::MAX), cost]);
///     }
/// }
/// ```
pub trait LuaAlgorithm: Algorithm {
    /// The Lua implementation.
    const SCRIPT: LuaScript;

    /// Appends the parameters for a cost: as many as the kernel's `params`. Larger numbers than 2^53 count as 2^53.
    fn params(&self, cost: u64, params: &mut Vec<u64>);

    /// Converts the numbers in Redis into a state. By default they are the state's words.
    #[doc(hidden)]
    fn decode_state(&self, numbers: &[u64]) -> Self::State {
        Self::State::from_numbers(numbers)
    }

    /// Appends the numbers that represent a state in Redis.
    #[doc(hidden)]
    fn encode_state(&self, state: &Self::State, numbers: &mut Vec<u64>) {
        state.to_numbers(numbers);
    }

    /// Returns the script's run time for one decision, as a multiple of a bucket's run time.
    ///
    /// Redis does nothing else while the script runs. So the sum of the weights in one call is at most 128, about
    /// half a millisecond, unless the call has a single decision. The weight of a decision is the sum over its
    /// limits.
    fn weight(&self) -> u16 {
        1
    }

    /// Returns whether the fast path of the script applies to these options.
    #[doc(hidden)]
    fn uses_fast_path(&self, options: AcquireOptions) -> bool {
        let _ = options;
        false
    }

    /// Returns the calendar whose instants replace the last parameters when they are sent. Until then its
    /// [id](Calendar::id) is in their place.
    #[doc(hidden)]
    fn calendar(&self) -> Option<Calendar> {
        None
    }

    /// Computes the snapshot from the three numbers of the kernel's `view`, for states with a header.
    #[doc(hidden)]
    fn snapshot_from_view(&self, view: [u64; 3], now: Timestamp) -> LazySnapshot {
        let _ = (view, now);
        LazySnapshot::EMPTY
    }
}

/// The Lua implementation of an algorithm: a name and a source text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LuaScript {
    name: &'static str,
    encoding: StateEncoding,
    source: &'static str,
    fast_path: Option<&'static str>,
    fast_path_of_several: Option<&'static str>,
}

/// The layout of a state in Redis, and the part of it that a reply contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateEncoding {
    /// A reply contains all numbers of the state.
    Full,
    /// A header and a tail, of which a decision reads parts. A reply contains three numbers for each decision.
    Header,
}

impl LuaScript {
    /// Creates an implementation.
    ///
    /// The name is part of every key in Redis. It should contain the version of the state's layout.
    pub const fn new(name: &'static str, source: &'static str) -> Self {
        Self { name, encoding: StateEncoding::Full, source, fast_path: None, fast_path_of_several: None }
    }

    /// Declares that states have a header.
    pub(super) const fn with_header(mut self) -> Self {
        self.encoding = StateEncoding::Header;
        self
    }

    /// Adds a chunk that decides the most common cases before the general script runs.
    pub(super) const fn with_fast_path(mut self, source: &'static str) -> Self {
        self.fast_path = Some(source);
        self
    }

    /// Adds such a chunk for a limiter with several limits of this implementation.
    pub(super) const fn with_fast_path_of_several(mut self, source: &'static str) -> Self {
        self.fast_path_of_several = Some(source);
        self
    }

    /// Returns the chunk for a limiter with so many limits of this implementation.
    pub(crate) const fn fast_path(&self, limits: usize) -> Option<&'static str> {
        if limits == 1 { self.fast_path } else { self.fast_path_of_several }
    }

    /// Returns the name that is part of each key.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the Lua source text.
    pub const fn source(&self) -> &'static str {
        self.source
    }

    pub(crate) const fn state_encoding(&self) -> StateEncoding {
        self.encoding
    }
}
