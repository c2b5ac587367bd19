use redis::{Value, from_redis_value_ref};

use super::slot::SLOT_COUNT;

/// The host and port of a node.
pub(super) type NodeAddress = (String, u16);

/// The node that serves each slot, as far as this process knows.
#[derive(Clone, Default)]
pub(super) struct SlotMap {
    /// All nodes ever seen. Nodes are never removed, so a node keeps its index.
    nodes: Vec<NodeAddress>,
    /// The index of the node that serves each slot. Empty before the first reply.
    owners: Vec<u16>,
}

impl SlotMap {
    pub(super) fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    pub(super) fn nodes(&self) -> &[NodeAddress] {
        &self.nodes
    }

    /// The index of the node that serves a slot; 0 before the first reply.
    pub(super) fn owner(&self, slot: u16) -> usize {
        self.owners.get(usize::from(slot)).copied().map_or(0, usize::from)
    }

    /// The nodes that serve at least one slot.
    pub(super) fn slot_owners(&self) -> Vec<&NodeAddress> {
        let owns = |index: usize| self.owners.iter().any(|owner| usize::from(*owner) == index);
        let nodes = self.nodes.iter().enumerate();
        nodes.filter(|(index, _)| owns(*index)).map(|(_, node)| node).collect()
    }

    /// Returns the index of a node, and adds the node if it is new.
    pub(super) fn index_of(&mut self, address: &NodeAddress) -> usize {
        let known = self.nodes.iter().position(|known| known == address);
        known.unwrap_or_else(|| {
            self.nodes.push(address.clone());
            self.nodes.len() - 1
        })
    }

    pub(super) fn set_owner(&mut self, slot: u16, node: usize) {
        if let (Some(owner), Ok(node)) = (self.owners.get_mut(usize::from(slot)), u16::try_from(node)) {
            *owner = node;
        }
    }

    /// Returns this map updated by a reply to CLUSTER SLOTS, or `None` if the reply assigns no slot.
    ///
    /// `asked_host` replaces the host of a node that does not know its own. Slots missing in the reply keep their node.
    pub(super) fn merge_reply(&self, reply: &Value, asked_host: &str) -> Option<Self> {
        let mut map = self.clone();
        let mut any = false;
        map.owners.resize(usize::from(SLOT_COUNT), 0);
        for range in array(reply)? {
            let [start, end, master, ..] = &array(&range)?[..] else { return None };
            // The conversion to `u16` would cut a number that is too large.
            let number = |value| u16::try_from(from_redis_value_ref::<i64>(value).ok()?).ok();
            let slot = |value| number(value).filter(|slot| *slot < SLOT_COUNT);
            let (start, end) = (slot(start)?, slot(end)?);
            let [host, port, ..] = &array(master)?[..] else { return None };
            let host = from_redis_value_ref::<String>(host).ok().filter(|host| !host.is_empty() && *host != "?");
            let address = (host.unwrap_or_else(|| asked_host.to_owned()), number(port)?);
            let node = map.index_of(&address);
            for slot in start..=end {
                map.set_owner(slot, node);
                any = true;
            }
        }
        any.then_some(map)
    }
}

fn array(value: &Value) -> Option<Vec<Value>> {
    from_redis_value_ref(value).ok()
}

/// Parses the address in a redirection, as in `127.0.0.1:7001`. Without a host it is the host that sent the
/// redirection.
pub(super) fn parse_node_address(text: &str, source_host: &str) -> Option<NodeAddress> {
    let (host, port) = text.rsplit_once(':')?;
    Some((if host.is_empty() { source_host } else { host }.to_owned(), port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::{SlotMap, parse_node_address};

    #[test]
    fn merge_reply_keeps_node_indexes() {
        let node = |host: &str, port| Value::Array(vec![Value::BulkString(host.into()), Value::Int(port)]);
        let range = |from, to, node| Value::Array(vec![Value::Int(from), Value::Int(to), node]);
        let first = Value::Array(vec![range(0, 99, node("a", 1)), range(100, 16_383, node("", 2))]);
        let map = SlotMap::default().merge_reply(&first, "asked").expect("slots");
        assert_eq!(map.nodes(), [("a".to_owned(), 1), ("asked".to_owned(), 2)]);
        assert_eq!((map.owner(99), map.owner(100)), (0, 1));
        let second = Value::Array(vec![range(0, 16_383, node("c", 3))]);
        let map = map.merge_reply(&second, "asked").expect("slots");
        assert_eq!((map.owner(0), map.nodes().len(), map.slot_owners()), (2, 3, vec![&("c".to_owned(), 3)]));
        for invalid in [Value::Nil, Value::Array(vec![]), Value::Array(vec![range(0, 99_999, node("a", 1))])] {
            assert!(map.merge_reply(&invalid, "asked").is_none());
        }
    }

    #[test]
    fn parse_node_address_accepts_redirections() {
        assert_eq!(parse_node_address("10.0.0.1:7000", "x"), Some(("10.0.0.1".to_owned(), 7000)));
        assert_eq!(parse_node_address("::1:7000", "x"), Some(("::1".to_owned(), 7000)));
        assert_eq!(parse_node_address(":7000", "x"), Some(("x".to_owned(), 7000)));
        assert_eq!(parse_node_address("7000", "x"), None);
    }
}
