use std::time::Duration;

/// The maximum weight of one batch. While a script runs, the server runs nothing else, so a batch must be short.
///
/// The weights of the algorithms are relative, and the server's speed is not known. So the server's clock measures full
/// batches: a reply holds the time at which the script started, and if the next call was waiting by then, that one
/// started when this one ended. (The server may have run calls of other clients in between, so the least of several
/// measurements counts.)
pub(super) struct BatchWeight {
    max: usize,
    least: Duration,
    measurements: u32,
}

impl BatchWeight {
    /// Enough to spread a call's fixed costs. A script with this weight takes about half a millisecond on a fast server.
    pub(super) const MAX: usize = 128;
    /// Before the first measurement the server may be slow. Full batches on a fast server raise the maximum within
    /// milliseconds.
    pub(super) const INITIAL: usize = 32;
    const MIN: usize = 4;
    /// The maximum time for which one batch occupies the server.
    const MAX_SPAN: Duration = Duration::from_millis(1);
    const MEASUREMENTS: u32 = 4;

    pub(super) fn new() -> Self {
        Self { max: Self::INITIAL, least: Duration::MAX, measurements: 0 }
    }

    pub(super) fn max(&self) -> usize {
        self.max
    }

    /// Records that a batch of this weight has occupied the server for at most `span`.
    pub(super) fn record(&mut self, weight: usize, span: Duration) {
        // Smaller batches say little about the time of a full one.
        if weight < self.max / 4 || weight == 0 {
            return;
        }
        #[allow(clippy::cast_precision_loss, reason = "at most some hundred")]
        let full_span = span.mul_f64(self.max as f64 / weight.min(self.max) as f64);
        self.least = self.least.min(full_span);
        self.measurements += 1;
        if self.measurements < Self::MEASUREMENTS {
            return;
        }
        let least = std::mem::replace(&mut self.least, Duration::MAX);
        self.measurements = 0;
        if least > Self::MAX_SPAN {
            let ratio = Self::MAX_SPAN.as_secs_f64() / least.as_secs_f64();
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
            let max = (self.max as f64 * ratio) as usize;
            self.max = max.max(Self::MIN);
        } else if least < Self::MAX_SPAN / 2 {
            self.max = (self.max + self.max / 4 + 1).min(Self::MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::BatchWeight;

    /// A server that spends 20 us on a call and this time on each unit of weight.
    fn settle(weight: &mut BatchWeight, micros: u64) -> Duration {
        let span = |max: usize| Duration::from_micros(20 + max as u64 * micros);
        (0..200).for_each(|_| weight.record(weight.max(), span(weight.max())));
        span(weight.max())
    }

    #[test]
    fn full_batch_takes_at_most_a_millisecond() {
        let mut weight = BatchWeight::new();
        assert_eq!((settle(&mut weight, 3), weight.max()), (Duration::from_micros(404), BatchWeight::MAX));
        for slow in [10, 50, 200] {
            assert!(settle(&mut weight, slow) <= Duration::from_millis(1), "{}", weight.max());
            assert!(weight.max() as u64 * slow >= 500, "not smaller than necessary: {}", weight.max());
        }
        settle(&mut weight, 100_000);
        assert_eq!(weight.max(), BatchWeight::MIN);
        settle(&mut weight, 3);
        assert_eq!(weight.max(), BatchWeight::MAX, "the server is fast again");
    }

    #[test]
    fn pauses_of_single_batches_do_not_count() {
        let mut weight = BatchWeight::new();
        settle(&mut weight, 3);
        for index in 0..100 {
            weight.record(weight.max(), Duration::from_millis(if index % 4 == 0 { 50 } else { 1 }));
            weight.record(1, Duration::from_millis(50));
        }
        assert_eq!(weight.max(), BatchWeight::MAX);
    }
}
