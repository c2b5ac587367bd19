//! Many keys: the time of a save and of a restart, as printed by `--nocapture`.

use std::time::Instant;

use tower_ratelimit::{Gcra, Memory, Quota};

/// A million keys in a release build, ten thousand otherwise.
#[test]
fn snapshot_of_many_keys_is_restored_whole() {
    let keys: u64 = if cfg!(debug_assertions) { 10_000 } else { 1_000_000 };
    let limit = || Gcra::new(Quota::per_hour(100));
    let capacity = usize::try_from(keys).expect("a capacity");
    let before = Memory::<u64, _>::builder(limit()).max_keys(capacity).build().expect("a limit");
    for key in 0..keys {
        assert!(before.check(&key, 1 + key % 50).is_allowed());
    }
    let mut file = Vec::new();
    let start = Instant::now();
    before.save(&mut file).expect("saved");
    let saved = start.elapsed();
    let start = Instant::now();
    let builder = Memory::<u64, _>::builder(limit()).max_keys(capacity).restore(&*file);
    let after = builder.build().expect("restored");
    println!("{keys} keys, {} bytes: saved in {saved:?}, restored in {:?}", file.len(), start.elapsed());
    for key in 0..keys {
        let remaining = after.check(&key, 0).remaining().expect("a limit");
        // A token can have been refilled meanwhile, on a slow machine some tokens.
        assert!((99 - key % 50..99).contains(&remaining) || key % 50 == 0, "{key}: {remaining}");
    }
}
