//! The accounts of one lease: pure transitions, without clock, lock or I/O.
//!
//! Times are in microseconds. The process's own times come from its monotonic clock. `expiry` is a time of the server,
//! which the process only sends back.

/// A report to the server, which also asks for a new grant. A report without a reply is sent again unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Report {
    /// The number of the report. The server applies each number once, and none after a higher one.
    pub(crate) sequence: u64,
    /// All units that the process has spent since the lease began.
    pub(crate) spent: u64,
    /// The part of them that no reply has confirmed: charged if the server has lost its data.
    pub(crate) unconfirmed: u64,
    /// The units that the process may still spend. The server releases all others.
    pub(crate) keep: u64,
    /// The units that the process wants to hold after the report.
    pub(crate) want: u64,
    /// The server's expiry of the hold that the report is about; 0 if nothing is held.
    pub(crate) expiry: u64,
    /// When the report was first sent, by the process's clock.
    pub(crate) sent_at: u64,
}

/// The server's reply to a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Reply {
    /// The server has applied the report, and holds `held` units until `expiry`; 0 if it holds none. If the expiry is
    /// not later than before, the process must stop to spend.
    Applied { held: u64, expiry: u64 },
    /// The hold has expired, and the server has charged it whole. The report had no effect.
    Expired,
    /// The server holds nothing for the lease.
    Refused,
}

/// What a reply changes for the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Change {
    /// The process may spend `units` more, and everything until `deadline`.
    Granted { units: u64, deadline: u64 },
    /// The process must spend nothing more. What it has spent is still to be reported: see [`Ledger::stop`].
    Stop,
    /// The process must spend nothing more. The server has charged what it has spent.
    Lost,
}

/// What a process knows about its hold on one key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Ledger {
    sequence: u64,
    /// The units that the process could spend after the last change: the current remainder, and what was spent since.
    outstanding: u64,
    spent: u64,
    confirmed: u64,
    expiry: u64,
    /// The report that no reply has answered.
    pending: Option<Report>,
}

impl Ledger {
    /// The units that were spent since the last report, if `remaining` are left.
    pub(crate) fn spent_since(&self, remaining: u64) -> u64 {
        self.outstanding.saturating_sub(remaining)
    }

    /// The report that no reply has answered.
    pub(crate) fn pending(&self) -> Option<Report> {
        self.pending
    }

    /// Whether the server holds nothing, and has been told everything.
    pub(crate) fn is_settled(&self) -> bool {
        self.pending.is_none() && self.expiry == 0 && self.outstanding == 0 && self.spent == self.confirmed
    }

    /// Makes the next report. `remaining` units were left, of which the process keeps `keep`.
    ///
    /// The caller must have reduced the remainder to `keep`, and begun a new generation, in one atomic operation: a unit
    /// that is spent after that belongs to the next report.
    ///
    /// An unanswered report is given up. The new one carries its sums as well.
    pub(crate) fn report(&mut self, remaining: u64, keep: u64, want: u64, now: u64) -> Report {
        self.spent += self.spent_since(remaining);
        self.outstanding = keep;
        self.sequence += 1;
        let report = Report {
            sequence: self.sequence,
            spent: self.spent,
            unconfirmed: self.spent - self.confirmed,
            keep,
            want,
            expiry: self.expiry,
            sent_at: now,
        };
        self.pending = Some(report);
        report
    }

    /// Applies the reply to the pending report with this number. A reply to another report changes nothing.
    ///
    /// The server's expiry is at least `usable` after it received the report, so the deadline counts from the first time
    /// that the report was sent.
    pub(crate) fn reply(&mut self, sequence: u64, reply: Reply, usable: u64, now: u64) -> Option<Change> {
        let report = self.pending.filter(|report| report.sequence == sequence)?;
        self.pending = None;
        match reply {
            Reply::Applied { held, expiry } => {
                self.confirmed = report.spent;
                if held > 0 && expiry <= report.expiry {
                    return Some(Change::Stop);
                }
                self.expiry = if held > 0 || report.expiry > 0 { expiry } else { 0 };
                let deadline = report.sent_at + usable;
                // Of a reply that comes too late the next report releases the grant.
                let units = if now < deadline { held.saturating_sub(report.keep) } else { 0 };
                self.outstanding += units;
                if held == 0 && self.outstanding == 0 {
                    self.expiry = 0;
                }
                Some(Change::Granted { units, deadline })
            }
            Reply::Expired | Reply::Refused => {
                // What was spent after the report belonged to the same hold, and is charged with it.
                (self.confirmed, self.outstanding, self.expiry) = (self.spent, 0, 0);
                Some(Change::Lost)
            }
        }
    }

    /// The process has stopped to spend, when `remaining` units were left.
    pub(crate) fn stop(&mut self, remaining: u64) {
        self.spent += self.spent_since(remaining);
        self.outstanding = 0;
    }
}
