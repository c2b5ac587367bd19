//! Limits for a store of your own: decisions as a function of stored bytes.

mod bound;
mod layout;
mod limits;
mod transaction;

pub use self::limits::{IntoStoreLimits, StoreLimit, StoreLimits};
pub use self::transaction::{StoreTransaction, StoreWrite};
