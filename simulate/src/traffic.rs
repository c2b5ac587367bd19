use std::borrow::Cow;
use std::collections::HashMap;

use tower_ratelimit::Timestamp;
use tower_ratelimit::config::Policy;

/// The name of the sub-key that is the same for all requests: it needs no column.
pub(super) const ALL: &str = "all";

/// Recorded or generated arrivals, whose keys are the values of named columns.
///
/// ```
/// use tower_ratelimit::Timestamp;
/// use tower_ratelimit_simulate::Traffic;
///
/// let mut traffic = Traffic::new(["user", "organisation"]);
/// traffic.push(Timestamp::from_micros(7), &["alice", "acme"], 1);
/// assert_eq!(traffic.len(), 1);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Traffic {
    columns: Vec<String>,
    arrivals: Vec<Arrival>,
    /// Whether no arrival is earlier than the one before it.
    is_sorted: bool,
    /// The values of each column.
    values: Vec<Values>,
    /// The distinct rows: for each column the index of its value.
    rows: Vec<Box<[usize]>>,
    row_indices: HashMap<Box<[usize]>, usize>,
    /// The row of the latest call of `push`, kept to reuse its allocation.
    row: Vec<usize>,
}

/// One request of the traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The time of the request.
    pub time: Timestamp,
    /// The cost of the request.
    pub cost: u64,
    pub(super) row: usize,
}

/// The distinct values of one column, in the order of their first use.
#[derive(Clone, Debug, Default)]
struct Values {
    names: Vec<Box<str>>,
    indices: HashMap<Box<str>, usize>,
}

impl Values {
    fn index_of(&mut self, name: &str) -> usize {
        if let Some(&index) = self.indices.get(name) {
            return index;
        }
        self.indices.insert(name.into(), self.names.len());
        self.names.push(name.into());
        self.names.len() - 1
    }
}

impl Traffic {
    /// Creates empty traffic with these columns.
    #[must_use]
    pub fn new<N: Into<String>>(columns: impl IntoIterator<Item = N>) -> Self {
        let columns: Vec<String> = columns.into_iter().map(Into::into).collect();
        let values = columns.iter().map(|_| Values::default()).collect();
        Self { columns, values, is_sorted: true, ..Self::default() }
    }

    /// Creates empty traffic with the columns by which the policies count, all names but `all`, and those of their
    /// conditions and units.
    #[must_use]
    pub fn for_policies<'a>(policies: impl IntoIterator<Item = &'a Policy>) -> Self {
        let mut columns: Vec<Cow<'_, str>> = Vec::new();
        for policy in policies {
            let conditions = policy.when().into_iter().chain(policy.keep_free().map(|(name, _)| name.into()));
            let names = [policy.by()]
                .into_iter()
                .filter(|by| *by != ALL)
                .chain(conditions)
                .chain(policy.unit().map(Into::into));
            for name in names {
                if !columns.contains(&name) {
                    columns.push(name);
                }
            }
        }
        Self::new(columns)
    }

    /// Returns the names of the columns.
    #[must_use]
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// Adds an arrival with one value for each column. A missing value counts as empty text.
    ///
    /// Arrivals need not be added in the order of time. Arrivals at the same time are decided in the order in which
    /// they were added.
    pub fn push(&mut self, time: Timestamp, values: &[impl AsRef<str>], cost: u64) {
        self.row.clear();
        for (index, column) in self.values.iter_mut().enumerate() {
            self.row.push(column.index_of(values.get(index).map_or("", AsRef::as_ref)));
        }
        let row = self.row_indices.get(&*self.row).copied().unwrap_or_else(|| {
            let row: Box<[usize]> = self.row.as_slice().into();
            self.row_indices.insert(row.clone(), self.rows.len());
            self.rows.push(row);
            self.rows.len() - 1
        });
        self.is_sorted &= self.arrivals.last().is_none_or(|last| last.time <= time);
        self.arrivals.push(Arrival { time, cost, row });
    }

    /// Returns the number of arrivals.
    #[must_use]
    pub fn len(&self) -> usize {
        self.arrivals.len()
    }

    /// Returns whether there is no arrival.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.arrivals.is_empty()
    }

    /// Returns the arrivals in the order of time.
    #[must_use]
    pub fn arrivals(&self) -> Cow<'_, [Arrival]> {
        if self.is_sorted {
            return Cow::Borrowed(&self.arrivals);
        }
        let mut arrivals = self.arrivals.clone();
        arrivals.sort_by_key(|arrival| arrival.time);
        Cow::Owned(arrivals)
    }

    /// Returns the values of an arrival in the order of the columns.
    pub fn values(&self, arrival: &Arrival) -> impl Iterator<Item = &str> {
        self.row(arrival).iter().enumerate().map(|(column, &value)| self.value(column, value))
    }

    /// Returns the key of an arrival in the limiter: the index of the value in each column.
    pub(super) fn row(&self, arrival: &Arrival) -> &[usize] {
        self.rows.get(arrival.row).map_or(&[], |row| row)
    }

    pub(super) fn rows(&self) -> &[Box<[usize]>] {
        &self.rows
    }

    /// Returns a value by its index in a column.
    pub(super) fn value(&self, column: usize, index: usize) -> &str {
        self.values.get(column).and_then(|values| values.names.get(index)).map_or("", |name| name)
    }

    /// Returns the distinct values of a column.
    pub(super) fn distinct(&self, column: usize) -> impl Iterator<Item = &str> {
        self.values.get(column).into_iter().flat_map(|values| values.names.iter().map(|name| &**name))
    }

    /// Returns the index of a value in a column, if an arrival has it.
    pub(super) fn value_index(&self, column: usize, name: &str) -> Option<usize> {
        self.values.get(column).and_then(|values| values.indices.get(name).copied())
    }

    pub(super) fn column_index(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_are_in_the_order_of_time_then_of_insertion() {
        let mut traffic = Traffic::new(["user"]);
        for (time, user) in [(3, "a"), (1, "b"), (3, "c"), (2, "b")] {
            traffic.push(Timestamp::from_micros(time), &[user], 1);
        }
        let arrivals = traffic.arrivals();
        let users: Vec<_> = arrivals.iter().flat_map(|arrival| traffic.values(arrival)).collect();
        assert_eq!(users, ["b", "b", "a", "c"]);
    }

    #[test]
    fn equal_rows_are_stored_once() {
        let mut traffic = Traffic::new(["user", "team"]);
        for (user, team) in [("a", "x"), ("a", "y"), ("a", "x"), ("b", "x")] {
            traffic.push(Timestamp::EPOCH, &[user, team], 1);
        }
        assert_eq!(traffic.rows().len(), 3);
    }
}
