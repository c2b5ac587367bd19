//! Files of saved counts: none makes a limiter panic, and what is restored can be saved and restored again.

use sha2::{Digest, Sha256};
use tower_ratelimit::{Gcra, Limit, ManualClock, Memory, MemoryBuilder, Quota, SlidingLog, SlidingWindow, WhenFull};

type Limits = (Limit<Gcra>, Limit<SlidingLog>, Limit<SlidingWindow>);

fn builder() -> MemoryBuilder<u64, Limits> {
    let quota = Quota::per_minute(10);
    let limits = (
        Limit::new("bucket", Gcra::new(Quota::per_hour(10))),
        Limit::new("log", SlidingLog::new(quota)),
        Limit::new("window", SlidingWindow::new(quota).blocks(4)),
    );
    Memory::builder(limits).max_keys(100).when_full(WhenFull::CarryOver).clock(ManualClock::new())
}

/// Checks the limits of a file. The head and the checksum are always right: a mutation would not get past them.
pub(crate) fn check(input: &[u8]) {
    /// Magic bytes, version, whether there is a seed, time, seed, probe.
    const HEAD: usize = 16 + 4 + 1 + 4 * 8;
    let mut file = Vec::new();
    builder().build().expect("limits").save(&mut file).expect("saved");
    file.truncate(HEAD);
    file.extend(input);
    let digest = Sha256::digest(&file);
    file.extend(digest);
    let Ok(restored) = builder().restore(&*file).build() else { return };
    for key in 0..20 {
        let _ = restored.check(&key, 1);
    }
    let mut again = Vec::new();
    restored.save(&mut again).expect("saved");
    let last = builder().restore(&*again).build().expect("what a limiter saves can be restored");
    for key in 0..20 {
        assert!(last.check(&key, 0).remaining() >= restored.check(&key, 0).remaining());
    }
}
