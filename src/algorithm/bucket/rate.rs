//! Times as exact fractions: see the representation in the module above.

/// The quota in lowest terms: `tokens` each `ticks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rate {
    pub(super) tokens: u64,
    pub(super) ticks: u64,
    /// Both in one word, as states keep them.
    pub(super) packed: u64,
}

/// `whole + part / tokens` ticks, `part < tokens`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) whole: u64,
    pub(super) part: u64,
}

/// `whole - part / tokens` ticks since the epoch, `part < tokens`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tat {
    pub(super) whole: u64,
    pub(super) part: u64,
}

impl Rate {
    /// Sums of two parts stay exact in the doubles of Lua.
    pub(super) const LARGEST_TOKENS: u64 = (1 << 32) - 1;

    /// `None` where in lowest terms `tokens * ticks` is over 2^53, as Redis computes in doubles, and a limit must not change its
    /// meaning with its store; or `tokens` is 2^32 or more.
    pub(super) const fn of(limit: u64, period: u64) -> Option<Self> {
        let (mut a, mut b) = (limit, period);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        let (tokens, ticks) = (limit / a, period / a);
        match tokens.checked_mul(ticks) {
            Some(product) if product <= 1 << 53 && tokens <= Self::LARGEST_TOKENS => {
                Some(Self { tokens, ticks, packed: Self::pack(tokens, ticks) })
            }
            _ => None,
        }
    }

    pub(super) fn is_faster_than(self, other: Self) -> bool {
        u128::from(self.tokens) * u128::from(other.ticks) > u128::from(other.tokens) * u128::from(self.ticks)
    }

    /// How long `count` tokens take to come back.
    #[allow(clippy::cast_possible_truncation, reason = "the remainder is below `tokens`, and the quotient is capped")]
    pub(super) const fn span(self, count: u64) -> Span {
        let tokens = self.tokens;
        if let Some(product) = count.checked_mul(self.ticks) {
            return Span { whole: product / tokens, part: product % tokens };
        }
        let product = count as u128 * self.ticks as u128;
        let whole = product / tokens as u128;
        if whole > u64::MAX as u128 / 4 {
            return Span { whole: u64::MAX / 4, part: 0 };
        }
        Span { whole: whole as u64, part: (product % tokens as u128) as u64 }
    }

    /// A debt of so many ticks in tokens, rounded up.
    #[inline(always)]
    pub(super) fn owed(self, debt: u64, part: u64) -> u64 {
        // Nearly always it fits into 64 bits, where dividing costs a tenth.
        match debt.checked_mul(self.tokens) {
            Some(owed) => owed.saturating_sub(part).div_ceil(self.ticks),
            None => self.owed_at_length(debt, part),
        }
    }

    #[cold]
    fn owed_at_length(self, debt: u64, part: u64) -> u64 {
        let owed = u128::from(debt) * u128::from(self.tokens) - u128::from(part);
        narrow(owed.div_ceil(u128::from(self.ticks)))
    }

    /// In one word: both numbers together have at most 55 bits, and 6 say where one ends.
    pub(super) const fn pack(tokens: u64, ticks: u64) -> u64 {
        let bits = u64::BITS - tokens.leading_zeros();
        (bits as u64) << 55 | ticks << bits | tokens
    }

    pub(super) const fn unpack(word: u64) -> Self {
        // No more than six bits, whatever the word is.
        let bits = word >> 55 & 63;
        let low = word & ((1 << 55) - 1);
        Self { tokens: low & ((1 << bits) - 1), ticks: low >> bits, packed: word }
    }
}

impl Span {
    pub(super) const fn round_up(self) -> u64 {
        self.whole + (self.part > 0) as u64
    }
}

impl Tat {
    /// Not later than `latest`.
    #[inline(always)]
    pub(super) fn until(self, latest: u64) -> Self {
        if self.whole > latest { Self { whole: latest, part: 0 } } else { self }
    }

    #[inline(always)]
    pub(super) fn plus(self, span: Span, tokens: u64) -> Self {
        let whole = self.whole.saturating_add(span.whole);
        if self.part >= span.part {
            Self { whole, part: self.part - span.part }
        } else {
            Self { whole: whole.saturating_add(1), part: self.part + tokens - span.part }
        }
    }
}

pub(super) fn narrow(wide: u128) -> u64 {
    u64::try_from(wide).unwrap_or(u64::MAX)
}
