//! Laws of what only stores use: the atomic forms of states, and the parts of a Lua script.

use std::fmt::Debug;

use super::*;

/// A state gets its words when it is cleared, keeps what is applied, and is the zero state after it is cleared again.
fn assert_state_is_kept<S: State, T: Debug + PartialEq>(
    before: &S,
    next: impl Fn() -> S::Next,
    words: usize,
    parts: fn(&S) -> T,
) {
    let mut state = S::empty();
    assert_eq!((state.idle_at(), state.heap_bytes()), (0, 0));
    state.clear(words);
    let zero = parts(&state);
    assert_eq!(state.idle_at(), 0);
    state.clone_from(before);
    state.apply(next());
    assert!(S::next_state(&next()).is_none_or(|next| parts(next) == parts(&state)));
    let mut stored = Vec::new();
    state.to_stored(&mut stored);
    let mut read = S::from_stored(&stored).expect("numbers of a state");
    assert!(read.fit(words));
    assert_eq!((parts(&read), read.idle_at()), (parts(&state), state.idle_at()));
    let heap = state.heap_bytes();
    state.clear(words);
    assert_eq!((parts(&state), state.idle_at(), state.heap_bytes()), (zero, 0, heap));
}

fn log(idle_at: u64, period: u64, hits: &[(u64, u64)]) -> HitLog {
    HitLog::new(idle_at, period, hits.iter().copied().collect())
}

fn kept(period: u64, limit: u64) -> KeptFor {
    KeptFor::default().charged(Reach { period, limit }, 0)
}

fn counters(words: &[u64]) -> Counters {
    Counters::from_numbers(words)
}

#[test]
fn words_keep_states() {
    assert_state_is_kept(&[7, 8, 9], || [4, 5, 6], 5, |&state| state);
    assert_eq!(<[u64; 3]>::next_state(&[4, 5, 6]), Some(&[4, 5, 6]));
    assert_eq!(<[u64; 3]>::from_stored(&[7, 8]), None);
}

#[test]
fn counters_keep_states() {
    let edit = CountersEdit::new([4, 5, 6, 1], |state, words| {
        for (word, more) in state.iter_mut().zip(words) {
            *word += more;
        }
    });
    for words in [3, 4, 66] {
        let before =
            || Counters::from_numbers(&[7, 8, 9].iter().copied().chain(vec![0; words - 3]).collect::<Vec<_>>());
        assert_state_is_kept(&before(), || edit, words, |state| state.to_vec());
    }
    let has_snapshot = |edit| Counters::next_snapshot(&edit).is_some();
    assert!(!has_snapshot(edit) && has_snapshot(edit.with_snapshot(LazySnapshot::EMPTY)));
    // The first word must exist: it is the time at which the key is idle.
    for (words, expected) in [(0, 1), (1, 1), (7, 7), (134, 134), (135, 134)] {
        let mut state = <Counters as State>::empty();
        state.clear(words);
        assert_eq!((state.len(), state.heap_bytes()), (expected, expected * size_of::<u64>()));
    }
    assert!(!counters(&[1, 2, 3]).fit(2), "the third word is in use");
    assert_eq!((Counters::zero(0).idle_at(), Counters::zero(140).len()), (0, Counters::MAX_WORDS));
}

#[test]
fn log_keeps_states() {
    let parts = |state: &HitLog| (state.clone(), state.total_without(0));
    let full = || log(30, 20, &[(7, 1), (8, 2), (10, 3)]);
    let hit = |expired, hit| HitLogEdit::new(expired, hit, 3, 5, 40);
    // A new hit, one in the same microsecond as the newest hit, and one for which the full log adds the oldest hit to the next
    // one.
    for (edit, hits, total) in [
        (hit(1, (12, 4)), &[(8, 2), (10, 3), (12, 4)][..], 9),
        (hit(3, (12, 4)), &[(12, 4)], 4),
        (hit(9, (12, 4)), &[(12, 4)], 4),
        (hit(2, (10, 4)), &[(10, 7)], 7),
        (hit(0, (12, 4)), &[(8, 3), (10, 3), (12, 4)], 10),
    ] {
        assert_state_is_kept(&full(), || edit, 1, parts);
        let mut state = full();
        state.apply(edit);
        assert_eq!(parts(&state), (HitLog::with_kept(40, kept(5, 3), hits.iter().copied().collect()), total));
    }
    let mut saturated = log(30, 20, &[(7, u64::MAX - 1)]);
    saturated.apply(hit(0, (7, 4)));
    assert_eq!((saturated.hits()[0], saturated.total_without(0)), ((7, u64::MAX), u64::MAX.into()));
}

/// Stores count the bytes of logs, so a log reserves no more than it needs soon, and never more than its limit.
#[test]
fn log_reserves_at_most_its_limit_and_at_least_doubles() {
    for max_hits in [1, 3, 5, 6, 7, 9, 100] {
        let (mut log, mut growths) = (<HitLog as State>::empty(), 0);
        for hits in 1..=max_hits {
            let before = log.heap_bytes();
            log.apply(HitLogEdit::new(0, (hits as u64, 1), max_hits as u64, 1, 1));
            let bytes = log.heap_bytes();
            assert!((hits * 16..=max_hits * 16).contains(&bytes), "{bytes} bytes for {hits} of {max_hits} hits");
            growths += u32::from(bytes > before);
        }
        assert!(growths <= 1 + max_hits.div_ceil(4).ilog2() + 1, "{growths} growths for {max_hits} hits");
    }
}

#[test]
fn numbers_of_a_state_survive_the_way_to_redis() {
    let numbers_of = |state: &dyn Fn(&mut Vec<u64>)| {
        let mut numbers = vec![1];
        state(&mut numbers);
        numbers
    };
    assert_eq!(numbers_of(&|numbers| [7, 8].to_numbers(numbers)), [1, 7, 8]);
    assert_eq!(numbers_of(&|numbers| counters(&[7, 8]).to_numbers(numbers)), [1, 7, 8]);
    assert_eq!(<[u64; 3]>::from_numbers(&[7, 8]), [7, 8, 0]);
    assert_eq!(*Counters::from_numbers(&[7, 8, 9]), [7, 8, 9]);
    // A log is never sent as a whole.
    assert_eq!(numbers_of(&|numbers| log(9, 3, &[(6, 1)]).to_numbers(numbers)), [1]);
    assert_eq!(HitLog::from_numbers(&[7, 8, 9]), HitLog::default());
}

#[cfg(feature = "redis")]
#[test]
fn lua_script_has_the_parts_that_it_is_built_from() {
    let script = LuaScript::new("name", "source");
    assert_eq!((script.name(), script.source(), script.fast_path(1)), ("name", "source", None));
    assert_eq!(script.state_encoding(), StateEncoding::Full);
    assert_eq!(script.with_fast_path("fast").fast_path(1), Some("fast"));
    assert_eq!(script.with_header().state_encoding(), StateEncoding::Header);
}
