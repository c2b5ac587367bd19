use redis::Value;

use crate::store::redis::cluster::slot::SLOTS;

/// A node, as clients reach it: host and port.
pub(crate) type Address = (String, u16);

/// Which node holds which slot, as far as is known.
#[derive(Clone, Default)]
pub(crate) struct Map {
    /// All nodes that were ever known, so that a node keeps its index.
    nodes: Vec<Address>,
    /// The node of each slot. Empty if nothing is known yet.
    owners: Vec<u16>,
}

impl Map {
    pub(crate) fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    pub(crate) fn nodes(&self) -> &[Address] {
        &self.nodes
    }

    /// The node of a slot.
    pub(crate) fn owner(&self, slot: u16) -> usize {
        self.owners.get(usize::from(slot)).copied().map_or(0, usize::from)
    }

    /// The nodes that hold slots.
    pub(crate) fn holders(&self) -> Vec<&Address> {
        let mut holds = vec![false; self.nodes.len()];
        for &owner in &self.owners {
            if let Some(holds) = holds.get_mut(usize::from(owner)) {
                *holds = true;
            }
        }
        self.nodes.iter().zip(holds).filter_map(|(node, holds)| holds.then_some(node)).collect()
    }

    /// The index of a node, which it gets if it has none yet.
    pub(crate) fn index(&mut self, address: &Address) -> usize {
        let known = self.nodes.iter().position(|known| known == address);
        known.unwrap_or_else(|| {
            self.nodes.push(address.clone());
            self.nodes.len() - 1
        })
    }

    pub(crate) fn set_owner(&mut self, slot: u16, node: usize) {
        if let (Some(owner), Ok(node)) = (self.owners.get_mut(usize::from(slot)), u16::try_from(node)) {
            *owner = node;
        }
    }

    /// This map, brought up to date by a reply to CLUSTER SLOTS. `None` if that tells of no slots.
    ///
    /// A node that does not know its own host is at `asked`. Slots that nobody holds stay as they were.
    pub(crate) fn updated(&self, reply: &Value, asked: &str) -> Option<Self> {
        let mut map = self.clone();
        let mut any = false;
        map.owners.resize(usize::from(SLOTS), 0);
        for range in array(reply)? {
            let [start, end, master, ..] = array(range)? else { return None };
            let (start, end) = (slot(start)?, slot(end)?);
            let [host, port, ..] = array(master)? else { return None };
            let host = text(host).filter(|host| !host.is_empty() && *host != "?").unwrap_or(asked);
            let Value::Int(port) = port else { return None };
            let node = map.index(&(host.to_owned(), u16::try_from(*port).ok()?));
            for slot in start..=end {
                map.set_owner(slot, node);
                any = true;
            }
        }
        any.then_some(map)
    }
}

fn array(value: &Value) -> Option<&[Value]> {
    match value {
        Value::Array(values) => Some(values),
        _ => None,
    }
}

fn slot(value: &Value) -> Option<u16> {
    match value {
        Value::Int(slot) => u16::try_from(*slot).ok().filter(|slot| *slot < SLOTS),
        _ => None,
    }
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

/// Reads the node that an error names, as in `127.0.0.1:7001`; one without a host is where the asked one is.
pub(crate) fn address(text: &str, asked: &str) -> Option<Address> {
    let (host, port) = text.rsplit_once(':')?;
    Some((if host.is_empty() { asked } else { host }.to_owned(), port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::{Map, address};

    #[test]
    fn a_reply_is_read_and_nodes_keep_their_index() {
        let node = |host: &str, port| Value::Array(vec![Value::BulkString(host.into()), Value::Int(port)]);
        let range = |from, to, node| Value::Array(vec![Value::Int(from), Value::Int(to), node]);
        let first = Value::Array(vec![range(0, 99, node("a", 1)), range(100, 16_383, node("", 2))]);
        let map = Map::default().updated(&first, "here").expect("slots");
        assert_eq!(map.nodes(), [("a".to_owned(), 1), ("here".to_owned(), 2)]);
        assert_eq!((map.owner(99), map.owner(100)), (0, 1));
        let second = Value::Array(vec![range(0, 16_383, node("c", 3))]);
        let map = map.updated(&second, "here").expect("slots");
        assert_eq!((map.owner(0), map.nodes().len(), map.holders()), (2, 3, vec![&("c".to_owned(), 3)]));
        for nonsense in [Value::Nil, Value::Array(vec![]), Value::Array(vec![range(0, 99_999, node("a", 1))])] {
            assert!(map.updated(&nonsense, "here").is_none());
        }
    }

    #[test]
    fn redirections_are_read() {
        assert_eq!(address("10.0.0.1:7000", "x"), Some(("10.0.0.1".to_owned(), 7000)));
        assert_eq!(address("::1:7000", "x"), Some(("::1".to_owned(), 7000)));
        assert_eq!(address(":7000", "x"), Some(("x".to_owned(), 7000)));
        assert_eq!(address("7000", "x"), None);
    }
}
