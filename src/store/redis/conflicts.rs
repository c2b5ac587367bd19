//! Limiters of this process that share keys in Redis, and whether they agree on what these hold.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::store::redis::bound_limit::RowInfo;

/// What a limiter is to others: where its keys are, and what it makes of them.
pub(crate) struct Presence {
    places: Vec<String>,
    prefix: String,
    name: String,
    limits: Vec<Counts>,
}

/// How a limit counts. One whose algorithm is chosen by the key has no parameters here.
struct Counts {
    limit: String,
    kernel: &'static str,
    params: Option<Vec<u64>>,
}

/// Those that live: a limiter that was replaced is gone as soon as nobody uses it.
static PRESENT: Mutex<Vec<Weak<Presence>>> = Mutex::new(Vec::new());

impl Presence {
    /// Notes a limiter, and says with which others it is at odds.
    pub(crate) fn announce(
        places: Vec<String>,
        prefix: &str,
        name: &str,
        rows: &[RowInfo],
    ) -> (Arc<Self>, Vec<String>) {
        let limits = rows.iter().map(Counts::of).collect();
        let presence = Arc::new(Self { places, prefix: prefix.to_owned(), name: name.to_owned(), limits });
        let mut present = PRESENT.lock().unwrap_or_else(PoisonError::into_inner);
        present.retain(|other| other.strong_count() > 0);
        let others: Vec<_> = present.iter().filter_map(Weak::upgrade).collect();
        present.push(Arc::downgrade(&presence));
        drop(present);
        let odds = others.iter().filter(|other| presence.shares_keys_with(other));
        let odds = odds.flat_map(|other| presence.odds_with(other)).collect();
        (presence, odds)
    }

    fn shares_keys_with(&self, other: &Self) -> bool {
        (&self.prefix, &self.name) == (&other.prefix, &other.name)
            && self.places.iter().any(|place| other.places.contains(place))
    }

    fn odds_with(&self, other: &Self) -> Vec<String> {
        let pairs = self.limits.iter().flat_map(|new| other.limits.iter().map(move |old| (new, old)));
        let pairs = pairs.filter(|(new, old)| new.limit == old.limit);
        pairs.filter_map(|(new, old)| new.odds_with(old, &self.name)).collect()
    }
}

impl Counts {
    fn of(row: &RowInfo) -> Self {
        let params = row.twin(None).map(|twin| {
            let mut params = Vec::new();
            twin.params(1, &mut params);
            params
        });
        Self { limit: row.name.as_str().to_owned(), kernel: row.kernel.name(), params }
    }

    fn odds_with(&self, other: &Self, name: &str) -> Option<String> {
        let limit = &self.limit;
        let what = if self.kernel != other.kernel {
            format!(
                "count by different algorithms ({} and {}): they don't share what keys have used, so that together they let \
                 through what both do",
                other.kernel, self.kernel
            )
        } else if self.params != other.params {
            "share what keys have used, and hold it to different quotas: each charges what the other lets through"
                .to_owned()
        } else {
            return None;
        };
        Some(format!(
            "two limiters named {name:?} in the same Redis have a limit named {limit:?}, and {what}; if they are not meant to be \
             one, give them different names, and if they are, make one limiter and clone it"
        ))
    }
}
