use super::layout::{HEAD, Layout, index};
use super::view::{Live, Totals};
use crate::algorithm::CountersEdit;

/// A state that a window with the same blocks wrote, at a time at which its newest block counts: the usual state.
///
/// Its counts need no conversion. Row "sliding window" of benches/figures.md: 975 instructions instead of 1096 with one
/// type for all states.
pub(super) struct Ring<'a> {
    pub(super) layout: Layout,
    /// Block `j` is at `j % kept`.
    counts: &'a [u64],
    /// The time at which no block counts any more.
    idle_at: u64,
    newest: u64,
    /// The sum of the counts.
    total: u64,
    /// The time at which to decide: now, or the time of the last charge if that is later.
    pub(super) at: u64,
    /// The block that contains `at`.
    current: u64,
}

impl<'a> Ring<'a> {
    #[inline]
    pub(super) fn new(layout: Layout, state: &'a [u64], now: u64) -> Option<Self> {
        let &[idle_at, newest, written_at, word, total, _, ref counts @ ..] = state else { return None };
        let at = now.max(written_at);
        // The sum is saturated in states with surcharges.
        if word != layout.word() || total == u64::MAX || idle_at <= at || at - now > layout.max_reset() {
            return None;
        }
        let kept = index(layout.kept());
        // The layout of another ring, which a charge must change, too.
        if counts.get(kept + 3).is_some_and(|layout| *layout != 0) {
            return None;
        }
        let (current, counts) = (layout.block_at(at, newest), counts.get(..kept)?);
        // Wrapping: also false if the newest block of a damaged state is in the future.
        (current.wrapping_sub(newest) <= layout.blocks).then_some(Self {
            layout,
            counts,
            idle_at,
            newest,
            total,
            at,
            current,
        })
    }

    /// Returns all counts, oldest block first, and how many of the oldest blocks have expired.
    #[inline]
    fn in_order(&self) -> ([&'a [u64]; 2], usize) {
        let newest = index(self.newest % self.layout.kept());
        let (newer, older) = self.counts.split_at_checked(newest + 1).unwrap_or_default();
        ([older, newer], index(self.current - self.newest))
    }

    /// Returns the blocks that count, oldest first.
    pub(super) fn live(&self) -> impl Iterator<Item = Live> + Clone {
        let ([older, newer], expired) = self.in_order();
        let counts = older.iter().chain(newer).zip(0..).skip(expired).filter(|(count, _)| **count > 0);
        counts.map(move |(&count, after)| {
            let block = self.oldest().wrapping_add(after);
            Live { block, leaves_at: self.layout.leaves_at(block), count }
        })
    }

    /// Returns what a snapshot needs of the blocks.
    #[inline]
    pub(super) fn totals(&self) -> Totals {
        let ([older, newer], expired) = self.in_order();
        let mut in_order = older.iter().chain(newer);
        let expired_hits = in_order.by_ref().take(expired).fold(0, |sum: u64, count| sum.saturating_add(*count));
        let used = self.total.saturating_sub(expired_hits);
        let oldest = in_order.clone().next().map_or(0, |&count| count.into());
        let unused = in_order.position(|&count| count > 0).unwrap_or(0);
        let first = self.oldest().wrapping_add((expired + unused) as u64);
        Totals {
            used: used.into(),
            oldest,
            first_leaves_at: self.layout.leaves_at(first),
            last_leaves_at: self.idle_at,
            at: self.at,
            current: self.current,
        }
    }

    /// Returns the block of the first count in order. Before the epoch there is none, and its count is zero.
    fn oldest(&self) -> u64 {
        self.newest.wrapping_sub(self.layout.blocks)
    }

    /// Returns the change of the state that charges `cost`.
    #[inline]
    pub(super) fn charge(&self, cost: u64) -> CountersEdit {
        CountersEdit::new([self.at, self.current, cost, self.layout.word()], |state, &[at, current, cost, word]| {
            let Some((head, counts)) = state.split_at_mut_checked(HEAD) else { return };
            let layout = Layout::from_word(word);
            let first_at = if current == head[1] { head[5] } else { at };
            let (mut slot, mut total) = (index(head[1] % layout.kept()), head[4]);
            // At most `blocks` times: see `new`.
            for _ in head[1]..current {
                slot = if slot == index(layout.blocks) { 0 } else { slot + 1 };
                let expired = counts.get_mut(slot).map(std::mem::take).unwrap_or_default();
                total = total.saturating_sub(expired);
            }
            if let Some(count) = counts.get_mut(slot) {
                *count = count.saturating_add(cost);
            }
            head.copy_from_slice(&[layout.leaves_at(current), current, at, word, total.saturating_add(cost), first_at]);
        })
    }

    /// Returns the totals after a charge of `cost`, unless they overflow.
    #[inline]
    pub(super) fn charged(&self, totals: Totals, cost: u64) -> Option<Totals> {
        let used = u128::from(u64::try_from(totals.used).ok()?.checked_add(cost)?);
        let leaves_at = self.layout.leaves_at(self.current);
        let first_leaves_at = if totals.used == 0 { leaves_at } else { totals.first_leaves_at };
        Some(Totals { used, first_leaves_at, last_leaves_at: leaves_at, ..totals })
    }

    /// Returns the blocks that count after a charge of `cost`, oldest first.
    pub(super) fn live_after(&self, cost: u64) -> impl Iterator<Item = Live> + Clone {
        let (block, leaves_at) = (self.current, self.layout.leaves_at(self.current));
        self.live().chain(std::iter::once(Live { block, leaves_at, count: cost }))
    }
}
