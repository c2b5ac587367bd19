//! Laws of what only stores use: the atomic forms of states, and the parts of a Lua script.

use std::fmt::Debug;

use super::*;
use crate::sync::AtomicU64;

fn zero<A: AtomicState>(atomic: &A) -> A::Snapshot<'_> {
    let mut zero = A::empty();
    atomic.read_zero(&mut zero);
    zero
}

/// A state that is written to the atomic form is read back, moved and cleared.
fn assert_atomic_form_keeps_states<S: State, T: Debug + PartialEq>(states: &[S], words: usize, parts: fn(&S) -> T) {
    for state in states {
        let (atomic, moved) = (S::AtomicState::new(words), S::AtomicState::new(words));
        let zero = parts(&zero(&atomic));
        assert_eq!((&parts(&atomic.snapshot()), atomic.idle_at()), (&zero, 0));
        *atomic.edit() = state.clone();
        assert_eq!((parts(&atomic.snapshot()), atomic.idle_at()), (parts(state), state.idle_at()));
        assert_eq!(parts(&atomic.edit()), parts(state));
        let mut snapshot = atomic.snapshot();
        atomic.read_zero(&mut snapshot);
        assert_eq!(parts(&snapshot), zero);
        drop(snapshot);
        moved.copy_from(&atomic);
        assert_eq!((parts(&moved.snapshot()), moved.idle_at()), (parts(state), state.idle_at()));
        moved.clear();
        assert_eq!((parts(&moved.snapshot()), moved.idle_at()), (zero, 0));
    }
}

/// The next state is stored, `read` sees it, and a preview of it equals it.
fn assert_next_state_is_stored<S: State, T: Debug + PartialEq>(
    before: &S,
    next: impl Fn() -> S::Next,
    words: usize,
    parts: fn(&S) -> T,
) {
    let atomic = S::AtomicState::new(words);
    *atomic.edit() = before.clone();
    let mut after = before.clone();
    after.apply(next());
    assert!(S::next_state(&next()).is_none_or(|state| parts(state) == parts(&after)));
    let mut present = atomic.snapshot();
    assert_eq!(atomic.apply(&mut present, next(), parts), parts(&after));
    // The snapshot of a log is a lock guard.
    drop(present);
    assert_eq!((parts(&atomic.snapshot()), atomic.idle_at()), (parts(&after), after.idle_at()));
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
fn atomic_words_keep_states() {
    assert_atomic_form_keeps_states(&[[7, 8, 9], [0; 3], [u64::MAX, 1, 2]], 5, |&state| state);
    assert_next_state_is_stored(&[7, 8, 9], || [4, 5, 6], 5, |&state| state);
    assert_eq!(<[u64; 3]>::next_state(&[4, 5, 6]), Some(&[4, 5, 6]));
    assert_eq!(<[AtomicU64; 3]>::new(5).heap_bytes(), 0);
}

#[test]
fn atomic_counters_keep_states() {
    let parts = |state: &Counters| state.to_vec();
    // A copy takes four words at a time, and then the rest.
    for len in 1..=Counters::MAX_WORDS {
        let words: Vec<_> = (1..=len as u64).map(|word| word * 7).collect();
        assert_atomic_form_keeps_states(&[counters(&words), counters(&vec![0; len])], len, parts);
    }
    let edit = CountersEdit::new([4, 5, 6, 1], |state, words| {
        for (word, more) in state.iter_mut().zip(words) {
            *word += more;
        }
    });
    assert_next_state_is_stored(&counters(&[7, 8, 9]), || edit, 3, parts);
    let has_snapshot = |edit| Counters::next_snapshot(&edit).is_some();
    assert!(!has_snapshot(edit) && has_snapshot(edit.with_snapshot(LazySnapshot::EMPTY)));
    // The first word must exist: it is the time at which the key is idle.
    for (words, expected) in [(0, 1), (1, 1), (7, 7), (134, 134), (135, 134)] {
        let atomic = <Counters as State>::AtomicState::new(words);
        assert_eq!((zero(&atomic).len(), atomic.heap_bytes()), (expected, expected * size_of::<u64>()));
    }
    assert_eq!((Counters::zero(0).idle_at(), Counters::zero(140).len()), (0, Counters::MAX_WORDS));
}

#[test]
fn atomic_log_keeps_states() {
    let parts = |state: &HitLog| (state.clone(), state.total_without(0));
    let full = || log(30, 20, &[(7, 1), (8, 2), (10, 3)]);
    assert_atomic_form_keeps_states(&[full(), HitLog::default()], 1, parts);
    let hit = |expired, hit| HitLogEdit::new(expired, hit, 3, 5, 40);
    // A new hit, one in the same microsecond as the newest hit, and one for which the full log adds the oldest hit to the next one.
    for (edit, hits, total) in [
        (hit(1, (12, 4)), &[(8, 2), (10, 3), (12, 4)][..], 9),
        (hit(3, (12, 4)), &[(12, 4)], 4),
        (hit(9, (12, 4)), &[(12, 4)], 4),
        (hit(2, (10, 4)), &[(10, 7)], 7),
        (hit(0, (12, 4)), &[(8, 3), (10, 3), (12, 4)], 10),
    ] {
        assert_next_state_is_stored(&full(), || edit, 1, parts);
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
        let (atomic, mut growths) = (<HitLog as State>::AtomicState::new(1), 0);
        assert_eq!(atomic.heap_bytes(), 0);
        for hits in 1..=max_hits {
            let before = atomic.heap_bytes();
            let edit = HitLogEdit::new(0, (hits as u64, 1), max_hits as u64, 1, 1);
            let bytes = atomic.apply(&mut atomic.snapshot(), edit, |log| log.hits().capacity() * 16);
            assert_eq!(atomic.heap_bytes(), bytes);
            assert!((hits * 16..=max_hits * 16).contains(&bytes), "{bytes} bytes for {hits} of {max_hits} hits");
            growths += u32::from(bytes > before);
        }
        assert!(growths <= 1 + max_hits.div_ceil(4).ilog2() + 1, "{growths} growths for {max_hits} hits");
        // The next key of the slot uses the allocation again.
        let before = atomic.heap_bytes();
        atomic.clear();
        assert_eq!(atomic.heap_bytes(), before);
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
    assert_eq!((script.name(), script.source(), script.fast_path()), ("name", "source", None));
    assert_eq!(script.state_encoding(), StateEncoding::Full);
    assert_eq!(script.with_fast_path("fast").fast_path(), Some("fast"));
    assert_eq!(script.with_header().state_encoding(), StateEncoding::Header);
}
