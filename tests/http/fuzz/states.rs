//! States in a store of bytes: the input is one, or the words of one.

use std::time::Duration;

use tower_ratelimit::store::{StoreLimit, StoreLimits};
use tower_ratelimit::{
    AcquireOptions, FixedWindow, Gcra, LeakyQueue, Limit, Quota, SlidingLog, SlidingWindow, Timestamp,
};

/// Returns the state with these words, in the documented layout.
fn state(name: &str, body: &[u8]) -> Vec<u8> {
    let hash = name
        .as_bytes()
        .iter()
        .chain(body)
        .fold(0x811C_9DC5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    [&[1][..], &hash.to_le_bytes(), body].concat()
}

/// Panics if a decision on a state panics, or writes a state that cannot be read.
pub(crate) fn check(input: &[u8]) {
    let quota = Quota::new(3, Duration::from_secs(2));
    let limits: [fn(Quota) -> StoreLimit<str>; 5] = [
        |quota| StoreLimit::new(Gcra::new(quota)),
        |quota| StoreLimit::new(LeakyQueue::new(quota)),
        |quota| StoreLimit::new(FixedWindow::new(quota)),
        |quota| StoreLimit::new(Limit::new("blocks", SlidingWindow::new(quota).blocks(4))),
        |quota| StoreLimit::new(SlidingLog::new(quota)),
    ];
    for limit in limits {
        let limits = StoreLimits::new(vec![limit(quota)]).expect("a limit");
        let transaction = limits.transaction("key", AcquireOptions::default()).expect("a transaction");
        let name = transaction.keys()[0].split(':').nth(2).expect("the name of the states");
        for state in [input.to_vec(), state(name, input)] {
            for now in [0, 1_000_000, 1 << 50, u64::MAX].map(Timestamp::from_micros) {
                let states = [Some(&state)];
                let Ok((decision, writes)) = transaction.decide(&states, now) else {
                    assert!(transaction.peek(&states, now).is_err(), "a state is valid or not");
                    continue;
                };
                assert_eq!(writes[0].is_some(), decision.is_allowed(), "each allowed request is charged");
                if let Some(write) = &writes[0] {
                    assert!(write.state.len() <= StoreLimits::<str>::MAX_STATE_BYTES);
                    let written = [Some(&write.state)];
                    let _ = transaction.decide(&written, now).expect("a written state is valid");
                    // At the last time that a limiter knows, no usage expires.
                    if write.expires_at >= Timestamp::MAX {
                        continue;
                    }
                    let idle = transaction.peek(&written, write.expires_at).expect("a written state is valid");
                    let zero = transaction.peek(&[None::<Vec<u8>>], write.expires_at).expect("no state");
                    assert_eq!(idle, zero, "an expired state equals none");
                }
            }
        }
    }
}
