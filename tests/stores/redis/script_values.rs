//! Values of keys that the scripts accept and refuse, as `read.lua` and `holds.lua` document them.

use bb8_redis::redis;

use crate::lua;
use crate::script_model::Reply;
use crate::server::Server;

const NOW: f64 = 1_790_000_000_000_000.0;
const LATER: f64 = NOW + 1_000_000.0;
const PERIOD: f64 = 3_000_000.0;
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;
/// The verdict of a decision on a key with foreign bytes.
const INVALID_STATE: f64 = -MAX_EXACT;

fn script() -> redis::Script {
    let fast_path = include_str!("../../../src/algorithm/fixed_window_fast.lua");
    redis::Script::new(&lua::script(include_str!("../../../src/algorithm/fixed_window.lua"), Some(fast_path)))
}

/// Decides once on each key by a fixed window of five. Returns the verdicts.
fn decide(script: &redis::Script, connection: &mut redis::Connection, keys: &[&str], is_fast: bool) -> Vec<f64> {
    #[allow(clippy::cast_precision_loss, reason = "small")]
    let params = |cost: u64| vec![5.0, PERIOD, cost as f64, 0.0, 0.0, 0.0, 0.0, 0.0];
    let count = u16::try_from(keys.len()).expect("few keys");
    let mut call = script.prepare_invoke();
    for key in keys {
        call.key(*key);
    }
    let reply: Vec<u8> =
        call.arg(lua::one_template(NOW, is_fast, count, (1, 1), &params)).invoke(connection).expect("a reply");
    let results = Reply::read(&reply).with_zeros(keys.len()).results;
    if results.len() == keys.len() { results } else { results.into_iter().step_by(2).collect() }
}

fn bytes(words: &[f64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn put(connection: &mut redis::Connection, value: &[u8]) {
    redis::cmd("SET").arg("key").arg(value).exec(connection).expect("done");
}

fn get(connection: &mut redis::Connection) -> Vec<u8> {
    redis::cmd("GET").arg("key").query(connection).expect("a value")
}

/// A window with three of five used: the end, the used units, the last charge, the first hit, the kinds; and the key's
/// expiry.
const STATE: [f64; 6] = [LATER, 3.0, NOW - 10.0, LATER - PERIOD, 0.0, LATER + 1_000_000.0];

/// The words after the state of a key with so many entries of no cost: those from the end of a block on, and the
/// entries.
fn entries(count: u32) -> Vec<f64> {
    let mut words = vec![0.0, 0.0, 0.0, LATER, LATER, PERIOD, 0.0, 0.0, 0.0, f64::from(count)];
    for id in 1..=count {
        words.extend([f64::from(id), 0.0, 0.0, 0.0, LATER]);
    }
    words
}

#[test]
fn values_of_the_documented_form_are_states() {
    let server = Server::start();
    let mut connection = server.connect();
    let script = script();
    let state = |more: &[f64]| [&STATE[..], more].concat();
    // Two more are allowed, and then none.
    let cases = [
        ("a state", state(&[])),
        ("a past block", state(&[NOW])),
        ("64 sessions", state(&entries(64))),
        ("one session", state(&entries(1))),
    ];
    for is_fast in [false, true] {
        for (name, words) in &cases {
            put(&mut connection, &bytes(words));
            let verdicts = [(); 3].map(|()| decide(&script, &mut connection, &["key"], is_fast)[0]);
            assert_eq!(verdicts, [0.0, 0.0, LATER - NOW], "{name}, fast path {is_fast}");
        }
        put(&mut connection, &bytes(&state(&[LATER + 1.0])));
        assert_eq!(decide(&script, &mut connection, &["key"], is_fast), [LATER + 1.0 - NOW], "a block");
        // The held costs, of which leases hold nothing, count as used.
        let mut held = state(&entries(1));
        (held[7], held[17]) = (2.0, 2.0);
        put(&mut connection, &bytes(&held));
        assert_eq!(decide(&script, &mut connection, &["key"], is_fast), [LATER - NOW], "held costs");
    }
}

/// Every number is from 0 to 2^53, their count is that of a form, and a key has at most 64 entries of sessions, 64 of leases and
/// 160 of groups of reservations.
#[test]
fn values_of_another_form_are_invalid_and_kept() {
    let server = Server::start();
    let mut connection = server.connect();
    let script = script();
    let state = |more: &[f64]| [&STATE[..], more].concat();
    let mut cases: Vec<(String, Vec<u8>)> = Vec::new();
    for extra in 1..8 {
        cases.push((format!("{extra} more bytes"), [bytes(&STATE), vec![0; extra]].concat()));
    }
    cases.extend((1..=5).map(|count| (format!("{count} words"), bytes(&STATE[..count]))));
    let with_one = state(&entries(1));
    cases.extend((8..with_one.len()).map(|count| (format!("{count} words"), bytes(&with_one[..count]))));
    cases.push(("a word after the entries".to_owned(), bytes(&state(&[&entries(1)[..], &[0.0]].concat()))));
    cases.push(("289 entries".to_owned(), bytes(&state(&entries(289)))));
    let mut fraction = state(&entries(0));
    fraction[15] = 0.2;
    fraction.push(0.0);
    cases.push(("a fraction of an entry".to_owned(), bytes(&fraction)));
    cases.push(("1701 words".to_owned(), bytes(&[0.0; 1701])));
    // The kinds: a window more than the words have, a fraction, and more windows than a state has.
    for kinds in [16.0, 0.5, 64.0, MAX_EXACT] {
        let mut words = STATE;
        words[4] = kinds;
        cases.push((format!("{kinds} as kinds"), bytes(&words)));
    }
    // The numbers of a state, with a block and with held costs. Those of the entries are checked when they are used.
    for words in [state(&[]), state(&[NOW]), with_one] {
        for index in 0..words.len().min(16) {
            for number in [f64::NAN, f64::INFINITY, -1.0, -f64::MIN_POSITIVE, MAX_EXACT + 2.0] {
                let mut words = words.clone();
                words[index] = number;
                cases.push((format!("{number} in the word {index} of {}", words.len()), bytes(&words)));
            }
        }
    }
    for (name, value) in cases {
        for is_fast in [false, true] {
            put(&mut connection, &value);
            assert_eq!(decide(&script, &mut connection, &["key"], is_fast), [INVALID_STATE], "{name}, {is_fast}");
            assert_eq!(get(&mut connection), value, "{name} is kept");
        }
    }
}

/// The fast path creates new keys before it finds a key of another type. Then each other key is charged once.
#[test]
fn key_of_another_type_fails_no_new_key_of_its_batch() {
    let server = Server::start();
    let mut connection = server.connect();
    let script = script();
    for (keys, foreign) in [(&["a", "list"][..], 1), (&["list", "b"], 0), (&["c", "d", "e", "list", "f"], 3)] {
        redis::cmd("DEL").arg(keys).exec(&mut connection).expect("done");
        redis::cmd("RPUSH").arg("list").arg("element").exec(&mut connection).expect("done");
        let verdicts = decide(&script, &mut connection, keys, true);
        let used = |key: &str, connection: &mut redis::Connection| {
            let value: Vec<u8> = redis::cmd("GET").arg(key).query(connection).expect("a value");
            f64::from_le_bytes(value[8..16].try_into().expect("eight bytes"))
        };
        for (index, key) in keys.iter().enumerate() {
            if index == foreign {
                assert_eq!(verdicts[index], INVALID_STATE, "{keys:?}");
            } else {
                assert_eq!((verdicts[index], used(key, &mut connection)), (0.0, 1.0), "{keys:?}: {key}");
            }
        }
        let elements: u64 = redis::cmd("LLEN").arg("list").query(&mut connection).expect("a list");
        assert_eq!(elements, 1);
    }
}
