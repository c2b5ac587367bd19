use std::fmt;
use std::hash::{BuildHasher, Hash};

use super::hasher::DefaultHashBuilder;
use super::row::{Room, Row, Share};
use crate::error::Error;
use crate::limit::{Choose, IntoLimit, Limit, PartOf};

/// A limit of any kind, for those who choose limits at run time: collect them in a `Vec`.
///
/// ```
/// use tower_ratelimit::{Ask, DynLimit, FixedWindow, Gcra, Limit, Memory, Quota};
///
/// let mut limits: Vec<DynLimit<str>> = vec![DynLimit::new(Limit::new("smooth", Gcra::new(Quota::per_second(10))))];
/// if std::env::args().count() > 5 {
///     limits.push(DynLimit::new(Limit::new("daily", FixedWindow::new(Quota::per_day(10_000)))));
/// }
/// let limiter = Memory::new(limits);
/// assert!(limiter.decide("alice", Ask::default()).is_allowed());
/// ```
pub struct DynLimit<Key: ?Sized, S = DefaultHashBuilder>(Box<dyn Bind<Key, S>>);

impl<Key: ?Sized, S: BuildHasher> DynLimit<Key, S> {
    /// Boxes a limit.
    pub fn new<L>(limit: L) -> Self
    where
        L: IntoLimit,
        L::Chooser: Choose<Key> + Send + Sync + 'static,
        L::Part: PartOf<Key> + Send + Sync + 'static,
        <L::Part as PartOf<Key>>::Part: Hash,
    {
        Self(Box::new(limit.into_limit()))
    }

    pub(super) fn name(&self) -> &str {
        self.0.name()
    }

    pub(super) fn bind(self, room: Room) -> Result<Box<dyn Share<Key, S>>, Error> {
        self.0.bind(room)
    }
}

impl<Key: ?Sized, S> fmt::Debug for DynLimit<Key, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynLimit").finish_non_exhaustive()
    }
}

trait Bind<Key: ?Sized, S>: Send + Sync {
    fn name(&self) -> &str;
    fn bind(self: Box<Self>, room: Room) -> Result<Box<dyn Share<Key, S>>, Error>;
}

impl<Key, S, C, P> Bind<Key, S> for Limit<C, P>
where
    Key: ?Sized,
    C: Choose<Key> + Send + Sync + 'static,
    P: PartOf<Key> + Send + Sync + 'static,
    P::Part: Hash,
    S: BuildHasher,
{
    fn name(&self) -> &str {
        self.name()
    }

    fn bind(self: Box<Self>, room: Room) -> Result<Box<dyn Share<Key, S>>, Error> {
        Ok(Box::new(Row::new(*self, room)?))
    }
}
