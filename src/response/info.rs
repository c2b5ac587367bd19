use crate::decision::Decision;

/// How the rate limiter treated a request, in the extensions of the request or of the response.
///
/// A responder with [`request_extension`](super::Headers::request_extension) inserts the value into requests, for handlers.
/// With axum, a handler then has it as an argument, `RateLimitInfo` or `Option<RateLimitInfo>`.
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
    #[must_use]
    pub fn decision(&self) -> Option<&Decision> {
        match self {
            Self::Decided(decision) => Some(decision),
            Self::Exempt => None,
        }
    }

    /// Returns whether a limit that is not a shadow is [near](crate::LimitStatus::is_near_limit) after the decision.
    ///
    /// `false` if the request is exempt, or if no limit has a [mark](crate::Limit::warn_at).
    #[must_use]
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

#[cfg(feature = "axum")]
mod in_axum {
    use std::convert::Infallible;
    use std::error::Error;
    use std::fmt;

    use axum::extract::{FromRequestParts, OptionalFromRequestParts};
    use axum::response::{IntoResponse, Response};
    use http::StatusCode;
    use http::request::Parts;

    use super::RateLimitInfo;
    use crate::observe::Observers;

    /// The rejection of a handler with an argument [`RateLimitInfo`] if no layer has inserted it: status 500.
    ///
    /// The client receives no reason. In debug builds the reason is printed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct MissingRateLimitInfo;

    impl fmt::Display for MissingRateLimitInfo {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(
                "no RateLimitInfo in the request: no RateLimitLayer with a responder that inserts it is around the handler; \
                 add `.responder(Http::new().headers(Headers::new().request_extension(true)))` to the layer, or use \
                 `Option<RateLimitInfo>`",
            )
        }
    }

    impl Error for MissingRateLimitInfo {}

    impl IntoResponse for MissingRateLimitInfo {
        fn into_response(self) -> Response {
            (StatusCode::INTERNAL_SERVER_ERROR, "server misconfigured").into_response()
        }
    }

    impl<S: Sync> FromRequestParts<S> for RateLimitInfo {
        type Rejection = MissingRateLimitInfo;

        async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, MissingRateLimitInfo> {
            parts.extensions.get::<Self>().cloned().ok_or_else(|| {
                Observers::default().warn(&MissingRateLimitInfo.to_string());
                MissingRateLimitInfo
            })
        }
    }

    impl<S: Sync> OptionalFromRequestParts<S> for RateLimitInfo {
        type Rejection = Infallible;

        async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Infallible> {
            Ok(parts.extensions.get::<Self>().cloned())
        }
    }
}

#[cfg(feature = "axum")]
pub use self::in_axum::MissingRateLimitInfo;
