/// Where a key was found, or that it was not, and the versions that vouch for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot {
    pub(super) fingerprint: u64,
    pub(super) candidates: [usize; 2],
    pub(super) versions: [u64; 2],
    pub(super) at: At,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    /// In a slot of the first candidate.
    Home(u8),
    /// In a slot of the second.
    Other(u8),
    Nowhere,
}

/// A slot, under the lock.
#[derive(Clone, Copy, Debug)]
#[allow(unreachable_pub, reason = "named by a hidden trait only")]
pub struct Place {
    pub(super) set: usize,
    pub(super) slot: u8,
}

impl Spot {
    /// No reading at all.
    pub(crate) const BLANK: Self = Self { fingerprint: 0, candidates: [0; 2], versions: [0; 2], at: At::Nowhere };

    /// A hash of the key that was read.
    pub(crate) fn hash(&self) -> u64 {
        self.fingerprint
    }

    /// Whether the key was nowhere.
    pub(crate) fn is_nowhere(&self) -> bool {
        self.at == At::Nowhere
    }

    /// Where the key was.
    #[inline(always)]
    pub(crate) fn place(&self) -> Option<Place> {
        match self.at {
            At::Home(slot) => Some(Place { set: self.candidates[0], slot }),
            At::Other(slot) => Some(Place { set: self.candidates[1], slot }),
            At::Nowhere => None,
        }
    }

    /// Which of the candidates' versions vouch for the reading.
    #[inline(always)]
    pub(super) fn vouching(&self) -> std::ops::Range<usize> {
        match self.at {
            At::Home(_) => 0..1,
            At::Other(_) => 1..2,
            At::Nowhere => 0..2,
        }
    }

    /// The candidates in the order in which every thread locks sets.
    pub(super) fn in_order(&self) -> [usize; 2] {
        if self.candidates[0] < self.candidates[1] { [0, 1] } else { [1, 0] }
    }
}
