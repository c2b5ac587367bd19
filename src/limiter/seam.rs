use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::reply::{Acquire, Reply};
use crate::clock::Timestamp;
use crate::decision::{Ask, Decision};
use crate::error::Error;

/// Decides whether a key may have what is asked: the one thing that the middleware knows of stores and algorithms.
///
/// [`Memory`](crate::Memory) is one. Only [`acquire`](Self::acquire) must be written; what a limiter of your own does
/// not override answers with an error for which [`is_unsupported`](Error::is_unsupported) holds.
///
/// A decision that is ready at once costs no future and no allocation; one that has to ask elsewhere answers with a
/// future. That future must not borrow from the limiter or the key. Dropping it abandons the decision: whether it is
/// charged then is for the limiter to declare.
///
/// # Example
///
/// A limiter that refuses while the doors are closed.
///
/// ```
/// use std::future::{Ready, ready};
/// use std::sync::atomic::{AtomicBool, Ordering};
/// use std::time::Duration;
///
/// use tower_ratelimit::limiter::{Acquire, Limiter, Outcome};
/// use tower_ratelimit::{Ask, Clock, Decision, Error, SystemClock, Verdict};
///
/// struct Doors {
///     open: AtomicBool,
///     clock: SystemClock,
/// }
///
/// impl<Key: ?Sized> Limiter<Key> for Doors {
///     type Future = Ready<Result<Outcome, Error>>;
///
///     fn acquire(&self, _key: &Key, _ask: Ask) -> Acquire<Self::Future> {
///         let verdict = if self.open.load(Ordering::Relaxed) {
///             Verdict::Allowed
///         } else {
///             Verdict::Denied { retry_after: Duration::from_secs(60) }
///         };
///         Acquire::Ready(Ok(Decision::by_policy(self.clock.now(), verdict).into()))
///     }
/// }
///
/// let doors = Doors { open: AtomicBool::new(false), clock: SystemClock::new() };
/// let Acquire::Ready(outcome) = doors.acquire("anybody", Ask::default()) else { unreachable!() };
/// assert!(!outcome?.decision.is_allowed());
/// # Ok::<(), Error>(())
/// ```
pub trait Limiter<Key: ?Sized> {
    /// A decision on its way. A limiter that always answers at once names [`std::future::Ready`].
    type Future: Future<Output = Result<Outcome, Error>> + Send + 'static;

    /// Decides, and charges the key if the request is allowed. A refusal charges nothing.
    fn acquire(&self, key: &Key, ask: Ask) -> Acquire<Self::Future>;

    /// As [`acquire`](Self::acquire), for one who will never settle what is allowed at once: its receipt may be left out, which
    /// takes a while to write and to move about. What is allowed for a later turn has one.
    ///
    /// A limiter that is made of others and settles with them must ask them by `acquire`. The default is to do so.
    #[inline]
    fn acquire_without_receipt(&self, key: &Key, ask: Ask) -> Acquire<Self::Future> {
        self.acquire(key, ask)
    }

    /// What [`acquire`](Self::acquire) would answer, without charging.
    fn peek(&self, key: &Key, ask: Ask) -> Reply<Decision> {
        let _ = (key, ask);
        Reply::unsupported("this limiter can't peek")
    }

    /// Settles an earlier charge: gives back what it was over `actual`, as much of it as still counts, or charges
    /// what `actual` is over it, allowed or not.
    ///
    /// A receipt does not know of a later [`reset`](Self::reset) or [`set`](Self::set): what it gives back after one is taken
    /// off what was charged since.
    fn settle(&self, key: &Key, receipt: Receipt, actual: u64) -> Reply<()> {
        let _ = (key, receipt, actual);
        Reply::unsupported("this limiter can't settle or give back")
    }

    /// Gives back an earlier charge, as much of it as still counts.
    fn give_back(&self, key: &Key, receipt: Receipt) -> Reply<()> {
        self.settle(key, receipt, 0)
    }

    /// Makes the key one that has just used so much of the limit with this name (a limit without a name is `default`).
    fn set(&self, limit: &str, key: &Key, used: u64) -> Reply<()> {
        let _ = (limit, key, used);
        Reply::unsupported("this limiter can't set what a key has used")
    }

    /// Blocks the part of the key that the limit with this name counts by: whatever it has left, the limit refuses it for
    /// this time. A later call replaces an earlier one; zero lifts the block, and leaves what was used as it is.
    fn block(&self, limit: &str, key: &Key, span: Duration) -> Reply<()> {
        let _ = (limit, key, span);
        Reply::unsupported("this limiter can't block a key")
    }

    /// Lifts a block.
    fn forgive(&self, limit: &str, key: &Key) -> Reply<()> {
        self.block(limit, key, Duration::ZERO)
    }

    /// Forgets what the key has used: it is as good as new. A block stays.
    fn reset(&self, key: &Key) -> Reply<()> {
        let _ = key;
        Reply::unsupported("this limiter can't reset a key")
    }
}

impl<Key: ?Sized, L: Limiter<Key> + ?Sized> Limiter<Key> for Arc<L> {
    type Future = L::Future;

    fn acquire(&self, key: &Key, ask: Ask) -> Acquire<Self::Future> {
        (**self).acquire(key, ask)
    }

    fn acquire_without_receipt(&self, key: &Key, ask: Ask) -> Acquire<Self::Future> {
        (**self).acquire_without_receipt(key, ask)
    }

    fn peek(&self, key: &Key, ask: Ask) -> Reply<Decision> {
        (**self).peek(key, ask)
    }

    fn settle(&self, key: &Key, receipt: Receipt, actual: u64) -> Reply<()> {
        (**self).settle(key, receipt, actual)
    }

    fn give_back(&self, key: &Key, receipt: Receipt) -> Reply<()> {
        (**self).give_back(key, receipt)
    }

    fn set(&self, limit: &str, key: &Key, used: u64) -> Reply<()> {
        (**self).set(limit, key, used)
    }

    fn block(&self, limit: &str, key: &Key, span: Duration) -> Reply<()> {
        (**self).block(limit, key, span)
    }

    fn forgive(&self, limit: &str, key: &Key) -> Reply<()> {
        (**self).forgive(limit, key)
    }

    fn reset(&self, key: &Key) -> Reply<()> {
        (**self).reset(key)
    }
}

/// A decision, and the receipt for what was charged.
#[derive(Debug)]
#[allow(clippy::exhaustive_structs, reason = "a user's own limiter makes them")]
pub struct Outcome {
    /// What was decided.
    pub decision: Decision,
    /// With which the charge can be given back. `None` if nothing was charged.
    pub receipt: Option<Receipt>,
}

impl From<Decision> for Outcome {
    /// An outcome that charged nothing, or nothing that could be given back.
    fn from(decision: Decision) -> Self {
        Self { decision, receipt: None }
    }
}

/// Stands for one charge, to give it back or settle it once. It can't be copied, so that it can't be used twice.
///
/// Dropping it leaves the charge as it is.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "dropping a receipt leaves the charge as it is"]
pub struct Receipt {
    charged_at: Timestamp,
    turn: Timestamp,
    cost: u64,
    /// Which limits it is for, where they can be replaced.
    generation: u64,
    /// The limits that were not charged, a bit each: shadows that would have refused.
    uncharged: u64,
    /// Which way it went through limiters made of two, a bit each, below a leading one.
    way: u32,
    until: Untils,
}

/// Until when the charge counts, for each limit that was charged. Up to three need no allocation.
#[derive(Debug, PartialEq, Eq)]
enum Untils {
    Few([Timestamp; 3]),
    Many(Box<[Timestamp]>),
    Joint(Box<Joint>),
}

/// What two limiters charged for one decision.
#[derive(Debug, PartialEq, Eq)]
struct Joint {
    parts: [Option<Receipt>; 2],
    until: [Timestamp; 2],
}

impl Receipt {
    /// A receipt for a charge on `limits` limits, whose turn came at once.
    pub fn new(charged_at: Timestamp, cost: u64, limits: usize) -> Self {
        let until = if limits <= 3 {
            Untils::Few([charged_at; 3])
        } else {
            Untils::Many(vec![charged_at; limits].into_boxed_slice())
        };
        Self { charged_at, turn: charged_at, cost, generation: 0, uncharged: 0, way: 1, until }
    }

    /// One receipt for what two limiters charged, each for its part; `None` if neither can give back.
    pub(crate) fn joint(parts: [Option<Self>; 2]) -> Option<Self> {
        let charged = || parts.iter().flatten();
        let (cost, charged_at) = (charged().map(Self::cost).max()?, charged().map(Self::charged_at).max()?);
        let turn = charged().map(Self::turn).max()?;
        let until = [0, 1].map(|part: usize| parts[part].as_ref().and_then(|own| own.until().iter().max().copied()));
        let until = until.map(|until| until.unwrap_or(charged_at));
        let until = Untils::Joint(Box::new(Joint { parts, until }));
        Some(Self { charged_at, turn, cost, generation: 0, uncharged: 0, way: 1, until })
    }

    /// What a joint one is made of.
    pub(crate) fn into_parts(self) -> [Option<Self>; 2] {
        match self.until {
            Untils::Joint(joint) => joint.parts,
            // Somebody else's.
            Untils::Few(_) | Untils::Many(_) => [None, None],
        }
    }

    /// Notes that it was promised a later turn.
    pub fn with_turn(mut self, turn: Timestamp) -> Self {
        self.turn = turn;
        self
    }

    /// When its turn comes: when it was charged, or later.
    #[must_use]
    pub fn turn(&self) -> Timestamp {
        self.turn
    }

    /// When it was charged, by the store's clock.
    #[must_use]
    pub fn charged_at(&self) -> Timestamp {
        self.charged_at
    }

    /// What was charged.
    #[must_use]
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// Notes that a limit was not charged.
    pub(crate) fn skip(&mut self, limit: usize) {
        self.uncharged |= 1_u64.checked_shl(u32::try_from(limit).unwrap_or(u32::MAX)).unwrap_or(0);
    }

    /// Whether a limit was charged.
    pub(crate) fn is_for(&self, limit: usize) -> bool {
        self.uncharged & 1_u64.checked_shl(u32::try_from(limit).unwrap_or(u32::MAX)).unwrap_or(0) == 0
    }

    /// Notes that it comes from the second of two limiters, or the first.
    pub(crate) fn enter(&mut self, second: bool) {
        self.way = self.way << 1 | u32::from(second);
    }

    /// Whether it comes from the second of two limiters.
    pub(crate) fn leave(&mut self) -> bool {
        let second = self.way > 1 && self.way & 1 == 1;
        self.way = (self.way >> 1).max(1);
        second
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    pub(crate) fn set_generation(&mut self, generation: u64) {
        self.generation = generation;
    }

    /// Until when each limit counts it, in the order of the limits. Of [`TwoPhase`](super::TwoPhase): each limiter, by the
    /// limit that counts it longest.
    #[must_use]
    pub fn until(&self) -> &[Timestamp] {
        match &self.until {
            Untils::Few(few) => few,
            Untils::Many(many) => many,
            Untils::Joint(joint) => &joint.until,
        }
    }

    /// To note until when each limit counts it.
    pub fn until_mut(&mut self) -> &mut [Timestamp] {
        match &mut self.until {
            Untils::Few(few) => few,
            Untils::Many(many) => many,
            Untils::Joint(joint) => &mut joint.until,
        }
    }
}
