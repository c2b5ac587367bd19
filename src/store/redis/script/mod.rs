//! The Lua script.

pub(crate) mod replay;
pub(crate) mod reply;
pub(crate) mod source;
