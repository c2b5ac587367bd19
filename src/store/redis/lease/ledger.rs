//! The accounts of one lease: pure transitions, without clock, lock or I/O.
//!
//! Times are in microseconds. The process's own times come from its monotonic clock. `expiry` is a time of the server,
//! which the process only sends back.

/// A report to the server, which also asks for a new grant. A report without a reply is sent again unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LeaseReport {
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum LeaseReply {
    /// The server has applied the report, and holds `held` units until `expiry`; 0 if it holds none. If the expiry is
    /// not later than before, the process must stop spending.
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
    pending: Option<LeaseReport>,
}

impl Ledger {
    /// The units that were spent since the last report, if `remaining` are left.
    pub(crate) fn spent_since(&self, remaining: u64) -> u64 {
        self.outstanding.saturating_sub(remaining)
    }

    /// The report that no reply has answered.
    pub(crate) fn pending(&self) -> Option<LeaseReport> {
        self.pending
    }

    /// Returns that report, which is sent again as it is, unless its grant would come too late.
    pub(crate) fn report_again(&self, usable: u64, now: u64) -> Option<LeaseReport> {
        self.pending.filter(|report| now < report.sent_at + usable)
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
    pub(crate) fn report(&mut self, remaining: u64, keep: u64, want: u64, now: u64) -> LeaseReport {
        self.spent += self.spent_since(remaining);
        self.outstanding = keep;
        self.sequence += 1;
        let report = LeaseReport {
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
    pub(crate) fn reply(&mut self, sequence: u64, reply: LeaseReply, usable: u64, now: u64) -> Option<Change> {
        let report = self.pending.filter(|report| report.sequence == sequence)?;
        self.pending = None;
        match reply {
            LeaseReply::Applied { held, expiry } => {
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
            LeaseReply::Expired | LeaseReply::Refused => {
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

#[cfg(test)]
mod tests {
    use super::*;

    const USABLE: u64 = 90;

    fn applied(held: u64, expiry: u64) -> LeaseReply {
        LeaseReply::Applied { held, expiry }
    }

    /// A ledger with ten units, granted to a report of the time 0.
    fn with_ten() -> Ledger {
        let mut ledger = Ledger::default();
        let report = ledger.report(0, 0, 10, 0);
        let change = ledger.reply(report.sequence, applied(10, 1_100), USABLE, 5);
        assert_eq!(change, Some(Change::Granted { units: 10, deadline: 90 }));
        ledger
    }

    #[test]
    fn reports_what_was_spent_and_counts_the_deadline_from_the_first_sending() {
        let mut ledger = with_ten();
        let report = ledger.report(4, 4, 8, 50);
        assert_eq!((report.spent, report.unconfirmed, report.keep, report.expiry), (6, 6, 4, 1_100));
        assert_eq!(ledger.pending(), Some(report), "sent again as it is");
        let change = ledger.reply(report.sequence, applied(8, 1_150), USABLE, 60);
        assert_eq!(change, Some(Change::Granted { units: 4, deadline: 140 }));
        assert_eq!(ledger.spent_since(8), 0);
    }

    /// The next report carries the sum of the unanswered one, so the server charges it once, whether or not it came.
    #[test]
    fn report_that_was_given_up_is_part_of_the_next() {
        let mut ledger = with_ten();
        let first = ledger.report(4, 4, 8, 50);
        let second = ledger.report(1, 0, 0, 150);
        assert_eq!((second.spent, second.unconfirmed, second.expiry), (9, 9, 1_100));
        assert_eq!(ledger.reply(first.sequence, applied(8, 1_150), USABLE, 160), None, "late");
        let change = ledger.reply(second.sequence, applied(0, 1_250), USABLE, 160);
        assert_eq!(change, Some(Change::Granted { units: 0, deadline: 240 }));
        assert!(ledger.is_settled());
    }

    #[test]
    fn expired_hold_settles_what_was_spent_after_the_report() {
        let mut ledger = with_ten();
        let report = ledger.report(4, 4, 8, 50);
        assert_eq!(ledger.reply(report.sequence, LeaseReply::Expired, USABLE, 200), Some(Change::Lost));
        assert!(ledger.is_settled());
        let next = ledger.report(0, 0, 8, 210);
        assert_eq!((next.unconfirmed, next.expiry), (0, 0), "a new hold");
    }

    /// The next report releases a grant that came too late.
    #[test]
    fn late_grant_is_not_spent() {
        let mut ledger = Ledger::default();
        let report = ledger.report(0, 0, 10, 0);
        let change = ledger.reply(report.sequence, applied(10, 1_100), USABLE, 90);
        assert_eq!(change, Some(Change::Granted { units: 0, deadline: 90 }));
        assert!(!ledger.is_settled());
        assert_eq!(ledger.report(0, 0, 0, 95).expiry, 1_100);
    }

    #[test]
    fn unchanged_expiry_stops_spending() {
        let mut ledger = with_ten();
        let report = ledger.report(4, 4, 8, 50);
        assert_eq!(ledger.reply(report.sequence, applied(4, 1_100), USABLE, 60), Some(Change::Stop));
        ledger.stop(3);
        let next = ledger.report(0, 0, 0, 70);
        assert_eq!((next.spent, next.unconfirmed, next.keep), (7, 1, 0));
    }
}
