use std::time::Duration;

use crate::decision::AcquireOptions;

/// The cost that a limit charges for a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LimitCost {
    /// The cost of the request.
    #[default]
    OfRequest,
    /// This cost for every request.
    Fixed(u64),
}

impl LimitCost {
    /// Returns the options of a decision for this limit.
    ///
    /// A fixed cost is known at admission, so it is charged where a cost of the request is held. No start is scheduled
    /// then, because a hold starts now.
    #[inline]
    pub(crate) fn options(self, options: AcquireOptions) -> AcquireOptions {
        match self {
            Self::OfRequest => options,
            Self::Fixed(cost) if options.hold && !options.is_provisional => {
                AcquireOptions { cost, hold: false, ..options }.max_delay(Duration::ZERO)
            }
            Self::Fixed(cost) => AcquireOptions { cost, ..options },
        }
    }

    pub(crate) fn is_fixed(self) -> bool {
        matches!(self, Self::Fixed(_))
    }
}
