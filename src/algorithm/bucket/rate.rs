//! Times as exact fractions: see "Representation" in the parent module.

/// A quota in lowest terms: `tokens` each `ticks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rate {
    pub(super) tokens: u64,
    pub(super) ticks: u64,
    /// Both numbers in one word, as states store them.
    pub(super) packed: u64,
}

/// A span of `ticks + fraction / tokens` ticks, `fraction < tokens`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) ticks: u64,
    pub(super) fraction: u64,
}

/// A theoretical arrival time: `ticks - fraction / tokens` ticks since the epoch, `fraction < tokens`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tat {
    pub(super) ticks: u64,
    pub(super) fraction: u64,
}

impl Rate {
    /// The maximum of `tokens`: sums of two fractions stay exact in the doubles of Lua.
    pub(super) const MAX_TOKENS: u64 = (1 << 32) - 1;

    /// Reduces a quota to lowest terms.
    ///
    /// Returns `None` if `tokens * ticks` is over 2^53 or `tokens` is 2^32 or more: Lua in Redis computes in doubles,
    /// and both stores must decide identically.
    pub(super) const fn new(limit: u64, period: u64) -> Option<Self> {
        let (mut a, mut b) = (limit, period);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        let (tokens, ticks) = (limit / a, period / a);
        match tokens.checked_mul(ticks) {
            Some(product) if product <= 1 << 53 && tokens <= Self::MAX_TOKENS => {
                Some(Self { tokens, ticks, packed: Self::pack(tokens, ticks) })
            }
            _ => None,
        }
    }

    pub(super) fn is_faster_than(self, other: Self) -> bool {
        u128::from(self.tokens) * u128::from(other.ticks) > u128::from(other.tokens) * u128::from(self.ticks)
    }

    /// Returns how long `count` tokens take to refill.
    #[allow(clippy::cast_possible_truncation, reason = "the remainder is below `tokens`, and the quotient is capped")]
    pub(super) const fn span(self, count: u64) -> Span {
        let tokens = self.tokens;
        if let Some(product) = count.checked_mul(self.ticks) {
            // Nearly all quotas: the period in microseconds is a multiple of the limit. Row "read" of
            // benches/figures.md.
            if tokens == 1 {
                return Span { ticks: product, fraction: 0 };
            }
            return Span { ticks: product / tokens, fraction: product % tokens };
        }
        let product = count as u128 * self.ticks as u128;
        let ticks = product / tokens as u128;
        if ticks > u64::MAX as u128 / 4 {
            return Span { ticks: u64::MAX / 4, fraction: 0 };
        }
        Span { ticks: ticks as u64, fraction: (product % tokens as u128) as u64 }
    }

    /// Returns the tokens that a usage of `usage - fraction / tokens` ticks is, rounded up.
    pub(super) fn tokens_used(self, usage: u64, fraction: u64) -> u64 {
        // The product nearly always fits in 64 bits. A division of 128 bits takes ten times as long.
        match usage.checked_mul(self.tokens) {
            Some(product) => product.saturating_sub(fraction).div_ceil(self.ticks),
            None => self.tokens_used_wide(usage, fraction),
        }
    }

    #[cold]
    fn tokens_used_wide(self, usage: u64, fraction: u64) -> u64 {
        let product = u128::from(usage) * u128::from(self.tokens) - u128::from(fraction);
        saturating_u64(product.div_ceil(u128::from(self.ticks)))
    }

    /// Packs both numbers in one word: together they have at most 55 bits, and 6 bits store where the first one ends.
    pub(super) const fn pack(tokens: u64, ticks: u64) -> u64 {
        let bits = u64::BITS - tokens.leading_zeros();
        (bits as u64) << 55 | ticks << bits | tokens
    }

    pub(super) const fn unpack(word: u64) -> Self {
        // At most six bits, whatever the word is.
        let bits = word >> 55 & 63;
        let low = word & ((1 << 55) - 1);
        Self { tokens: low & ((1 << bits) - 1), ticks: low >> bits, packed: word }
    }
}

impl Span {
    pub(super) const fn round_up(self) -> u64 {
        self.ticks + (self.fraction > 0) as u64
    }
}

impl Tat {
    /// Returns the earlier of this time and `latest`.
    pub(super) fn min(self, latest: u64) -> Self {
        if self.ticks > latest { Self { ticks: latest, fraction: 0 } } else { self }
    }

    pub(super) fn plus(self, span: Span, tokens: u64) -> Self {
        let ticks = self.ticks.saturating_add(span.ticks);
        if self.fraction >= span.fraction {
            Self { ticks, fraction: self.fraction - span.fraction }
        } else {
            // A time subtracts its fraction, and a span adds its own: below zero, one tick more lends `tokens` parts.
            Self { ticks: ticks.saturating_add(1), fraction: self.fraction + tokens - span.fraction }
        }
    }
}

pub(super) fn saturating_u64(wide: u128) -> u64 {
    u64::try_from(wide).unwrap_or(u64::MAX)
}
