//! The key of a cookie equals that of the value that applications read, compared with the crate `cookie`.

use cookie::{Cookie as Parsed, CookieJar};
use http::{HeaderValue, Request, header};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tower_ratelimit::ExtractKey;
use tower_ratelimit::key::{Credential, Extracted, Fingerprint};

use crate::support::Get;

fn session() -> Credential {
    Credential::cookie("session")
}

fn with_lines<L: AsRef<[u8]>>(lines: &[L]) -> Get {
    let mut request = Request::new(());
    for line in lines {
        let line = HeaderValue::from_bytes(line.as_ref()).expect("a field value");
        request.headers_mut().append(header::COOKIE, line);
    }
    request
}

/// Returns the session as axum-extra's `CookieJar` reads it: lines in ASCII, the last cookie of the name.
fn read_by_axum_extra(request: &Get) -> Option<String> {
    let lines = request.headers().get_all(header::COOKIE).iter().filter_map(|line| line.to_str().ok());
    in_jar(lines.flat_map(|line| line.split(';')).filter_map(|pair| Parsed::parse_encoded(pair.to_owned()).ok()))
}

/// Returns the session as `tower-cookies` reads it: lines in UTF-8, the last cookie of the name.
fn read_by_tower_cookies(request: &Get) -> Option<String> {
    let lines =
        request.headers().get_all(header::COOKIE).iter().filter_map(|line| str::from_utf8(line.as_bytes()).ok());
    in_jar(lines.flat_map(|line| line.split(';')).filter_map(|pair| Parsed::parse_encoded(pair.to_owned()).ok()))
}

/// Returns the first cookie of the name, without decoding.
fn read_without_decoding(request: &Get) -> Option<String> {
    let lines =
        request.headers().get_all(header::COOKIE).iter().filter_map(|line| str::from_utf8(line.as_bytes()).ok());
    let mut cookies = lines.flat_map(|line| line.split(';')).filter_map(|pair| Parsed::parse(pair).ok());
    cookies.find(|cookie| cookie.name() == "session").map(|cookie| cookie.value().to_owned())
}

fn in_jar(cookies: impl Iterator<Item = Parsed<'static>>) -> Option<String> {
    let mut jar = CookieJar::new();
    cookies.for_each(|cookie| jar.add_original(cookie));
    jar.get("session").map(|cookie| cookie.value().to_owned())
}

/// Returns `None` if the key is unusable: such a request is rejected under every policy.
fn key_or_unusable(request: &Get) -> Option<Fingerprint> {
    match session().extract(request) {
        Extracted::Key(key) => Some(key),
        Extracted::Missing(missing) if missing.is_unusable() => None,
        other => panic!("{other:?}: an application reads a session in {:?}", request.headers()),
    }
}

/// Checks that the key depends only on the session that the application reads.
fn check(request: &Get) {
    for value in [read_by_axum_extra(request), read_by_tower_cookies(request)].into_iter().flatten() {
        if let Some(key) = key_or_unusable(request) {
            let value = Parsed::new("session", value);
            assert_eq!(key, session().key_of(value.value_trimmed()), "{:?}", request.headers());
        }
    }
    if let Some(raw) = read_without_decoding(request)
        && let Some(key) = key_or_unusable(request)
    {
        assert_eq!(Some(key), key_or_unusable(&with_lines(&[format!("session={raw}")])), "{:?}", request.headers());
    }
}

#[test]
fn cookie_spellings_of_one_session_have_one_key() {
    let key = Extracted::Key(session().key_of("a b+c"));
    let spellings = [
        "session=a b+c",
        "session=a%20b%2Bc",
        "session=a%20b%2bc",
        "session=%61%20%62%2B%63",
        "session=\"a b+c\"",
        "session=%22a b+c%22",
        "s%65ssion=a b+c",
        "%73%65%73%73%69%6f%6E=a b+c",
        "\u{a0}session\u{3000}=\u{2003}a b+c\u{85}",
        "a=b;\tsession = a b+c ; c=d",
        "Session=x; s%2565ssion=x; session=a b+c",
    ];
    for spelling in spellings {
        let request = with_lines(&[spelling]);
        assert_eq!(session().extract(&request), key, "{spelling}");
        assert_eq!(read_by_tower_cookies(&request).as_deref().map(|value| value.trim_matches('"')), Some("a b+c"));
        check(&request);
    }
    // Decoding is not repeated.
    for other in ["session=a%2520b%2Bc", "session=a+b+c", "session=\"%22a b+c%22\"", "session=a%2 b+c"] {
        assert!(matches!(session().extract(&with_lines(&[other])), Extracted::Key(_)), "{other}");
        assert_ne!(session().extract(&with_lines(&[other])), key, "{other}");
    }
}

/// Applications differ in which of the cookies they use.
#[test]
fn cookie_spellings_beside_another_cookie_of_the_name_are_unusable() {
    let requests: [&[&[u8]]; 10] = [
        &[b"session=a; session=b"],
        &[b"session=a", b"session=b"],
        &[b"session=a; s%65ssion=b"],
        &[b"%73ession=b; session=a"],
        &[b"session=a; session=%ff"],
        &[b"session=%FF; session=a"],
        &[b"session=; session=a"],
        &[b"session=b; x=\xff", b"session=a"],
        &[b"session=\xff", b"session=a"],
        &[b"session=a;\xc2\xa0session\xe3\x80\x80=b"],
    ];
    for lines in requests {
        let request = with_lines(lines);
        let Extracted::Missing(missing) = session().extract(&request) else { panic!("{:?}", request.headers()) };
        assert!(missing.is_unusable());
        assert_eq!(missing.reason(), "the cookie session is repeated");
        assert!(read_by_tower_cookies(&request).is_some(), "{:?}", request.headers());
    }
}

#[test]
fn cookie_spellings_that_are_not_text_are_unusable() {
    for line in [&b"session=%ff"[..], b"session=a%C3", b"session=\xff", b"session=\"%80\"", b"s%65ssion=%ff"] {
        let Extracted::Missing(missing) = session().extract(&with_lines(&[line])) else { panic!("{line:?}") };
        assert!(missing.is_unusable());
        assert_eq!(missing.reason(), "the cookie session is malformed");
    }
    for line in ["session=%22%22", "session=\"\"", "s%65ssion="] {
        let Extracted::Missing(missing) = session().extract(&with_lines(&[line])) else { panic!("{line}") };
        assert!(missing.is_unusable());
        assert_eq!(missing.reason(), "the cookie session is empty");
    }
}

/// Some applications decode names: a name with a percent sign is found in both spellings.
#[test]
fn cookie_spellings_of_a_name_with_a_percent_sign_have_one_key() {
    let key = Credential::cookie("a%62");
    for line in ["a%62=x", "a%2562=x"] {
        assert_eq!(key.extract(&with_lines(&[line])), Extracted::Key(key.key_of("x")), "{line}");
    }
    let Extracted::Missing(missing) = key.extract(&with_lines(&["a%62=x; a%2562=y"])) else {
        panic!("a repeated cookie")
    };
    assert!(missing.is_unusable());
}

/// Generates text in which some characters are percent-encoded.
fn spelled(text: &'static [u8]) -> impl Strategy<Value = Vec<u8>> {
    vec(0..6_u8, text.len()).prop_map(move |how| {
        let spell = |(byte, how): (&u8, u8)| match how {
            0 => format!("%{byte:02x}").into_bytes(),
            1 => format!("%{byte:02X}").into_bytes(),
            _ => vec![*byte],
        };
        text.iter().zip(how).flat_map(spell).collect()
    })
}

fn part() -> impl Strategy<Value = Vec<u8>> {
    let texts: &[&'static [u8]] =
        &[b"session", b"session", b"session", b"=", b"=", b"ab", b"\"ab\"", b"a", b"\"", b"x"];
    let rest: &[&'static [u8]] =
        &[b"", b" ", b"\t", b"%", b"%4", b"%25", b"\xff", b"\xc3\xa9", b"\xc2\xa0", b";", b"="];
    prop_oneof![select(texts.to_vec()).prop_flat_map(spelled), select(rest.to_vec()).prop_map(<[u8]>::to_vec)]
}

fn pair() -> impl Strategy<Value = Vec<u8>> {
    let value = prop_oneof![spelled(b"ab"), spelled(b"\"ab\""), spelled(b"c"), part()];
    let likely = (spelled(b"session"), value).prop_map(|(name, value)| [&name[..], b"=", &value].concat());
    prop_oneof![likely, vec(part(), 0..6).prop_map(|parts| parts.concat())]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn cookie_key_depends_only_on_the_session(lines in vec(vec(pair(), 0..4), 0..3)) {
        let lines: Vec<_> = lines.iter().map(|pairs| pairs.join(&b';')).collect();
        check(&with_lines(&lines));
    }
}
