use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::policy::RoutePolicies;
use crate::error::Error;

/// A file with limits: see [the module](super).
pub struct RouteFile<F> {
    path: PathBuf,
    parse: F,
    /// What was read last.
    version: Option<Version>,
}

/// The time of the last change of a file, and its length.
type Version = (SystemTime, u64);

impl<F> RouteFile<F> {
    /// Names a file, and the function that parses its text: `|text| toml::from_str(text)`.
    pub fn new<E>(path: impl Into<PathBuf>, parse: F) -> Self
    where
        F: Fn(&str) -> Result<RoutePolicies, E>,
    {
        Self { path: path.into(), parse, version: None }
    }

    /// Reads the file.
    ///
    /// # Errors
    ///
    /// If the file cannot be read or has an error. The error names the file, and the line and the field as far as the
    /// parser reports them.
    pub fn read<E: fmt::Display>(&mut self) -> Result<RoutePolicies, Error>
    where
        F: Fn(&str) -> Result<RoutePolicies, E>,
    {
        // Before the text: a change in between is found later.
        self.version = version(&self.path).ok();
        let text = fs::read_to_string(&self.path).map_err(|error| self.error(&error).with_source(error))?;
        (self.parse)(&text).map_err(|error| self.error(&error))
    }

    fn error(&self, error: &dyn fmt::Display) -> Error {
        Error::config(format!("{}: {}", self.path.display(), error.to_string().trim_end()))
    }
}

fn version(path: &Path) -> io::Result<Version> {
    let file = fs::metadata(path)?;
    Ok((file.modified()?, file.len()))
}

impl_debug!([F] RouteFile<F> { path });

#[cfg(feature = "timer")]
mod watch {
    use std::fmt;
    use std::time::Duration;

    use super::{RouteFile, RoutePolicies, version};
    use crate::error::Error;
    use crate::routes::limits::{RouteLimits, RouteStore};

    /// What happened to a file that [`RouteLimits::watch`] watches. `Display` writes a line for a log.
    #[derive(Debug)]
    #[non_exhaustive]
    pub enum RouteFileEvent {
        /// The limits are now the limits of the file.
        Loaded,
        /// The file has an error. The earlier limits stay.
        Kept(Error),
        /// No request had these routes within a minute: perhaps their names are wrong.
        Unmatched(Vec<String>),
    }

    /// The time between two looks at the file.
    const INTERVAL: Duration = Duration::from_millis(500);

    /// After so many looks the routes without requests are reported: a minute.
    const UNMATCHED_AFTER: u32 = 120;

    impl<A, U, S: RouteStore> RouteLimits<A, U, S> {
        /// Replaces the limits whenever the file changes, for as long as the future is polled: spawn it.
        ///
        /// The future looks at the file twice a second. A minute after each change, and after the start, it reports the
        /// routes that the file names and no request had.
        pub async fn watch<F, E>(self, mut file: RouteFile<F>, mut report: impl FnMut(RouteFileEvent))
        where
            F: Fn(&str) -> Result<RoutePolicies, E>,
            E: fmt::Display,
        {
            let mut looks = 0;
            loop {
                tokio::time::sleep(INTERVAL).await;
                looks += 1;
                if looks == UNMATCHED_AFTER {
                    let routes = self.unmatched_routes();
                    if !routes.is_empty() {
                        report(RouteFileEvent::Unmatched(routes));
                    }
                }
                // Some editors delete a file before they write it.
                let Some(found) = version(&file.path).ok().filter(|found| Some(*found) != file.version) else {
                    continue;
                };
                let replaced = file.read().and_then(|policies| {
                    self.replace(&policies).map_err(|error| file.error(&error).with_source(error))
                });
                file.version.get_or_insert(found);
                looks = 0;
                report(replaced.map_or_else(RouteFileEvent::Kept, |()| RouteFileEvent::Loaded));
            }
        }
    }

    impl fmt::Display for RouteFileEvent {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            match self {
                Self::Loaded => f.write_str("loaded the limits"),
                Self::Kept(error) => write!(f, "kept the earlier limits: {error}"),
                Self::Unmatched(routes) => write!(
                    f,
                    "no request within a minute had the routes {routes:?}: perhaps their names are wrong; write them as in \
                     axum, with the prefixes of nested routers"
                ),
            }
        }
    }
}

#[cfg(feature = "timer")]
pub use self::watch::RouteFileEvent;
