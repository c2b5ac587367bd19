//! Looks for an order of turns that explains what threads were told.

use std::collections::HashSet;
use std::fmt;

use tower_ratelimit::Timestamp;

use super::model::{Model, Undo};
use super::recording::{Event, History};

/// How a history was explained.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Explained {
    /// How many calls it had.
    pub(crate) calls: usize,
    /// How many of them another thread's call was under way with.
    pub(crate) overlapping: usize,
}

/// No order explains the history: how far the longest one came, and what comes next then.
pub(crate) struct Unexplained(String);

impl fmt::Debug for Unexplained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Tries the orders depth first, each call in turn that no other one had to precede, and comes to no place twice: which calls
/// were made and what is remembered then is all that matters for what follows. (Wing and Gong's search, with Lowe's memory.)
///
/// # Errors
///
/// If no order of turns gives these answers.
pub(crate) fn explain(threads: &[History], mut model: Model) -> Result<Explained, Unexplained> {
    let calls = threads.iter().map(Vec::len).sum();
    let mut search = Search { threads, made: vec![0; threads.len()] };
    let mut seen = HashSet::new();
    let mut longest = (0, search.made.clone());
    let mut turns = vec![Turn { came_by: None, untried: search.candidates() }];
    while let Some(turn) = turns.last_mut() {
        let Some((thread, now)) = turn.untried.pop() else {
            if let Some((thread, undo)) = turns.pop().and_then(|turn| turn.came_by) {
                search.made[thread] -= 1;
                model.undo(undo);
            }
            continue;
        };
        let Some(undo) = search.next_of(thread).and_then(|event| model.take_turn(&event.step, now)) else { continue };
        search.made[thread] += 1;
        if !seen.insert((search.made.clone(), model.digest())) {
            search.made[thread] -= 1;
            model.undo(undo);
            continue;
        }
        if turns.len() > longest.0 {
            longest = (turns.len(), search.made.clone());
        }
        if turns.len() == calls {
            return Ok(Explained { calls, overlapping: overlapping(threads) });
        }
        turns.push(Turn { came_by: Some((thread, undo)), untried: search.candidates() });
    }
    search.made = longest.1;
    if calls == 0 {
        return Ok(Explained::default());
    }
    let next: Vec<_> = (0..threads.len()).filter_map(|thread| search.next_of(thread)).collect();
    Err(Unexplained(format!("after {} of {calls} calls nothing explains any of {next:#?}", longest.0)))
}

struct Search<'a> {
    threads: &'a [History],
    /// How many of each thread's calls have had their turn.
    made: Vec<usize>,
}

/// A place in an order: the call that led there, and what to undo for it; the threads that may be next, and at what time.
struct Turn {
    came_by: Option<(usize, Undo)>,
    untried: Vec<(usize, Timestamp)>,
}

impl<'a> Search<'a> {
    fn next_of(&self, thread: usize) -> Option<&'a Event> {
        self.threads[thread].get(self.made[thread])
    }

    /// The threads whose next call began before any other next one had returned. The last of them is tried first: the one
    /// that returned first.
    fn candidates(&self) -> Vec<(usize, Timestamp)> {
        let next = || (0..self.threads.len()).filter_map(|thread| Some((thread, self.next_of(thread)?)));
        let first_return = next().map(|(_, event)| event.returned).min().unwrap_or(u64::MAX);
        let mut candidates: Vec<_> = next().filter(|(_, event)| event.called < first_return).collect();
        candidates.sort_by_key(|(_, event)| std::cmp::Reverse(event.returned));
        candidates.into_iter().flat_map(|(thread, event)| event.nows.iter().map(move |now| (thread, *now))).collect()
    }
}

fn overlapping(threads: &[History]) -> usize {
    let overlap = |one: &Event, other: &Event| one.called < other.returned && other.called < one.returned;
    let mut count = 0;
    for (index, history) in threads.iter().enumerate() {
        for event in history {
            let mut others = threads.iter().enumerate().filter(|(other, _)| *other != index);
            count += usize::from(others.any(|(_, other)| {
                let first = other.partition_point(|other| other.returned <= event.called);
                other.get(first).is_some_and(|other| overlap(event, other))
            }));
        }
    }
    count
}
