use crate::decision::Decision;

/// How the rate limiter treated a request, in the extensions of the request or of the response.
///
/// A responder with [`request_extension`](super::Headers::request_extension) inserts the value into requests, for handlers.
/// With axum, a handler then has it as an argument, `Extension<RateLimitInfo>` or `Option<Extension<RateLimitInfo>>`.
/// With [`response_extension`](super::Headers::response_extension) it inserts the value into responses, for outer layers
/// such as an access log. Both are off by default. If several layers limit a request, the request carries the value of the innermost layer. The response
/// carries the strictest one.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::exhaustive_enums, reason = "a limit applies to a request, or none does")]
pub enum RateLimitInfo {
    /// A limiter decided.
    Decided(Decision),
    /// No limit applies to the request.
    Exempt,
}

impl RateLimitInfo {
    pub(super) fn new(decision: Option<&Decision>) -> Self {
        decision.map_or(Self::Exempt, |decision| Self::Decided(decision.clone()))
    }

    /// Returns the decision, unless the request is exempt.
    pub fn decision(&self) -> Option<&Decision> {
        match self {
            Self::Decided(decision) => Some(decision),
            Self::Exempt => None,
        }
    }

    /// Returns whether a limit that is not a shadow is [near](crate::LimitStatus::is_near_limit) after the decision.
    ///
    /// `false` if the request is exempt, or if no limit has a [mark](crate::Limit::warn_at).
    pub fn is_near_limit(&self) -> bool {
        self.decision().is_some_and(Decision::is_near_limit)
    }

    /// Whether this value is stricter: a denial is stricter than an allowed request, and less remaining than more.
    pub(super) fn is_stricter_than(&self, other: &Self) -> bool {
        let rank = |info: &Self| {
            info.decision()
                .map(|decision| (!decision.is_allowed(), std::cmp::Reverse(decision.remaining().unwrap_or(u64::MAX))))
        };
        rank(self) > rank(other)
    }
}
