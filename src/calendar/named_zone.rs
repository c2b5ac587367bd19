//! The time zones of the IANA database.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;
use jiff::tz::{TimeZone, TimeZoneDatabase};

/// A time zone that the bundled database contains.
#[derive(Clone, Copy)]
pub(super) struct NamedZone(&'static Entry);

struct Entry {
    name: String,
    /// Counts the zones.
    number: u64,
    zone: TimeZone,
}

/// The zones that were looked up. They live as long as the process, so that a calendar can be copied. The database has
/// some six hundred.
static ZONES: Mutex<BTreeMap<String, &'static Entry>> = Mutex::new(BTreeMap::new());

/// No offset from UTC is larger: 26 hours.
const MAX_OFFSET: i64 = 26 * 3_600_000_000;

impl NamedZone {
    /// Returns the zone with this name, in any case of letters. `None` if the database has no such zone.
    pub(super) fn find(name: &str) -> Option<Self> {
        let zone = TimeZoneDatabase::bundled().get(name).ok()?;
        let name = zone.iana_name().unwrap_or(name).to_owned();
        let mut zones = ZONES.lock().unwrap_or_else(PoisonError::into_inner);
        let number = zones.len() as u64;
        let entry = zones.entry(name.clone()).or_insert_with(|| Box::leak(Box::new(Entry { name, number, zone })));
        Some(Self(entry))
    }

    pub(super) const fn number(self) -> u64 {
        self.0.number
    }

    pub(super) fn name(self) -> &'static str {
        &self.0.name
    }

    /// Returns by how many microseconds local time is ahead of UTC.
    pub(super) fn offset_at(self, at: i64) -> i64 {
        i64::from(self.0.zone.to_offset(timestamp(at)).seconds()) * 1_000_000
    }

    /// Returns the first instant at which local time is `local` or later.
    pub(super) fn first_instant(self, local: i64) -> i64 {
        let mut from = local.saturating_sub(MAX_OFFSET);
        let mut offset = self.offset_at(from);
        // The offset is constant from one transition to the next one.
        for transition in self.0.zone.following(timestamp(from)) {
            let until = transition.timestamp().as_microsecond();
            if local - offset < until {
                break;
            }
            (from, offset) = (until, i64::from(transition.offset().seconds()) * 1_000_000);
        }
        from.max(local - offset)
    }
}

fn timestamp(at: i64) -> Timestamp {
    Timestamp::from_microsecond(at).unwrap_or(if at < 0 { Timestamp::MIN } else { Timestamp::MAX })
}

impl PartialEq for NamedZone {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for NamedZone {}

impl Hash for NamedZone {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name().hash(state);
    }
}
