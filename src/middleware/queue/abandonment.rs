//! How long requests wait before their clients give up.

use std::time::Duration;

/// A moving average of the ages at which waiting requests leave.
///
/// A start for one of several keys is lost if its request leaves. Clients that give up have waited longest, so they are
/// next in the order of service: under overload, each start for the head of the queue would be lost.
#[derive(Debug, Default)]
pub(super) struct AbandonmentAge {
    age: Option<Duration>,
}

impl AbandonmentAge {
    /// Records that a request of this age has left.
    pub(super) fn left(&mut self, age: Duration) {
        self.age = Some(self.age.map_or(age, |average| (average * 7 + age) / 8));
    }

    /// Returns how much longer a request of this age probably waits, or `None` if it probably stays to the end.
    ///
    /// A request that is older than those that left does not follow them.
    pub(super) fn rest_at(&self, age: Duration) -> Option<Duration> {
        let average = self.age?;
        let margin = average / 16;
        (age <= average + margin).then(|| average.saturating_sub(margin).saturating_sub(age))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rest_is_unknown_before_the_first_request_leaves() {
        assert_eq!(AbandonmentAge::default().rest_at(Duration::ZERO), None);
    }

    #[test]
    fn rest_is_that_of_the_average_age_of_requests_that_left() {
        let mut abandonment = AbandonmentAge::default();
        (0..100).for_each(|_| abandonment.left(Duration::from_millis(1600)));
        let rest_at = |millis| abandonment.rest_at(Duration::from_millis(millis));
        assert_eq!(rest_at(0), Some(Duration::from_millis(1500)));
        assert_eq!(rest_at(1400), Some(Duration::from_millis(100)));
        assert_eq!(rest_at(1600), Some(Duration::ZERO));
        assert_eq!(rest_at(1800), None, "it has outlasted them");
        abandonment.left(Duration::ZERO);
        assert_eq!(abandonment.rest_at(Duration::from_millis(1500)), None);
    }
}
