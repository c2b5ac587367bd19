//! The rules of a queue, each of which tests can switch off.

/// A rule of a queue. The law that fails without it is named in `tests/middleware/queue_rules.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// A start may lie a horizon ahead.
    Horizon,
    /// A queue asks only if no other queue of the request's limits has an earlier request.
    EarlierElsewhere,
    /// After a denial one ask is under way.
    FewerAfterDenial,
    /// Processes ask a random time later than the forecast.
    RandomDelay,
    /// Among several keys, the queue asks for a request that probably stays.
    Leavers,
    /// A request that cannot be served in time is refused at once.
    RefuseByPosition,
    /// The forecast of a wait is corrected by the waits of the requests before.
    OwnRate,
}

impl Rule {
    /// Whether the rule is on. With the feature `test-util`, `QUEUE_RULE_OFF` in the environment names a rule to switch off.
    #[inline]
    pub(super) fn is_on(self) -> bool {
        #[cfg(feature = "test-util")]
        {
            use std::sync::OnceLock;
            static OFF: OnceLock<Option<String>> = OnceLock::new();
            let off = OFF.get_or_init(|| std::env::var("QUEUE_RULE_OFF").ok());
            off.as_ref().is_none_or(|off| *off != format!("{self:?}"))
        }
        #[cfg(not(feature = "test-util"))]
        {
            let _ = self;
            true
        }
    }
}
