use std::time::Duration;

/// A moving average of times, in which the last few values count.
///
/// After a stall of the server the average must fall quickly, or decisions would fail that can be answered again.
#[derive(Default)]
pub(super) struct MovingAverage(Option<Duration>);

impl MovingAverage {
    pub(super) fn record(&mut self, value: Duration) {
        self.0 = Some(self.0.map_or(value, |mean| (mean * 3 + value) / 4));
    }

    /// Returns the average; zero before the first value.
    pub(super) fn get(&self) -> Duration {
        self.0.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::MovingAverage;

    #[test]
    fn average_follows_the_last_values() {
        let (mut average, ms) = (MovingAverage::default(), Duration::from_millis);
        assert_eq!(average.get(), Duration::ZERO);
        average.record(ms(20));
        assert_eq!(average.get(), ms(20));
        average.record(ms(60));
        assert_eq!(average.get(), ms(30));
        (0..10).for_each(|_| average.record(ms(20)));
        assert!(average.get() < ms(21), "{:?}", average.get());
    }
}
