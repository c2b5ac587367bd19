//! A cluster: which node holds which slot, and connections that find their way.

mod connection;
mod map;
mod source;

pub(super) use self::source::Cluster;
