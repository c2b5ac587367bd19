use super::{Algorithm, State};
use crate::clock::Timestamp;
use crate::decision::{AcquireOptions, LazySnapshot};

/// An algorithm with a twin in Lua, which decides the same inside Redis.
///
/// The twin is a chunk of Lua that returns a table, its *kernel*. The store calls its functions with `s`, the state's
/// numbers; `now`, the server's time in microseconds; and `p`, what [`params`](Self::params) lists:
///
/// | | |
/// |---|---|
/// | `words` | how many numbers a state has; zeros are a key never seen, the first is when it is as good as that |
/// | `params` | how many parameters there are |
/// | `promises` | whether later turns can be promised, as [`supports_scheduling`](Algorithm::supports_scheduling) |
/// | `peek(s, now, patience, p)` | 0: allowed; above 0: refused for so many microseconds; -1: never; below -1: allowed after `-1 -` it. `patience` is the longest acceptable delay, -1 where the algorithm decides |
/// | `commit(s, now, delay, p)` | charges: changes `s` |
/// | `charge(s, now, cost, p)` | charges a cost, whatever cost `p` is for: needed to [hold](crate::limiter::Held) costs |
/// | `owed(s, now, p)` | with `promises`: how long what is owed lasts |
///
/// Without `charge` the algorithm decides, and cannot hold: to hold a cost is an error for which
/// [`is_unsupported`](crate::Error::is_unsupported) holds. With it, a decision on a key that costs are held on is made on a copy
/// of the state in which they are charged.
///
/// The numbers are Lua's: exact integers up to 2^53. The same laws hold as for [`Algorithm`]; the figures of a decision
/// are worked out in Rust from the numbers that the twin read, so both must do the same, to the microsecond. The text is
/// part of a script that runs inside the server, atomically: it should be short, and call nothing there itself.
///
/// # Example
///
/// The cool-down of [`Algorithm`]'s example:
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
/// #         let wait = Timestamp::from_micros(open_at).since(now);
/// #         if !options.is_forced() && options.cost > 1 { Step::Exceeds }
/// #         else if !options.is_forced() && !wait.is_zero() && wait <= self.0 { Step::deny_for(wait) }
/// #         else { Step::Allow { next: [now.after(options.forced_delay()).after(self.0).as_micros()], delay: 0 } }
/// #     }
/// #     fn snapshot(&self, &[open_at]: &[u64; 1], now: Timestamp) -> LazySnapshot {
/// #         let wait = Timestamp::from_micros(open_at).since(now);
/// #         let remaining = u64::from(wait.is_zero());
/// #         LimitSnapshot { limit: 1, window: self.0, remaining, reset: wait, next_token_after: wait }.into()
/// #     }
/// #     fn max_reset(&self) -> Duration { self.0 }
/// # }
///
/// impl LuaAlgorithm for CoolDown {
///     const SCRIPT: LuaScript = LuaScript::new("cool_down1", "
///         local function peek(s, now, patience, p)
///           if p[2] > 1 then return -1 end
///           local wait = s[1] - now
///           if wait <= 0 or wait > p[1] then return 0 end
///           return wait
///         end
///         local function commit(s, now, delay, p) s[1] = now + delay + p[1] end
///         local function charge(s, now, cost, p) s[1] = now + p[1] end
///         return { words = 1, params = 2, promises = false, peek = peek, commit = commit, charge = charge }
///     ");
///
///     fn params(&self, cost: u64, params: &mut Vec<u64>) {
///         params.extend([u64::try_from(self.0.as_micros()).unwrap_or(u64::MAX), cost]);
///     }
/// }
/// ```
pub trait LuaAlgorithm: Algorithm {
    /// The twin.
    const SCRIPT: LuaScript;

    /// The parameters for a cost: as many as the kernel's `params` says. Numbers above 2^53 are taken for that.
    fn params(&self, cost: u64, params: &mut Vec<u64>);

    /// The state that such numbers in Redis stand for. Unless said otherwise, they are its words.
    fn decode_state(&self, numbers: &[u64]) -> Self::State {
        Self::State::from_numbers(numbers)
    }

    /// The numbers in Redis that stand for a state.
    fn encode_state(&self, state: &Self::State, numbers: &mut Vec<u64>) {
        state.to_numbers(numbers);
    }

    /// How long the script works on one decision, compared with one of a bucket: 1, unless the implementation says more.
    ///
    /// Redis does nothing else while the script runs. The weights of the decisions that travel in one call add up to at most
    /// 128, which is about half a millisecond, or the call has one decision. Several limits of one decision add up, too.
    fn weight(&self) -> u16 {
        1
    }

    /// Whether the kernel's short cut takes an ask like this.
    #[doc(hidden)]
    fn uses_fast_path(&self, ask: AcquireOptions) -> bool {
        let _ = ask;
        false
    }

    /// The figures, where they are not made from the whole state: see [`LuaScript`].
    #[doc(hidden)]
    fn snapshot_from_view(&self, view: [u64; 3], now: Timestamp) -> LazySnapshot {
        let _ = (view, now);
        LazySnapshot::BLANK
    }
}

/// The Lua twin of an algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LuaScript {
    name: &'static str,
    layout: StateEncoding,
    source: &'static str,
    short: Option<&'static str>,
}

/// How a state lies in Redis, and what a reply brings of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateEncoding {
    /// Numbers, of which a reply brings all.
    Full,
    /// A head and a tail, of which a decision reads parts; a reply brings three numbers with each decision.
    Header,
}

impl LuaScript {
    /// The name is part of every key: it should tell the kernel and the version of its states' layout.
    #[must_use]
    pub const fn new(name: &'static str, source: &'static str) -> Self {
        Self { name, layout: StateEncoding::Full, source, short: None }
    }

    /// Of states with a head.
    pub(super) const fn with_header(mut self) -> Self {
        self.layout = StateEncoding::Header;
        self
    }

    /// Adds a short cut for the commonest decisions.
    pub(super) const fn with_fast_path(mut self, short: &'static str) -> Self {
        self.short = Some(short);
        self
    }

    pub(crate) const fn fast_path(&self) -> Option<&'static str> {
        self.short
    }

    /// Its name in keys.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Its text in Lua.
    #[must_use]
    pub const fn source(&self) -> &'static str {
        self.source
    }

    pub(crate) const fn layout(&self) -> StateEncoding {
        self.layout
    }
}
