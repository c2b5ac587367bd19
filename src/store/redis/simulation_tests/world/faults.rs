//! What each fault does to the network; the server has those of its own.

use super::{Event, WorldState};
use crate::store::redis::simulation_tests::scenario::{Fault, FaultKind};

impl WorldState {
    /// Resets all open connections. Data in flight is lost, but for so many bytes of the first reply.
    fn cut_all(&mut self, bytes: usize) {
        for index in 0..self.connections.len() {
            let connection = &mut self.connections[index];
            // A reset in flight arrives: without it the client does not learn that the connection has ended.
            if connection.to_client.data.iter().any(|data| data.is_last) {
                continue;
            }
            connection.to_server.data.clear();
            connection.to_client.data.truncate(1);
            for data in &mut connection.to_client.data {
                data.bytes.truncate(bytes.min(data.bytes.len().saturating_sub(1)));
                data.call = None;
            }
            self.end_connection(index);
        }
    }

    pub(super) fn begin_fault(&mut self, at: u64, index: usize) {
        let Fault { lasts, kind, .. } = self.faults[index];
        let until = at + lasts * 1000;
        self.note(|| format!("fault: {kind:?} for {lasts} ms"));
        match kind {
            FaultKind::Cut(bytes) => self.cut_all(bytes),
            FaultKind::CutInRequest(bytes) => self.cut_in_request = Some(bytes),
            FaultKind::CutInReply(bytes) => self.server.cut_in_reply = Some(bytes),
            FaultKind::HalfOpen { to_server, to_client } => {
                self.half_open_until = self.half_open_until.max(until);
                for connection in &mut self.connections {
                    for (pipe, loses) in
                        [(&mut connection.to_server, to_server), (&mut connection.to_client, to_client)]
                    {
                        pipe.loses_data |= loses;
                        if loses {
                            pipe.data.clear();
                        }
                    }
                }
            }
            FaultKind::Delay => {
                self.delayed_until = self.delayed_until.max(until);
                for (index, connection) in self.connections.iter_mut().enumerate() {
                    let (to_server, to_client) = (Event::ToServer(index), Event::ToClient(index));
                    for (pipe, event) in
                        [(&mut connection.to_server, to_server), (&mut connection.to_client, to_client)]
                    {
                        for data in &mut pipe.data {
                            data.arrives_at = data.arrives_at.max(until);
                        }
                        if !pipe.data.is_empty() {
                            pipe.last_arrival = pipe.last_arrival.max(until);
                            self.event_count += 1;
                            self.events.insert((until, self.event_count), event);
                        }
                    }
                }
            }
            FaultKind::Crash { keeps_data, refuses, .. } => {
                self.cut_all(0);
                self.server.crash(keeps_data, !refuses);
            }
            FaultKind::Stall => {}
            other => self.server.begin_fault(at, other, until),
        }
        self.add_event(until, Event::FaultEnds(index));
    }

    pub(super) fn end_fault(&mut self, index: usize) {
        let Fault { at, lasts, kind } = self.faults[index];
        if lasts > 0 {
            self.note(|| format!("fault ends: {kind:?}"));
        }
        match kind {
            FaultKind::Crash { loading, .. } => {
                self.server.restart(loading > 0);
                self.add_event((at + lasts + loading) * 1000, Event::LoadingEnds);
            }
            FaultKind::CutInRequest(_) => self.cut_in_request = None,
            other => self.server.end_fault((at + lasts) * 1000, other),
        }
    }
}
