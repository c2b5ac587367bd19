//! One key or else another.

use std::collections::HashSet;
use std::net::IpAddr;

use tower_ratelimit::key::{
    ApiKey, Bearer, Either, ExtractKey, Extracted, Fingerprint, Global, Header, KeyText, MissingKey, Or, TrustedProxies,
};
use tower_ratelimit::{AcquireOptions, ClientIp, Gcra, Memory, PeerIp, Quota};

use crate::support::{Get, key, missing, with};

const API_KEY: ApiKey = ApiKey::from_static("x-api-key");

fn peer() -> IpAddr {
    IpAddr::from([192, 0, 2, 1])
}

#[test]
fn the_api_key_else_the_clients_address() {
    let either = API_KEY.or(ClientIp::x_forwarded_for(TrustedProxies::none()));
    let found = key(either.extract(&with(&[("x-api-key", "abc")])));
    assert_eq!(found, Either::Left(API_KEY.key_of("abc")));
    assert_eq!(key(either.extract(&with(&[]))), Either::Right(peer()));
    for unusable in [&[("x-api-key", "")][..], &[("x-api-key", "a"), ("x-api-key", "b")]] {
        missing(either.extract(&with(unusable)));
    }
}

/// Every pair of outcomes.
#[test]
fn only_an_absent_key_is_looked_for_again() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Says {
        Key,
        Exempt,
        ByRequest,
        Unusable,
        ByServer,
    }
    type Outcomes = (Says, Says);
    let found = |says, name: &'static str| match says {
        Says::Key => Extracted::Key(name),
        Says::Exempt => Extracted::Exempt,
        Says::ByRequest => Extracted::Missing(MissingKey::from_request(format!("{name} is not sent"))),
        Says::Unusable => Extracted::Missing(MissingKey::unusable(format!("{name} is unusable"))),
        Says::ByServer => Extracted::Missing(MissingKey::from_server(format!("{name} is not set"))),
    };
    let first = |outcomes: &Outcomes| found(outcomes.0, "left");
    let second = |outcomes: &Outcomes| found(outcomes.1, "right");
    let either = Or::new(first, second);
    let all = [Says::Key, Says::Exempt, Says::ByRequest, Says::Unusable, Says::ByServer];
    for left in all {
        for right in all {
            let extracted = either.extract(&(left, right));
            match (left, right) {
                (Says::Key, _) => assert_eq!(extracted, Extracted::Key(Either::Left("left"))),
                (Says::Exempt, _) => assert_eq!(extracted, Extracted::Exempt, "the explicit word stands"),
                (Says::Unusable, _) => {
                    assert_eq!(missing(extracted), ("left is unusable".to_owned(), false), "{right:?}");
                }
                (_, Says::Unusable) => {
                    assert_eq!(missing(extracted), ("right is unusable".to_owned(), false), "{left:?}");
                }
                (_, Says::Key) => assert_eq!(extracted, Extracted::Key(Either::Right("right"))),
                (_, Says::Exempt) => assert_eq!(extracted, Extracted::Exempt),
                _ => {
                    let (reason, by_server) = missing(extracted);
                    assert_eq!(by_server, right == Says::ByServer, "{left:?} {right:?}");
                    assert!(reason.starts_with("right is not s"), "{reason}: it was to have the last word");
                }
            }
        }
    }
}

#[test]
fn the_second_is_not_asked_in_vain() {
    let never = |_: &Get| -> Option<u8> { panic!("asked") };
    let either = Or::new(PeerIp::new(), never);
    assert_eq!(key(either.extract(&with(&[]))), Either::Left(peer()));
}

#[test]
fn both_sides_are_different_keys_though_they_hold_the_same() {
    const ONE: Header = Header::from_static("x-one");
    const TWO: Header = Header::from_static("x-two");
    let either = ONE.or(TWO);
    let (left, right) = (key(either.extract(&with(&[("x-one", "a")]))), key(either.extract(&with(&[("x-two", "a")]))));
    let held = KeyText::from("a");
    assert_eq!((left, right), (Either::Left(held), Either::Right(held)));
    assert_ne!(left, right);

    let limiter = Memory::new(Gcra::new(Quota::per_hour(1)));
    for key in [left, right] {
        assert!(limiter.check(&key, AcquireOptions::default()).is_allowed(), "each has its own");
        assert!(!limiter.check(&key, AcquireOptions::default()).is_allowed());
    }
}

#[test]
fn many_can_follow() {
    let either = Bearer::new().or(API_KEY).or(PeerIp::new()).or(Global);
    let keys = [
        key(either.extract(&with(&[("authorization", "Bearer abc"), ("x-api-key", "abc")]))),
        key(either.extract(&with(&[("authorization", "Basic abc"), ("x-api-key", "abc")]))),
        key(either.extract(&with(&[]))),
        key(either.extract(&Get::default())),
    ];
    assert_eq!(keys[0], Either::Left(Either::Left(Either::Left(Bearer::new().key_of("abc")))));
    assert_eq!(keys[1], Either::Left(Either::Left(Either::Right(API_KEY.key_of("abc")))));
    assert_eq!(keys[2], Either::Left(Either::Right(peer())));
    assert_eq!(keys[3], Either::Right(()));
    assert_eq!(HashSet::from(keys).len(), 4);
}

#[test]
fn each_side_may_have_its_own_quota() {
    type Caller = Either<Fingerprint, IpAddr>;
    let limiter = Memory::per_key(|caller: &Caller| match caller {
        Either::Left(_) => Gcra::new(Quota::per_hour(3)),
        Either::Right(_) => Gcra::new(Quota::per_hour(1)),
    });
    let either = API_KEY.or(PeerIp::new());
    let allowed = |fields: &[(&'static str, &str)]| {
        let caller = key(either.extract(&with(fields)));
        (0..5).filter(|_| limiter.check(&caller, AcquireOptions::default()).is_allowed()).count()
    };
    assert_eq!(allowed(&[("x-api-key", "abc")]), 3);
    assert_eq!(allowed(&[]), 1);
}
