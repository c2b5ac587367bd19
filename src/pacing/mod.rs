//! Bytes per second: bodies that wait for a limiter, chunk by chunk.
//!
//! [`PacingLayer`] limits downloads (the bodies of responses) or uploads (the bodies of requests) in bytes per second, for
//! all streams of a key together: one byte costs one unit of the limiter. The layer delays the bytes, and never drops,
//! reorders or changes them. With [`Redis`](crate::store) the processes share the rate.
//!
//! Use limits that charge the plain cost. A limit with [`cost_of`](crate::Limit::cost_of) charges nothing here, one with
//! [`fixed_cost`](crate::Limit::fixed_cost) counts chunks, and [`InFlight`](crate::InFlight) cannot be used.
//!
//! ```
//! use axum::{Router, routing::get};
//! use tower_ratelimit::pacing::PacingLayer;
//! use tower_ratelimit::{Memory, PeerIp, Quota, TokenBucket};
//!
//! // A megabyte a second for each address, over all of its downloads, with bursts of 200 kB.
//! let rate = TokenBucket::new(Quota::per_second(1_000_000)).burst(200_000);
//! let app: Router = Router::new()
//!     .route("/", get(async || vec![0_u8; 5_000_000]))
//!     .layer(PacingLayer::downloads(PeerIp::new(), Memory::new(rate)));
//! ```
//!
//! # Chunks
//!
//! A frame that is larger than a chunk is split, without a copy. A chunk is 20 ms of the rate, at least 1 KiB and at most
//! 64 KiB, and never more than half of the burst. Choose a burst of 50 ms of the rate or more, so that a late wake-up costs
//! no bytes.
//!
//! # Waiting
//!
//! A chunk waits as [`until_ready`](crate::waiting::until_ready) does: the streams of a key take turns, one chunk each, and a
//! stream that is dropped gives its place on. While a chunk waits, the layer does not poll the body, so flow control slows
//! the sender. A stream without data makes no decision.
//!
//! In any time of `T` seconds at most `burst + rate * T` bytes leave the layer, over all streams of the key.
//!
//! # Errors
//!
//! A body ends with an error if its limiter fails (unless it is a [`FailOpen`](crate::limiter::FailOpen) or a
//! [`Fallback`](crate::limiter::Fallback)), if a chunk would wait for longer than
//! [`max_wait`](PacingLayer::max_wait), or if the request has no key. The text of the error is for clients; its source is the
//! [`Error`](crate::Error) with the cause, which observers receive too. An error of the inner body passes unchanged. In HTTP/1 the server then closes the connection, in
//! HTTP/2 it resets the stream. To reject such requests before the body begins, put a
//! [`RateLimitLayer`](crate::RateLimitLayer) with the same extractor around this layer. The body of an exempt request passes
//! unchanged.
//!
//! # Uploads
//!
//! A paced upload occupies its handler for longer: set timeouts accordingly, and bound the streams of a key by
//! [`InFlight`](crate::InFlight). In HTTP/2 unread bytes also fill the window of the whole connection. Behind a proxy that
//! shares its connections, set the connection's window to the stream's window times the number of paced streams.

mod body;
mod layer;

pub use self::body::PacedBody;
pub use self::layer::{Downloads, Pacing, PacingFuture, PacingLayer, Uploads};
