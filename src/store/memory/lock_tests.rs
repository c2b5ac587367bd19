//! Decisions without held costs and ids take no lock that keys share.
//!
//! `constraints: architecture` lists the locks of a limiter in memory. Here one thread has all of them that are not of one
//! key, while another thread decides.

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use super::limit_table::LimitTable;
use super::{DefaultHashBuilder, DynLimit, Memory, MemoryLimits};
use crate::algorithm::{FixedWindow, Gcra, SlidingLog};
use crate::clock::ManualClock;
use crate::decision::AcquireOptions;
use crate::limit::{AlgorithmSelector, Limit};
use crate::quota::Quota;
use crate::table::WhenFull;

impl<C: AlgorithmSelector, P> LimitTable<C, P> {
    fn lock_shared(&self) -> impl Sized + '_ {
        (self.blocks.flagged(), self.deadlines.holds(), self.held_algorithms.lock(), self.table.lock_shared())
    }
}

/// Decides in another thread, on more keys than the tables store and until they are denied. `locked` has locks while it
/// calls its second argument.
fn decides_beside<L>(limits: L, locked: impl FnOnce(&L::Tables, &dyn Fn()))
where
    L: MemoryLimits<u64, DefaultHashBuilder> + 'static,
{
    let builder = Memory::<u64, L>::builder(limits).clock(ManualClock::new());
    let limiter = builder.max_keys(50).when_full(WhenFull::CarryOver).build().expect("valid limits");
    let shared = limiter.shared();
    let _reservations = shared.reservations.lock();
    locked(&shared.tables, &|| {
        let (sender, ended) = channel();
        let other = limiter.clone();
        thread::spawn(move || {
            let decisions = (0..500).flat_map(|key| [key; 4]).map(|key| other.check(&key, AcquireOptions::default()));
            let denied = decisions.filter(|decision| !decision.is_allowed()).count();
            sender.send(denied).expect("the test waits");
        });
        let denied = ended.recv_timeout(Duration::from_secs(60)).expect("a decision waits for one of the locks");
        assert!((1..2000).contains(&denied), "{denied} of 2000 are denied");
    });
}

#[test]
fn decisions_take_no_lock_that_keys_share() {
    let (bucket, window) = (Gcra::new(Quota::per_minute(3)), FixedWindow::new(Quota::per_minute(3)));
    let log = SlidingLog::new(Quota::per_minute(3));
    decides_beside(bucket, |table, decide| {
        let _locks = table.lock_shared();
        decide();
    });
    decides_beside(log, |table, decide| {
        let _locks = table.lock_shared();
        decide();
    });
    // A shadow, so that the transaction decides as well.
    let several = (Limit::new("bucket", bucket), Limit::new("window", window).shadow(), Limit::new("log", log));
    decides_beside(several.clone(), |(bucket, window, log), decide| {
        let _locks = (bucket.lock_shared(), window.lock_shared(), log.lock_shared());
        decide();
    });
    let (bucket, window, log) = several;
    let any = vec![DynLimit::new(bucket), DynLimit::new(window), DynLimit::new(log)];
    decides_beside::<Vec<DynLimit<u64>>>(any, |tables, decide| {
        let _lock = tables.replace_lock.lock();
        decide();
    });
}
