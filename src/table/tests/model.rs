//! The table as a map.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A thread whose clock is `behind` charges a key, which is then idle `span` later.
    Charge {
        key: usize,
        behind: u64,
        span: u64,
    },
    Hold {
        key: usize,
        amount: u64,
    },
    EndHold {
        key: usize,
    },
    Remove {
        key: usize,
    },
    Pass {
        time: u64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = 0..60_usize;
    let step = prop_oneof![
        8 => (key.clone(), 0..50_u64, 1..200_u64).prop_map(|(key, behind, span)| Step::Charge { key, behind, span }),
        1 => key.clone().prop_map(|key| Step::Remove { key }),
        2 => (key.clone(), 1..9_u64).prop_map(|(key, amount)| Step::Hold { key, amount }),
        2 => key.prop_map(|key| Step::EndHold { key }),
        3 => (0..100_u64).prop_map(|time| Step::Pass { time }),
    ];
    proptest::collection::vec(step, 1..size(400, 40))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 128 }, ..ProptestConfig::default() })]

    /// The model is a map that drops no state. Each state that the table has dropped was idle at the horizon.
    #[test]
    fn table_equals_a_map_except_for_idle_keys(seed: u64, steps in steps()) {
        let keys: Vec<u64> = Hashes(seed).take(60).collect();
        let table = Words::with_capacity(keys.len(), 2, WhenFull::Evict);
        let mut model: HashMap<u64, u64> = HashMap::new();
        let mut held_amounts: HashMap<u64, u64> = HashMap::new();
        let (mut time, mut latest) = (1000, 0);
        for step in steps {
            match step {
                Step::Pass { time: passed } => time += passed,
                Step::Hold { key, amount } => {
                    if let Err(horizon) = get(&table, keys[key]) {
                        let dropped = model.remove(&keys[key]);
                        prop_assert!(dropped.is_none_or(|until| until <= horizon), "dropped before it was idle");
                    }
                    latest = latest.max(time);
                    hold(&table, keys[key], time, amount);
                    *held_amounts.entry(keys[key]).or_default() += amount;
                }
                Step::EndHold { key } => {
                    if let Some(amount) = held_amounts.remove(&keys[key]) {
                        end_hold(&table, keys[key], amount);
                    }
                }
                Step::Remove { key } => {
                    table.remove(keys[key]);
                    model.remove(&keys[key]);
                    if held_amounts.contains_key(&keys[key]) {
                        // The held key keeps its slot, with the zero state.
                        put_idle(&table, keys[key]);
                    }
                }
                Step::Charge { key, behind, span } => {
                    let hash = keys[key];
                    let now = match get(&table, hash) {
                        Ok(until) => {
                            prop_assert_eq!(model.get(&hash).copied().unwrap_or(0), until);
                            time - behind
                        }
                        Err(horizon) => {
                            let dropped = model.get(&hash);
                            prop_assert!(dropped.is_none_or(|&until| until <= horizon), "dropped before it was idle");
                            prop_assert!(horizon <= latest, "the horizon is ahead of all clocks");
                            horizon.max(time - behind)
                        }
                    };
                    latest = latest.max(now);
                    let until = now.max(model.get(&hash).copied().unwrap_or(0)) + span;
                    prop_assert!(try_put(&table, hash, now, until), "the capacity suffices for all keys");
                    model.insert(hash, until);
                    prop_assert_eq!(get(&table, hash), Ok(until));
                }
            }
            let live = model.values().filter(|&&until| until > time).count();
            prop_assert_eq!(table.count_live(time), live);
            prop_assert_eq!(table.holds(), (held_amounts.len(), held_amounts.values().sum()));
            for (&hash, &amount) in &held_amounts {
                prop_assert_eq!(held(&table, hash), amount);
                prop_assert!(get(&table, hash).is_ok(), "a held key has lost its slot");
            }
        }
        check_structure(&table);
    }
}
