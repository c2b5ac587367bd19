use crate::decision::Decision;

/// On what grounds a request was let through, or refused.
///
/// [`Http`](super::Http) puts it into the extensions of requests, for handlers, and of responses, for outer layers. Where
/// limiters are stacked, the request carries the innermost one's, and the response the strictest.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::exhaustive_enums, reason = "a request is under a limit or it is not")]
pub enum RateLimitInfo {
    /// A limiter decided.
    Decided(Decision),
    /// The request is under no limit.
    Exempt,
}

impl RateLimitInfo {
    /// The decision, if there was one to make.
    #[must_use]
    pub fn decision(&self) -> Option<&Decision> {
        match self {
            Self::Decided(decision) => Some(decision),
            Self::Exempt => None,
        }
    }

    /// Whether this says more to a client than `other`: a refusal more than a permission, less remaining more than more.
    pub(crate) fn is_stricter_than(&self, other: &Self) -> bool {
        let rank = |admission: &Self| {
            admission
                .decision()
                .map(|decision| (!decision.is_allowed(), std::cmp::Reverse(decision.remaining().unwrap_or(u64::MAX))))
        };
        rank(self) > rank(other)
    }
}
