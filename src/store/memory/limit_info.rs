//! The operations on a limit that need no key.

use std::io;

use super::limit_table::LimitTable;
use super::save::{FileWriter, SavedLimit, SavedNames};
use super::table::TableFull;
use super::transaction_limit::{LimitInfo, read_clock};
use super::usage::{KeyId, TopKey, Usage};
use crate::algorithm::{Algorithm, ChargeOptions, State};
use crate::clock::{Clock, Timestamp};
use crate::error::Error;
use crate::limit::AlgorithmSelector;
use crate::store::inner::{HeldEntry, Name, ShareRole, any_queue};

impl<C: AlgorithmSelector> LimitInfo for LimitTable<C> {
    fn table_id(&self) -> u64 {
        self.table.id()
    }

    fn name(&self) -> &Name {
        self.limit.name_handle()
    }

    fn describe(&self, visit: &mut dyn FnMut(&str, bool, Option<&'static str>)) {
        let denies = !self.limit.is_shadow() && self.limit.share() != ShareRole::Share;
        visit(self.limit.name(), denies, self.limit.cost().unit());
    }

    fn is_held_until_end(&self) -> bool {
        C::Algorithm::HELD_UNTIL_END
    }

    fn settle(&self, entry: &HeldEntry, actual: u64, now: &mut Timestamp, clock: &dyn Clock) -> Result<(), TableFull> {
        let &HeldEntry { key, id, at, amount, .. } = entry;
        let mut keys = self.table.lock(key);
        let mut settled = Ok(());
        if C::Algorithm::HELD_UNTIL_END {
            keys.end_request(key, amount, (id, at));
        } else {
            *now = keys.decide_at(*now, clock);
            let own = keys.end_hold(key, amount, id);
            if let Some(algorithm) = own.as_ref().or_else(|| self.limit.algorithm().fixed()).filter(|_| actual > 0) {
                // A hold that has expired is charged as of its expiry, whenever that is.
                let at = if at == 0 { *now } else { Timestamp::from_micros(at) };
                settled = self.charge(key, actual, at, &mut keys, algorithm);
            }
        }
        // Under the lock: a request that was denied because of the hold asks again under the lock when its queue exists. If it
        // asked before, this sees the queue; if it asks after, it sees the units.
        let has_queues = any_queue();
        drop(keys);
        if has_queues {
            self.announce(&[key]);
        }
        settled
    }

    fn usage(&self, clock: &dyn Clock) -> Usage {
        let now = read_clock(clock);
        let mut usage = Usage {
            limit: self.limit.name().to_owned(),
            live_keys: 0,
            capacity: self.table.capacity(),
            bytes: self.table.bytes(),
            evicted: 0,
            held_keys: 0,
            held: 0,
        };
        let mut ended = Vec::new();
        for mut keys in self.table.locked_shards() {
            if C::Algorithm::HELD_UNTIL_END {
                ended.extend(keys.end_due(now));
            }
            let (held_keys, held) = keys.held_totals();
            usage.live_keys += keys.count_live(now.as_micros());
            usage.evicted += keys.evicted();
            usage.held_keys += held_keys;
            usage.held = usage.held.saturating_add(held);
        }
        self.announce(&ended);
        usage
    }

    fn top_keys(&self, max: usize, now: Timestamp) -> Vec<TopKey> {
        let algorithm = self.limit.algorithm().fixed();
        let mut found = Vec::new();
        for keys in self.table.locked_shards() {
            keys.for_each_used(0..usize::MAX, now.as_micros(), |id, held, state| {
                let figures = algorithm.map(|algorithm| match held {
                    0 => algorithm.snapshot(state, now).compute(),
                    _ => algorithm.peek_with_held(state, now, ChargeOptions::within(0, None), held).1.compute(),
                });
                let idle_after = || Timestamp::from_micros(state.idle_at()).saturating_since(now);
                let reset = figures.map_or_else(idle_after, |figures| figures.reset);
                found.push(TopKey { id: KeyId::new(id), reset, figures });
            });
        }
        heaviest(found, max)
    }

    fn save(&self, names: &SavedNames, now: Timestamp, file: &mut FileWriter<'_>) -> io::Result<()> {
        self.save_as(names, now, file)
    }

    fn restore(&self, saved: SavedLimit<'_>, now: Timestamp) -> Result<(), Error> {
        self.restore_from(saved, now)
    }

    fn clear(&self) {
        self.table.locked_shards().for_each(|mut keys| keys.clear());
    }
}

/// Returns the first keys by weight. Apart from the method, so that the compiler generates the sorting only once.
fn heaviest(mut keys: Vec<TopKey>, max: usize) -> Vec<TopKey> {
    keys.sort_by(|a, b| b.weight().partial_cmp(&a.weight()).unwrap_or(std::cmp::Ordering::Equal));
    keys.truncate(max);
    keys
}
