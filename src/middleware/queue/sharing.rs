//! How processes share a limit that schedules no starts.

use std::time::Duration;

/// Whether other processes take starts of the limit, and for how long this one lets them ask first.
///
/// The process that asks first at the time of the next start receives it, so the one with the shortest link would
/// receive all. A process that has received a start therefore asks a little later, and the less so the more starts in a
/// row it has lost.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    /// Whether the next ask is sent at the time of the next start.
    is_expecting: bool,
    /// How many starts in a row other processes have taken.
    lost: u32,
    /// For how many further starts the limit counts as shared.
    shared_for: u32,
}

impl Sharing {
    const MAX_YIELD: Duration = Duration::from_millis(10);
    const MEMORY: u32 = 4;

    /// Records a start.
    pub(super) fn admitted(&mut self) {
        if std::mem::take(&mut self.is_expecting) {
            self.lost = 0;
            self.shared_for = self.shared_for.saturating_sub(1);
        }
    }

    /// Records that the next start is possible after `wait`. Returns how much later to ask. `interval` is the time
    /// between two starts, and `random` a random number.
    pub(super) fn denied(&mut self, wait: Duration, interval: Duration, random: u8) -> Duration {
        // An ask that arrived a little too early has lost nothing.
        if std::mem::replace(&mut self.is_expecting, true) && wait > interval / 2 {
            self.lost = self.lost.saturating_add(1);
            self.shared_for = Self::MEMORY;
        }
        let longest = (interval / 16).min(Self::MAX_YIELD);
        match (self.lost, self.shared_for) {
            // Another process with a longer link would never receive a start, and this one would not know of it.
            (0, 0) => longest / 2 * u32::from(random) / 255,
            (lost, _) => longest / 4_u32.pow(lost.min(8)),
        }
    }

    /// Records that the next ask is sent at another time.
    pub(super) fn interrupted(&mut self) {
        self.is_expecting = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_millis(100);

    #[test]
    fn process_alone_yields_a_random_time() {
        let mut sharing = Sharing::default();
        let yielded = [0, 127, 255].map(|random| {
            sharing.admitted();
            sharing.denied(INTERVAL, INTERVAL, random).as_micros()
        });
        assert_eq!(yielded, [0, 1556, 3125]);
    }

    #[test]
    fn process_yields_after_a_start_and_less_after_each_lost_one() {
        let mut sharing = Sharing::default();
        sharing.denied(INTERVAL, INTERVAL, 0);
        let lost: Vec<_> = (0..3).map(|_| sharing.denied(INTERVAL, INTERVAL, 0).as_micros()).collect();
        assert_eq!(lost, [1562, 390, 97]);
        let mut won = Vec::new();
        for _ in 0..5 {
            sharing.admitted();
            won.push(sharing.denied(INTERVAL, INTERVAL, 0).as_micros());
        }
        assert_eq!(won, [6250, 6250, 6250, 0, 0], "the others have stopped");
    }

    #[test]
    fn early_ask_is_not_a_lost_start() {
        let mut sharing = Sharing::default();
        sharing.denied(INTERVAL, INTERVAL, 0);
        assert_eq!(sharing.denied(INTERVAL / 10, INTERVAL, 0), Duration::ZERO);
    }
}
