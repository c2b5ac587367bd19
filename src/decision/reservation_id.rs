use std::fmt;
use std::num::NonZeroU64;
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::error::Error;

/// The id of a hold that other processes can settle, see [`AcquireOptions::id`](super::AcquireOptions::id), or of a request
/// that is charged [once](super::AcquireOptions::once).
///
/// The value is the first 128 bits of the SHA-256 of the text, so an id has any length, and no store learns the text.
///
/// ```
/// use tower_ratelimit::ReservationId;
///
/// assert_eq!(ReservationId::from("req-7f3a"), ReservationId::new(b"req-7f3a"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReservationId([NonZeroU64; 2]);

impl ReservationId {
    /// In place of the hash of an empty text.
    const EMPTY: Self = Self([NonZeroU64::MIN; 2]);

    /// Creates an id from text or bytes. A limiter returns an error for an empty id.
    pub fn new(id: impl AsRef<[u8]>) -> Self {
        let id = id.as_ref();
        if id.is_empty() {
            return Self::EMPTY;
        }
        Self::from_hash(&Sha256::digest(id))
    }

    /// Creates the id of a request from its parts.
    pub(crate) fn of_parts(parts: [&[u8]; 3]) -> Self {
        let hash = parts
            .into_iter()
            .fold(Sha256::new(), |hash, part| hash.chain_update((part.len() as u64).to_le_bytes()).chain_update(part));
        Self::from_hash(&hash.finalize())
    }

    fn from_hash(hash: &[u8]) -> Self {
        let word = |at: usize| {
            let bytes: [u8; 8] = std::array::from_fn(|byte| hash[at + byte]);
            NonZeroU64::new(u64::from_be_bytes(bytes)).unwrap_or(NonZeroU64::MAX)
        };
        Self([word(0), word(8)])
    }

    #[cfg(feature = "redis")]
    pub(crate) fn to_bytes(self) -> [u8; 16] {
        let [high, low] = self.0.map(|word| word.get().to_be_bytes());
        std::array::from_fn(|byte| if byte < 8 { high[byte] } else { low[byte - 8] })
    }

    /// Returns an error if the id was made from an empty text.
    pub(crate) fn check(self) -> Result<(), Error> {
        if self == Self::EMPTY {
            return Err(Error::config(
                "invalid reservation id: it is empty; use a text that is unique for the request",
            ));
        }
        Ok(())
    }
}

impl<T: AsRef<[u8]> + ?Sized> From<&T> for ReservationId {
    fn from(id: &T) -> Self {
        Self::new(id)
    }
}

impl fmt::Debug for ReservationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [high, low] = self.0;
        write!(f, "ReservationId({high:016x}{low:016x})")
    }
}

/// The id of an acquire call, and what the store remembers of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallId {
    pub(crate) id: ReservationId,
    /// Until a hold expires, or for how long a charged request is remembered. Options are copied for each limit: see
    /// [`UnitCosts`](super::UnitCosts).
    millis: u32,
    /// How many repeats of a charged request pass without a charge, or how many repeats of a hold are allowed.
    pub(crate) repeats: u16,
    is_hold: bool,
}

impl CallId {
    /// Ten minutes, in milliseconds.
    pub(crate) const DEFAULT_EXPIRY: u32 = 10 * 60 * 1_000;
    pub(crate) const MIN: Duration = Duration::from_millis(1);
    pub(crate) const MAX: Duration = Duration::from_secs(24 * 60 * 60);
    /// The default maximum number of remembered ids of a key.
    pub(crate) const DEFAULT_MAX_IDS: usize = 10_000;
    /// The maximum of that maximum.
    pub(crate) const MAX_IDS: usize = 1_000_000;

    pub(crate) fn hold(id: ReservationId) -> Self {
        Self { id, millis: Self::DEFAULT_EXPIRY, repeats: 0, is_hold: true }
    }

    pub(crate) fn request(id: ReservationId, repeats: u16, remember: Duration) -> Self {
        Self { id, millis: Self::millis_of(remember), repeats, is_hold: false }
    }

    pub(crate) fn millis_of(time: Duration) -> u32 {
        u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
    }

    pub(crate) const fn lasting(self, millis: u32) -> Self {
        Self { millis, ..self }
    }

    pub(crate) const fn repeating(self, repeats: u16) -> Self {
        Self { repeats, ..self }
    }

    pub(crate) const fn is_hold(self) -> bool {
        self.is_hold
    }

    /// Until a hold expires, or for how long a charged request is remembered.
    pub(crate) fn micros(self) -> u64 {
        u64::from(self.millis) * 1_000
    }

    /// Returns an error if the id is empty, or the time out of range.
    pub(crate) fn check(self) -> Result<(), Error> {
        self.id.check()?;
        let time = Duration::from_micros(self.micros());
        if time < Self::MIN || time > Self::MAX {
            let name = if self.is_hold() { "`expires_in`" } else { "time for which an id is remembered" };
            return Err(Error::config(format!(
                "invalid {name}: it is {time:?}; use at least 1 ms and at most 24 hours"
            )));
        }
        Ok(())
    }

    /// Checks the setting `max_reservation_ids`.
    pub(crate) fn check_max_ids(max: usize) -> Result<(), Error> {
        if max == 0 || max > Self::MAX_IDS {
            return Err(Error::config(format!(
                "invalid `max_reservation_ids`: it is {max}; use at least 1 and at most {}",
                Self::MAX_IDS
            )));
        }
        Ok(())
    }
}
