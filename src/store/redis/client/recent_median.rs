/// The median of the last few values. Unlike an average, it hardly depends on rare large values.
pub(super) struct RecentMedian {
    /// Ordered by age; the oldest is at `next` once there are [`SIZE`](Self::SIZE) values.
    values: Vec<i64>,
    next: usize,
}

impl RecentMedian {
    const SIZE: usize = 15;

    pub(super) fn new() -> Self {
        Self { values: Vec::with_capacity(Self::SIZE), next: 0 }
    }

    pub(super) fn record(&mut self, value: i64) {
        if self.values.len() < Self::SIZE {
            self.values.push(value);
        } else {
            self.values[self.next] = value;
            self.next = (self.next + 1) % Self::SIZE;
        }
    }

    /// Returns the median; the lower one of two. `None` before the first value.
    pub(super) fn get(&self) -> Option<i64> {
        let mut sorted = self.values.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len().saturating_sub(1) / 2).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::RecentMedian;

    #[test]
    fn half_of_the_last_values_are_at_most_the_median() {
        let mut median = RecentMedian::new();
        assert_eq!(median.get(), None);
        for (value, expected) in [(5, 5), (9, 5), (7, 7), (1, 5)] {
            median.record(value);
            assert_eq!(median.get(), Some(expected));
        }
        (0..RecentMedian::SIZE).for_each(|_| median.record(3));
        assert_eq!(median.get(), Some(3), "earlier values are forgotten");
        (0..RecentMedian::SIZE / 2).for_each(|_| median.record(1_000));
        assert_eq!(median.get(), Some(3));
        (0..2).for_each(|_| median.record(1_000));
        assert_eq!(median.get(), Some(1_000));
    }
}
