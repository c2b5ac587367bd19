//! The largest cost that is admitted in an interval.

use tower_ratelimit::Timestamp;

/// The starts of admitted requests.
pub(super) struct Admissions(Vec<Admission>);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Admission {
    key: usize,
    start: Timestamp,
    cost: u64,
}

impl Admissions {
    pub(super) fn with_capacity(capacity: usize) -> Self {
        Self(Vec::with_capacity(capacity))
    }

    pub(super) fn add(&mut self, key: usize, start: Timestamp, cost: u64) {
        self.0.push(Admission { key, start, cost });
    }

    /// Returns, for each length in microseconds, the largest cost of one key in any half-open interval of this length.
    pub(super) fn into_largest<const N: usize>(mut self, lengths: [u64; N]) -> [u64; N] {
        self.0.sort_unstable();
        lengths.map(|length| self.0.chunk_by(|a, b| a.key == b.key).map(|key| largest(key, length)).max().unwrap_or(0))
    }
}

/// Returns the largest cost in an interval, of admissions in the order of their starts.
fn largest(admissions: &[Admission], length: u64) -> u64 {
    let (mut sum, mut largest, mut oldest) = (0_u64, 0, admissions.iter());
    for newest in admissions {
        sum = sum.saturating_add(newest.cost);
        while let Some(first) = oldest.as_slice().first() {
            if newest.start.as_micros() - first.start.as_micros() < length {
                break;
            }
            sum = sum.saturating_sub(first.cost);
            oldest.next();
        }
        largest = largest.max(sum);
    }
    largest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_is_half_open_and_belongs_to_one_key() {
        let mut admissions = Admissions::with_capacity(8);
        for (key, start, cost) in [(0, 10, 1), (0, 0, 2), (0, 9, 4), (1, 5, 5), (0, 19, 1)] {
            admissions.add(key, Timestamp::from_micros(start), cost);
        }
        assert_eq!(admissions.into_largest([1, 10, 11]), [5, 6, 7]);
    }

    #[test]
    fn nothing_admitted_is_a_burst_of_zero() {
        assert_eq!(Admissions::with_capacity(0).into_largest([1]), [0]);
    }
}
