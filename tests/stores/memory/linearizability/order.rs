//! Searches for a sequential order that explains a history.

use std::collections::HashSet;
use std::fmt;

use tower_ratelimit::Timestamp;

use super::model::{Model, Undo};
use super::recording::{Event, History};

/// Statistics of an explained history.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Explained {
    /// The number of calls.
    pub(crate) calls: usize,
    /// The number of calls that overlapped a call of another thread.
    pub(crate) overlapping: usize,
}

/// No order explains the history. Holds the length of the longest prefix and the calls that could follow.
pub(crate) struct Unexplained(String);

impl fmt::Debug for Unexplained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Searches depth first for a sequential order, and visits no pair of (calls made, model state) twice.
///
/// Only that pair determines whether the remaining calls can be explained. (Wing and Gong's search with Lowe's cache.)
///
/// # Errors
///
/// If no sequential order gives the recorded results.
pub(crate) fn explain(threads: &[History], mut model: Model) -> Result<Explained, Unexplained> {
    let calls = threads.iter().map(Vec::len).sum();
    let mut search = Search { threads, made: vec![0; threads.len()] };
    let mut seen = HashSet::new();
    let mut longest = (0, search.made.clone());
    let mut nodes = vec![Node { reached_by: None, untried: search.candidates() }];
    while let Some(node) = nodes.last_mut() {
        let Some((thread, now)) = node.untried.pop() else {
            if let Some((thread, undo)) = nodes.pop().and_then(|node| node.reached_by) {
                search.made[thread] -= 1;
                model.undo(undo);
            }
            continue;
        };
        let Some(undo) = search.next_of(thread).and_then(|event| model.apply(&event.step, now)) else { continue };
        search.made[thread] += 1;
        if !seen.insert((search.made.clone(), model.digest())) {
            search.made[thread] -= 1;
            model.undo(undo);
            continue;
        }
        if nodes.len() > longest.0 {
            longest = (nodes.len(), search.made.clone());
        }
        if nodes.len() == calls {
            return Ok(Explained { calls, overlapping: overlapping(threads) });
        }
        nodes.push(Node { reached_by: Some((thread, undo)), untried: search.candidates() });
    }
    search.made = longest.1;
    if calls == 0 {
        return Ok(Explained::default());
    }
    let next: Vec<_> = (0..threads.len()).filter_map(|thread| search.next_of(thread)).collect();
    Err(Unexplained(format!(
        "no sequential order: after {} of {calls} calls the model rejects each of {next:#?}",
        longest.0
    )))
}

struct Search<'a> {
    threads: &'a [History],
    /// The number of ordered calls of each thread.
    made: Vec<usize>,
}

/// A node of the search: the call that led to it and its undo record, and the untried next threads with their times.
struct Node {
    reached_by: Option<(usize, Undo)>,
    untried: Vec<(usize, Timestamp)>,
}

impl<'a> Search<'a> {
    fn next_of(&self, thread: usize) -> Option<&'a Event> {
        self.threads[thread].get(self.made[thread])
    }

    /// The threads whose next call started before any other next call returned. The search tries the last one first:
    /// the thread whose call returned first.
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
