//! A layer that reads request bodies while requests wait, so that the server notices clients that leave, and the bodies of
//! rejected requests, so that clients receive the response.

mod body;
mod bounds;
mod drain;
mod future;
mod layer;
#[cfg(all(test, loom))]
mod loom_tests;
mod reader;
mod servers;
mod service;
mod unread;

pub(crate) use self::bounds::Bounds;
pub(crate) use self::reader::BodyReader;
pub(crate) use self::servers::{StartReading, start_reading};
pub(crate) use self::unread::ReadEnd;

pub use self::body::ReadAheadBody;
pub use self::future::ReadAheadFuture;
pub use self::layer::ReadAheadLayer;
pub use self::service::ReadAhead;
