use std::time::Duration;

/// A moving estimate of the time from sending a call to its reply: the mean, and the mean deviation, with the weights
/// of TCP's retransmission timer (RFC 6298).
#[derive(Default)]
pub(super) struct CallTime {
    mean: Option<Duration>,
    deviation: Duration,
}

impl CallTime {
    pub(super) fn record(&mut self, elapsed: Duration) {
        let Some(mean) = self.mean else {
            (self.mean, self.deviation) = (Some(elapsed), elapsed / 4);
            return;
        };
        self.deviation = (self.deviation * 3 + mean.abs_diff(elapsed)) / 4;
        self.mean = Some((mean * 7 + elapsed) / 8);
    }

    /// Returns a time that few calls exceed; zero before the first call.
    pub(super) fn upper_bound(&self) -> Duration {
        self.mean.map_or(Duration::ZERO, |mean| mean + self.deviation * 2)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::CallTime;

    #[test]
    fn upper_bound_follows_the_mean_and_the_deviation() {
        let mut time = CallTime::default();
        assert_eq!(time.upper_bound(), Duration::ZERO);
        let ms = Duration::from_millis;
        (0..100).for_each(|_| time.record(ms(20)));
        assert!(time.upper_bound() < ms(21), "{:?}", time.upper_bound());
        (0..100).for_each(|index| time.record(ms(if index % 2 == 0 { 10 } else { 30 })));
        let bound = time.upper_bound();
        assert!(bound > ms(36) && bound < ms(44), "20 ms and twice 10 ms: {bound:?}");
    }
}
