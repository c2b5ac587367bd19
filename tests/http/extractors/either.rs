//! `Or`: one key, or another if the first is absent.

use std::collections::HashSet;
use std::net::IpAddr;

use tower_ratelimit::key::{
    Credential, Either, Extracted, Fingerprint, Global, Header, KeyText, MissingKey, Or, TrustedProxies,
};
use tower_ratelimit::{AcquireOptions, ClientIp, ExtractKey, Gcra, Memory, PeerIp, Quota};

use crate::support::{Get, key, missing, with};

const API_KEY: Credential = Credential::api_key("x-api-key");

fn peer() -> IpAddr {
    IpAddr::from([192, 0, 2, 1])
}

#[test]
fn or_falls_back_to_the_client_address() {
    let either = API_KEY.or(ClientIp::x_forwarded_for(TrustedProxies::none()));
    let found = key(either.extract(&with(&[("x-api-key", "abc")])));
    assert_eq!(found, Either::Left(API_KEY.key_of("abc")));
    assert_eq!(key(either.extract(&with(&[]))), Either::Right(peer()));
    for unusable in [&[("x-api-key", "")][..], &[("x-api-key", "a"), ("x-api-key", "b")]] {
        missing(either.extract(&with(unusable)));
    }
}

#[test]
fn or_tries_the_second_extractor_only_when_the_first_key_is_absent() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Stub {
        Key,
        Exempt,
        Absent,
        Unusable,
        ServerError,
    }
    type Outcomes = (Stub, Stub);
    let found = |stub, name: &'static str| match stub {
        Stub::Key => Extracted::Key(name),
        Stub::Exempt => Extracted::Exempt,
        Stub::Absent => Extracted::Missing(MissingKey::from_request(format!("{name} is not sent"))),
        Stub::Unusable => Extracted::Missing(MissingKey::unusable(format!("{name} is unusable"))),
        Stub::ServerError => Extracted::Missing(MissingKey::from_server(format!("{name} is not set"))),
    };
    let first = |outcomes: &Outcomes| found(outcomes.0, "left");
    let second = |outcomes: &Outcomes| found(outcomes.1, "right");
    let either = Or::new(first, second);
    let all = [Stub::Key, Stub::Exempt, Stub::Absent, Stub::Unusable, Stub::ServerError];
    for left in all {
        for right in all {
            let extracted = either.extract(&(left, right));
            match (left, right) {
                (Stub::Key, _) => assert_eq!(extracted, Extracted::Key(Either::Left("left"))),
                (Stub::Exempt, _) => assert_eq!(extracted, Extracted::Exempt, "an exemption is final"),
                (Stub::Unusable, _) => {
                    assert_eq!(missing(extracted), ("left is unusable".to_owned(), false), "{right:?}");
                }
                (_, Stub::Unusable) => {
                    assert_eq!(missing(extracted), ("right is unusable".to_owned(), false), "{left:?}");
                }
                (_, Stub::Key) => assert_eq!(extracted, Extracted::Key(Either::Right("right"))),
                (_, Stub::Exempt) => assert_eq!(extracted, Extracted::Exempt),
                _ => {
                    let (reason, is_server_error) = missing(extracted);
                    assert_eq!(is_server_error, right == Stub::ServerError, "{left:?} {right:?}");
                    assert!(
                        reason.starts_with("right is not s"),
                        "{reason}: the second extractor determines the reason"
                    );
                }
            }
        }
    }
}

#[test]
fn or_does_not_call_the_second_extractor_when_the_first_has_a_key() {
    let never = |_: &Get| -> Option<u8> { panic!("called") };
    let either = Or::new(PeerIp::new(), never);
    assert_eq!(key(either.extract(&with(&[]))), Either::Left(peer()));
}

#[test]
fn or_keys_of_equal_values_differ_by_side() {
    const ONE: Header = Header::from_static("x-one");
    const TWO: Header = Header::from_static("x-two");
    let either = ONE.or(TWO);
    let (left, right) = (key(either.extract(&with(&[("x-one", "a")]))), key(either.extract(&with(&[("x-two", "a")]))));
    let held = KeyText::from("a");
    assert_eq!((left, right), (Either::Left(held), Either::Right(held)));
    assert_ne!(left, right);

    let limiter = Memory::new(Gcra::new(Quota::per_hour(1)));
    for key in [left, right] {
        assert!(limiter.check(&key, AcquireOptions::default()).is_allowed(), "each key has its own limit");
        assert!(!limiter.check(&key, AcquireOptions::default()).is_allowed());
    }
}

#[test]
fn or_can_be_chained() {
    let either = Credential::bearer().or(API_KEY).or(PeerIp::new()).or(Global);
    let keys = [
        key(either.extract(&with(&[("authorization", "Bearer abc"), ("x-api-key", "abc")]))),
        key(either.extract(&with(&[("authorization", "Basic abc"), ("x-api-key", "abc")]))),
        key(either.extract(&with(&[]))),
        key(either.extract(&Get::default())),
    ];
    assert_eq!(keys[0], Either::Left(Either::Left(Either::Left(Credential::bearer().key_of("abc")))));
    assert_eq!(keys[1], Either::Left(Either::Left(Either::Right(API_KEY.key_of("abc")))));
    assert_eq!(keys[2], Either::Left(Either::Right(peer())));
    assert_eq!(keys[3], Either::Right(()));
    assert_eq!(HashSet::from(keys).len(), 4);
}

#[test]
fn or_key_selects_a_quota_per_side() {
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
