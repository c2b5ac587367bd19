//! The hashes of keys in the next process.

use std::hash::{BuildHasher, RandomState};

use tower_ratelimit::key::{Credential, Fingerprint, Pepper};
use tower_ratelimit::{Gcra, Limit, ManualClock, Memory, Quota};

fn limit() -> Gcra {
    Gcra::new(Quota::per_hour(10))
}

/// A hasher with a seed of the user's.
#[derive(Clone, Copy)]
struct Seeded(u64);

impl BuildHasher for Seeded {
    type Hasher = std::hash::DefaultHasher;

    fn build_hasher(&self) -> Self::Hasher {
        use std::hash::Hasher as _;
        let mut hasher = std::hash::DefaultHasher::new();
        hasher.write_u64(self.0);
        hasher
    }
}

#[test]
fn snapshot_with_a_seed_of_the_user_needs_the_same_seed() {
    let builder = |seed| Memory::<str, _>::builder(limit()).hasher(Seeded(seed));
    let before = builder(1).build().expect("a limit");
    assert!(before.check("alice", 4).is_allowed());
    let mut file = Vec::new();
    before.save(&mut file).expect("saved");

    let after = builder(1).restore(&*file).build().expect("the same seed");
    assert_eq!(after.check("alice", 1).remaining(), Some(5));
    let error = builder(2).restore(&*file).build().expect_err("another seed");
    assert_eq!(
        error.to_string(),
        "restoring the saved counts failed: the file has other hashes of keys than this limiter; build the limiter with \
         the hasher and the seed of the process that has saved, on the same kind of processor, or start empty \
         (`restore_or_empty`)"
    );
    // In any order of the methods.
    assert!(Memory::<str, _>::builder(limit()).restore(&*file).build().is_err(), "the default hasher");
    let after = Memory::<str, _>::builder(limit()).restore(&*file).hasher(Seeded(1)).build().expect("the same seed");
    assert_eq!(after.check("alice", 1).remaining(), Some(5));

    let default = Memory::<str, _>::new(limit());
    let mut file = Vec::new();
    default.save(&mut file).expect("saved");
    assert!(builder(1).restore(&*file).build().is_err());
}

/// Many processes one after another keep the seed, also beside limiters with another one.
#[test]
fn snapshot_keeps_its_seed_over_many_restarts() {
    let clock = ManualClock::new();
    let builder = || Memory::<str, _>::builder(Gcra::new(Quota::per_hour(1000))).clock(clock.clone());
    let mut file = Vec::new();
    builder().build().expect("a limit").save(&mut file).expect("saved");
    for _ in 0..20 {
        let next = builder().restore(&*file).build().expect("restored");
        let _ = next.check("alice", 10);
        file.clear();
        next.save(&mut file).expect("saved");
    }
    let last = builder().restore(&*file).build().expect("restored");
    assert_eq!(last.check("alice", 0).remaining(), Some(800));
}

#[test]
fn snapshot_of_a_random_hasher_is_an_error() {
    let limiter = Memory::<str, _>::builder(limit()).hasher(RandomState::new()).build().expect("a limit");
    let mut file = Vec::new();
    let error = limiter.save(&mut file).expect_err("an error");
    assert!(error.is_unsupported() && file.is_empty());
    assert_eq!(
        error.to_string(),
        "saving the counts failed: the seed of `RandomState` cannot be read, so no other process can \
         find the keys; use the default hasher, or set one with a secret seed of your own by `hasher`"
    );
}

/// The fingerprint of a secret changes with each process, unless it has a pepper.
#[test]
fn snapshot_of_fingerprints_needs_a_pepper() {
    let limiter = Memory::<Fingerprint, _>::new(limit());
    let error = limiter.save(std::io::sink()).expect_err("an error");
    assert_eq!(
        error.to_string(),
        "saving the counts failed: limit \"default\" counts by fingerprints of secrets under the random pepper of this \
         process; set `.pepper(Pepper::new(..)?)` on the key extractor"
    );
    // A part of the key, too.
    let of_both = Memory::<(Fingerprint, u64), _>::new((Limit::new("both", limit()), Limit::new("other", limit())));
    assert!(of_both.save(std::io::sink()).is_err());

    let peppered = Memory::<Fingerprint<Pepper>, _>::new(limit());
    let pepper = || Pepper::new(&[7; 32]).expect("a pepper");
    let key = |secret| Credential::api_key("x-api-key").pepper(pepper()).key_of(secret);
    assert!(peppered.check(&key("secret"), 3).is_allowed());
    let mut file = Vec::new();
    peppered.save(&mut file).expect("saved");
    let after = Memory::<Fingerprint<Pepper>, _>::builder(limit()).restore(&*file).build().expect("restored");
    assert_eq!(after.check(&key("secret"), 1).remaining(), Some(6));
}
