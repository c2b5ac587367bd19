use std::time::Duration;
use tower_ratelimit::*;
#[test]
fn classic() {
    let clock = ManualClock::new();
    let funnel = Memory::builder(LeakyBucket::new(Quota::new(1, Duration::from_secs(2))).burst(15))
        .clock(clock.clone())
        .build()
        .unwrap();
    assert_eq!((0..20).filter(|_| funnel.decide("a", Ask::default()).is_allowed()).count(), 15);
    let d = funnel.decide("a", Ask::default());
    println!("{d:?}");
    let bucket =
        Memory::builder(TokenBucket::new(Quota::per_second(1)).burst(10)).clock(clock.clone()).build().unwrap();
    let mut passed = vec![];
    for i in 1..=24 {
        if bucket.decide("a", Ask::cost(3)).is_allowed() {
            passed.push(i)
        };
        clock.advance(Duration::from_millis(500));
    }
    assert_eq!(passed, [1, 2, 3, 5, 11, 17, 23]);
    for q in [Quota::per_second(3), Quota::per_minute(7), Quota::new(1000, Duration::from_secs(7))] {
        let g = Memory::builder(Gcra::new(q).burst(5)).clock(clock.clone()).build().unwrap();
        let t0 = clock.now();
        let mut n = 0u64;
        for _ in 0..100000 {
            loop {
                let d = g.decide("x", Ask::default());
                if d.is_allowed() {
                    n += 1;
                    break;
                }
                clock.advance(d.retry_after().unwrap());
            }
        }
        let t = clock.now().since(t0).as_micros();
        assert_eq!(u128::from(n), 5 + t * u128::from(q.limit()) / q.period().as_micros());
    }
}
#[test]
fn speed() {
    let g = Memory::new(Gcra::new(Quota::per_second(1_000_000)).burst(1_000_000_0));
    let t = std::time::Instant::now();
    for _ in 0..10_000_000 {
        std::hint::black_box(g.decide("some key of twenty c", Ask::default()));
    }
    println!("allowed {:?}", t.elapsed() / 10_000_000);
    let g = Memory::new(Gcra::new(Quota::per_hour(1)));
    let t = std::time::Instant::now();
    for _ in 0..10_000_000 {
        std::hint::black_box(g.decide("some key of twenty c", Ask::default()));
    }
    println!("denied {:?}", t.elapsed() / 10_000_000);
    let t = std::time::Instant::now();
    for _ in 0..10_000_000 {
        std::hint::black_box(SystemClock::new().now());
    }
    println!("2 clocks {:?}", t.elapsed() / 10_000_000);
}
