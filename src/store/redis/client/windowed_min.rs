use std::time::Duration;

use tokio::time::Instant;

/// The least of the values of the last ten to twenty seconds.
///
/// A minimum over all time would keep a value that a change of the route, or of the server's clock, has made invalid.
pub(super) struct WindowedMin {
    current: Option<i64>,
    previous: Option<i64>,
    started_at: Instant,
}

impl WindowedMin {
    const WINDOW: Duration = Duration::from_secs(10);

    pub(super) fn new(now: Instant) -> Self {
        Self { current: None, previous: None, started_at: now }
    }

    /// Adds a value.
    pub(super) fn record(&mut self, value: i64, now: Instant) {
        if now.saturating_duration_since(self.started_at) >= Self::WINDOW {
            self.previous = self.current.take();
            self.started_at = now;
        }
        self.current = Some(self.current.map_or(value, |current| current.min(value)));
    }

    pub(super) fn get(&self) -> Option<i64> {
        self.current.into_iter().chain(self.previous).min()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::WindowedMin;

    #[test]
    fn old_minimum_expires_after_two_windows() {
        let start = Instant::now();
        let mut min = WindowedMin::new(start);
        assert_eq!(min.get(), None);
        for (windows, value, least) in [(0, 7, 7), (0, 5, 5), (1, 9, 5), (2, 8, 8)] {
            min.record(value, start + WindowedMin::WINDOW * windows);
            assert_eq!(min.get(), Some(least));
        }
    }
}
