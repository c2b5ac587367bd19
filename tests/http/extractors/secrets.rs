//! Tokens, API keys and cookies as fingerprints.

use std::collections::HashSet;
use std::fmt::Debug;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::HeaderName;
use tower_ratelimit::key::{Credential, Extracted, Fingerprint, Fingerprinter as _, Pepper, ProcessPepper};
use tower_ratelimit::{ExtractKey, Gcra, Memory, Quota, RateLimitLayer};

use crate::support::{Get, key, missing, with};

const SECRET: &str = "31d4d96e407aad42";
const API_KEY: Credential = Credential::api_key("x-api-key");

fn cookie() -> Credential {
    Credential::cookie("session")
}

fn pepper(byte: u8, len: usize) -> Pepper {
    Pepper::new(&vec![byte; len]).expect("long enough")
}

#[test]
#[should_panic(expected = "it has an upper case letter; write it in lower case, as in \"x-api-key\"")]
fn api_key_in_upper_case_names_the_remedy() {
    let _ = Credential::api_key("X-Api-Key");
}

#[test]
#[should_panic(expected = "it has an upper case letter; write it in lower case")]
fn header_in_upper_case_names_the_remedy() {
    let _ = tower_ratelimit::key::Header::from_static("X-Tenant");
}

// Fingerprints

#[test]
fn debug_output_of_keys_and_layers_contains_no_secret() {
    fn check<P, K>(extractor: K, request: &Get)
    where
        K: ExtractKey<Get, Key = Fingerprint<P>> + Clone + Debug,
    {
        let fingerprint = key(extractor.extract(request));
        let limiter = Memory::new(Gcra::new(Quota::per_second(1)));
        assert!(limiter.check(&fingerprint, tower_ratelimit::AcquireOptions::default()).is_allowed());
        let shown = [
            format!("{fingerprint:?} {fingerprint}"),
            format!("{fingerprint:#?} {:?}", fingerprint.as_bytes()),
            format!("{:?}", extractor.extract(request)),
            format!("{extractor:?} {extractor:#?}"),
            format!("{:?}", RateLimitLayer::new(extractor, limiter)),
        ];
        for shown in shown {
            assert!(!shown.contains(SECRET), "{shown}");
            assert!(!shown.contains("[7, 7, 7"), "{shown}");
            assert!(!shown.contains("0707"), "{shown}");
        }
        assert!(!fingerprint.as_bytes().windows(4).any(|bytes| SECRET.as_bytes().windows(4).any(|part| part == bytes)));
        assert_eq!(fingerprint.to_string().len(), 32);
        assert_eq!(size_of::<Fingerprint<P>>(), 16, "bounded");
    }

    let bearer = with(&[("authorization", &format!("Bearer {SECRET}"))]);
    check(Credential::bearer(), &bearer);
    check(Credential::bearer().pepper(pepper(7, 32)), &bearer);
    let api_key = with(&[("x-api-key", SECRET)]);
    check(API_KEY, &api_key);
    check(API_KEY.pepper(pepper(7, 32)), &api_key);
    let user = with(&[("authorization", &format!("Basic {}", BASE64_STANDARD.encode(format!("{SECRET}:x"))))]);
    check(Credential::basic_user().canonical(|user| Some(user.to_owned())), &user);
    check(Credential::basic_user().pepper(pepper(7, 32)), &user);
    let session = with(&[("cookie", &format!("session={SECRET}"))]);
    check(cookie(), &session);
    check(cookie().pepper(pepper(7, 32)), &session);
}

#[test]
fn missing_key_reason_contains_no_secret() {
    let twice = |name| with(&[(name, SECRET), (name, SECRET)]);
    let reasons = [
        missing(Credential::bearer().extract(&with(&[("authorization", SECRET)]))).0,
        missing(Credential::bearer().extract(&with(&[("authorization", &format!("Basic {SECRET}"))]))).0,
        missing(Credential::bearer().extract(&twice("authorization"))).0,
        missing(API_KEY.extract(&twice("x-api-key"))).0,
        missing(cookie().extract(&with(&[("cookie", &format!("session={SECRET}; session={SECRET}"))]))).0,
        missing(cookie().extract(&with(&[("cookie", SECRET)]))).0,
    ];
    for reason in reasons {
        assert!(!reason.contains(SECRET), "{reason}");
    }
    let error = Pepper::new(b"31d4d96e407aad4").expect_err("too short");
    assert!(error.is_config() && !format!("{error} {error:?}").contains("31d4"), "{error}");
    assert!(error.to_string().contains("15 bytes") && error.to_string().contains("at least 16"), "{error}");
}

/// Against `hmac.new(key, len(kind).to_bytes(8, "big") + kind + b"secret", "sha256")` of Python: keys shorter than a
/// block, as long as one, and longer.
#[test]
fn fingerprint_is_the_first_half_of_an_hmac() {
    let hex = |len| {
        let pepper = pepper(7, len);
        [
            API_KEY.pepper(pepper.clone()).key_of("secret").to_string(),
            Credential::bearer().pepper(pepper.clone()).key_of("secret").to_string(),
            cookie().pepper(pepper).key_of("secret").to_string(),
        ]
    };
    assert_eq!(
        hex(32),
        ["3a840676e676a8a4e64c6254109e84a5", "9ec3de01fd7f11b4a485bd3e7d786855", "be190c6c758ab8ad9c4691bf03dee246"]
    );
    assert_eq!(
        hex(64),
        ["3417ab5dc87e2818f647907f1e8497ed", "5599e367cac19eaf0d638c14dcb09634", "d9635fee51d9494e88d000a2f49eabce"]
    );
    assert_eq!(
        hex(65),
        ["5d523a4555758db8f49c9ade4a39979d", "43801552a614f8b832d3429298549114", "96c01196a4b1ddd064b1c5570b516a7a"]
    );
}

#[test]
fn fingerprints_are_equal_when_the_pepper_is() {
    let fingerprint = |pepper: Pepper| Credential::bearer().pepper(pepper).key_of(SECRET);
    assert_eq!(fingerprint(pepper(7, 32)), fingerprint(pepper(7, 32)), "in two processes with one pepper");
    assert_ne!(fingerprint(pepper(7, 32)), fingerprint(pepper(8, 32)));
    let own = Credential::bearer().key_of(SECRET);
    assert_ne!(fingerprint(pepper(7, 32)).as_bytes(), own.as_bytes());
    assert_eq!(own, Credential::bearer().key_of(SECRET));
    assert_eq!(own, ProcessPepper.fingerprint("authorization bearer", SECRET.as_bytes()));
    let elsewhere = std::thread::spawn(|| Credential::bearer().key_of(SECRET)).join().expect("no panic");
    assert_eq!(own, elsewhere, "one pepper for all threads");
}

/// The test starts itself twice, and compares the fingerprints of the processes.
#[test]
fn each_process_draws_its_own_pepper() {
    const CHILD: &str = "PRINT_FINGERPRINT";
    let own = Credential::bearer().key_of(SECRET).to_string();
    if std::env::var_os(CHILD).is_some() {
        println!("fingerprint={own}");
        return;
    }
    let of_child = || {
        let mut child = std::process::Command::new(std::env::current_exe().expect("this test"));
        child.args(["--exact", "secrets::each_process_draws_its_own_pepper", "--nocapture"]).env(CHILD, "1");
        let output = String::from_utf8(child.output().expect("the process runs").stdout).expect("text");
        let start = output.find("fingerprint=").unwrap_or_else(|| panic!("{output}")) + "fingerprint=".len();
        output[start..start + 32].to_owned()
    };
    let all: HashSet<_> = [own.clone(), of_child(), of_child()].into();
    assert_eq!(all.len(), 3, "{all:?}");
}

/// Equal secrets of different kinds are different keys, and the boundary between kind and secret is unambiguous.
#[test]
fn fingerprints_of_different_kinds_do_not_collide() {
    let pepper = pepper(7, 32);
    let all = [
        API_KEY.pepper(pepper.clone()).key_of("secret"),
        Credential::api_key("x-api-ke").pepper(pepper.clone()).key_of("ysecret"),
        Credential::api_key("authorization").pepper(pepper.clone()).key_of("secret"),
        Credential::api_key("bearer").pepper(pepper.clone()).key_of("secret"),
        Credential::api_key("session").pepper(pepper.clone()).key_of("secret"),
        Credential::bearer().pepper(pepper.clone()).key_of("secret"),
        Credential::basic_user().pepper(pepper.clone()).key_of("secret"),
        cookie().pepper(pepper.clone()).key_of("secret"),
        Credential::cookie("bearer").pepper(pepper.clone()).key_of("secret"),
        pepper.fingerprint("", b"secret"),
        pepper.fingerprint("x-api-key\0", b"secret"),
        pepper.fingerprint("x-api-key", b"\0secret"),
        pepper.fingerprint("x-api-key", b""),
        pepper.fingerprint("x-api-key", b"secre"),
    ];
    assert_eq!(HashSet::from(all).len(), all.len());
}

// Bearer tokens

#[test]
fn bearer_token_is_parsed_as_in_the_standard() {
    let extract = |value: &str| Credential::bearer().extract(&with(&[("authorization", value)]));
    let expected = Extracted::Key(Credential::bearer().key_of("mF_9.B5f-4.1JqM=="));
    for value in ["Bearer mF_9.B5f-4.1JqM==", "bearer mF_9.B5f-4.1JqM==", "BEARER   mF_9.B5f-4.1JqM== "] {
        assert_eq!(extract(value), expected, "{value}");
    }
    assert_ne!(extract("Bearer mf_9.b5f-4.1jqm=="), expected, "tokens are case-sensitive");
    let malformed = ["Bearer", "Bearer ", "Bearer  ", "mF_9", "BearermF_9", "Bearer a b", "Bearer\ta", "é Bearer a"];
    for value in malformed {
        let (reason, is_server_error) = missing(extract(value));
        assert!(!is_server_error && reason.starts_with("the header authorization is malformed"), "{value}: {reason}");
    }
    assert_eq!(missing(extract("")).0, "the header authorization is empty");
    assert_eq!(missing(extract("Basic mF_9")).0, "the header authorization contains no bearer token");
    let (reason, _) = missing(Credential::bearer().extract(&with(&[])));
    assert_eq!(reason, "the header authorization is missing: expected a bearer token");
    let (reason, _) =
        missing(Credential::bearer().extract(&with(&[("authorization", "Bearer a"), ("authorization", "Bearer a")])));
    assert_eq!(reason, "the header authorization is repeated");
}

// API keys

#[test]
fn api_key_is_missing_when_absent_empty_or_repeated() {
    assert_eq!(API_KEY.extract(&with(&[("x-api-key", SECRET)])), Extracted::Key(API_KEY.key_of(SECRET)));
    let named = Credential::header(HeaderName::from_static("x-api-key"));
    assert_eq!(named.extract(&with(&[("x-api-key", SECRET)])), Extracted::Key(API_KEY.key_of(SECRET)));
    let reason = |fields: &[(&'static str, &str)]| missing(API_KEY.extract(&with(fields))).0;
    assert_eq!(reason(&[("x-other", SECRET)]), "the header x-api-key is missing");
    assert_eq!(reason(&[("x-api-key", "")]), "the header x-api-key is empty");
    assert_eq!(reason(&[("x-api-key", "a"), ("x-api-key", "b")]), "the header x-api-key is repeated");
}

#[test]
fn fingerprints_differ_for_secrets_of_all_lengths() {
    let lengths = [1, 55, 56, 63, 64, 65, 127, 128, 10_000];
    let keys: HashSet<_> = lengths.map(|len| key(API_KEY.extract(&with(&[("x-api-key", &"x".repeat(len))])))).into();
    assert_eq!(keys.len(), lengths.len());
}

// Cookies

#[test]
fn cookie_is_found_among_others() {
    let expected = Extracted::Key(cookie().key_of("abc"));
    for lines in [
        &["session=abc"][..],
        &["a=b; session=abc; c=d"],
        &["a=b;session=abc;c=d"],
        &["  session = abc  "],
        &["session=\"abc\""],
        &["a=b", "c=d; session=abc", "e=f"],
        &["Session=x; SESSION=y; session_=z; xsession=q; session=abc"],
        &["session; =; ;; session=abc"],
        &["a=\"session=x\"; session=abc"],
    ] {
        let fields: Vec<_> = lines.iter().map(|line| ("cookie", *line)).collect();
        assert_eq!(cookie().extract(&with(&fields)), expected, "{lines:?}");
    }
    assert_eq!(cookie().extract(&with(&[("cookie", "session=a=b==")])), Extracted::Key(cookie().key_of("a=b==")));
    assert_ne!(cookie().extract(&with(&[("cookie", "session=ABC")])), expected);
}

#[test]
fn cookie_is_missing_when_absent_empty_or_repeated() {
    let reason = |lines: &[&str]| {
        let fields: Vec<_> = lines.iter().map(|line| ("cookie", *line)).collect();
        let (reason, is_server_error) = missing(cookie().extract(&with(&fields)));
        assert!(!is_server_error);
        reason
    };
    for lines in [&[][..], &[""], &["session"], &["a=b; Session=x"], &["a=b;; =session"], &["\"session=x\""]] {
        assert_eq!(reason(lines), "the cookie session is missing", "{lines:?}");
    }
    for lines in [&["session="][..], &["session=;"], &["session=\"\""], &["session=  ; a=b"]] {
        assert_eq!(reason(lines), "the cookie session is empty", "{lines:?}");
    }
    for lines in [&["session=a; session=a"][..], &["session=a", "session=b"], &["session=; session=a"]] {
        assert_eq!(reason(lines), "the cookie session is repeated", "{lines:?}");
    }
}

#[test]
fn invalid_cookie_name_is_an_error() {
    for name in ["", "a b", "a=b", "a;b", "a,b", "a\"", "é", "a\n"] {
        let error = Credential::try_cookie(name).expect_err("no name");
        let expected = format!("invalid cookie name {name:?}; ");
        assert!(error.is_config() && error.to_string().starts_with(&expected), "{error}");
    }
    assert!(Credential::try_cookie("__Host-session.id".to_owned()).is_ok());
}
