//! The requests in flight of one key by their deadlines, with the sums of their costs.
//!
//! A key can have any number of overdue requests. A decision must end all of them, because its answer depends on their
//! sum, and must not take a step for each of them. So the requests are in a treap: a binary search tree that is balanced
//! by random priorities. Each node stores the sum of its subtree, and splitting the tree at a time takes a number of steps
//! that grows with the logarithm of the number of requests.

use super::deadlines::Deadline;

/// The requests in flight of one key.
#[derive(Default)]
pub(super) struct Flights(Tree);

type Tree = Option<Box<Node>>;

pub(super) struct Node {
    deadline: Deadline,
    held: u64,
    /// The sum of the held costs in this subtree.
    sum: u64,
    priority: u64,
    left: Tree,
    right: Tree,
}

impl Flights {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the sum of the held costs.
    pub(super) fn sum(&self) -> u64 {
        sum(&self.0)
    }

    /// Returns the first and the last deadline.
    pub(super) fn ends(&self) -> Option<[Deadline; 2]> {
        let (mut first, mut last) = (self.0.as_deref()?, self.0.as_deref()?);
        while let Some(left) = first.left.as_deref() {
            first = left;
        }
        while let Some(right) = last.right.as_deref() {
            last = right;
        }
        Some([first.deadline, last.deadline])
    }

    /// Adds a request. Its deadline must be a new one.
    pub(super) fn insert(&mut self, deadline: Deadline, held: u64) {
        let node = Node { deadline, held, sum: held, priority: priority(deadline), left: None, right: None };
        let (before, after) = split(self.0.take(), deadline);
        self.0 = merge(merge(before, Some(Box::new(node))), after);
    }

    /// Removes a request. Returns `false` if it is absent.
    pub(super) fn remove(&mut self, deadline: Deadline) -> bool {
        let before_it = deadline.previous();
        let (rest, after) = split(self.0.take(), deadline);
        let (before, removed) = split(rest, before_it);
        self.0 = merge(before, after);
        removed.is_some()
    }

    /// Removes the requests up to a deadline, with that, and returns them.
    pub(super) fn take_until(&mut self, deadline: Deadline) -> Self {
        let (taken, rest) = split(self.0.take(), deadline);
        self.0 = rest;
        Self(taken)
    }

    /// Removes the requests after a deadline and returns them.
    pub(super) fn take_after(&mut self, deadline: Deadline) -> Self {
        let (rest, taken) = split(self.0.take(), deadline);
        self.0 = rest;
        Self(taken)
    }
}

/// Requests that have ended, and whose memory is still allocated.
#[derive(Default)]
#[allow(clippy::vec_box, reason = "the nodes of a tree, which are not moved")]
pub(super) struct Ended(Vec<Box<Node>>);

impl Ended {
    pub(super) fn add(&mut self, flights: Flights) {
        self.0.extend(flights.0);
    }

    /// Frees the memory of up to `max` requests. Returns their number.
    pub(super) fn free(&mut self, max: usize) -> usize {
        for freed in 0..max {
            let Some(mut node) = self.0.pop() else { return freed };
            self.0.extend(node.left.take());
            self.0.extend(node.right.take());
        }
        max
    }
}

fn sum(tree: &Tree) -> u64 {
    tree.as_ref().map_or(0, |node| node.sum)
}

impl Node {
    fn update(&mut self) {
        self.sum = sum(&self.left).saturating_add(self.held).saturating_add(sum(&self.right));
    }
}

/// Splits a tree into the nodes up to a deadline, with that, and the nodes after it.
// Recursive, as `merge`: the depth of a treap is logarithmic, in whatever order the deadlines come.
fn split(tree: Tree, deadline: Deadline) -> (Tree, Tree) {
    let Some(mut node) = tree else { return (None, None) };
    if node.deadline <= deadline {
        let (until, after) = split(node.right.take(), deadline);
        node.right = until;
        node.update();
        (Some(node), after)
    } else {
        let (until, after) = split(node.left.take(), deadline);
        node.left = after;
        node.update();
        (until, Some(node))
    }
}

/// Merges two trees. All deadlines of the first are before those of the second.
fn merge(first: Tree, second: Tree) -> Tree {
    let (mut one, mut other) = match (first, second) {
        (Some(one), Some(other)) => (one, other),
        (first, second) => return first.or(second),
    };
    if one.priority >= other.priority {
        one.right = merge(one.right.take(), Some(other));
        one.update();
        Some(one)
    } else {
        other.left = merge(Some(one), other.left.take());
        other.update();
        Some(other)
    }
}

/// Returns a number that looks random. Numbers of consecutive requests are unrelated.
fn priority(deadline: Deadline) -> u64 {
    // SplitMix64.
    let mixed = deadline.id.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}
