//! Spellings of one credential: with `canonical` they have one key, and so do all encodings of one `Basic` user.

use std::collections::HashSet;

use base64::Engine as _;
use base64::alphabet::{STANDARD, URL_SAFE};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use proptest::collection::vec;
use proptest::prelude::*;
use tower_ratelimit::ExtractKey;
use tower_ratelimit::key::{Credential, Extracted, Header, KeyText, Pepper};

use crate::support::{Get, key, missing, with};

/// Parses a UUID as common parsers do: any case, with or without hyphens, in braces, or as a URN.
fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let text = text.strip_prefix("urn:uuid:").unwrap_or(text);
    let text = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')).unwrap_or(text);
    let hyphens: Vec<_> = text.match_indices('-').map(|(index, _)| index).collect();
    let digits = text.replace('-', "");
    let is_uuid = digits.len() == 32 && (hyphens.is_empty() || hyphens == [8, 13, 18, 23]);
    u128::from_str_radix(&digits, 16).ok().filter(|_| is_uuid).map(u128::to_be_bytes)
}

/// Spells a UUID. The bits of `case` choose the case of the digits.
fn spell(uuid: u128, case: u32, form: u8) -> String {
    let upper = |(index, digit): (usize, char)| if case >> index & 1 == 1 { digit.to_ascii_uppercase() } else { digit };
    let mut text: String = format!("{uuid:032x}").chars().enumerate().map(upper).collect();
    if form & 1 == 1 {
        for at in [20, 16, 12, 8] {
            text.insert(at, '-');
        }
    }
    match form >> 1 & 3 {
        0 => format!("{{{text}}}"),
        1 => format!("urn:uuid:{text}"),
        _ => text,
    }
}

fn get(name: &'static str, value: &str) -> Get {
    with(&[(name, value)])
}

fn basic(credentials: &[u8]) -> String {
    format!("Basic {}", base64::prelude::BASE64_STANDARD.encode(credentials))
}

proptest! {
    #[test]
    fn spellings_with_a_canonical_form_are_one_key(
        uuid: u128, other: u128, spellings in vec((any::<u32>(), any::<u8>()), 1..6), password in "[ -~]{0,9}",
    ) {
        let api_key = Credential::api_key("x-api-key").canonical(parse_uuid);
        let bearer = Credential::bearer().canonical(parse_uuid).pepper(Pepper::new(&[7; 32]).expect("long enough"));
        let cookie = Credential::cookie("session").canonical(parse_uuid);
        let user = Credential::basic_user().canonical(parse_uuid);
        let tenant = Header::from_static("x-tenant").canonical(|text| parse_uuid(text).map(|id| id.to_vec()));
        let bytes = uuid.to_be_bytes();
        for (case, form) in spellings {
            let text = spell(uuid, case, form);
            prop_assert_eq!(api_key.extract(&get("x-api-key", &text)), Extracted::Key(api_key.key_of(bytes)));
            prop_assert_eq!(
                bearer.extract(&get("authorization", &format!("bearer {text}"))),
                Extracted::Key(bearer.key_of(bytes))
            );
            prop_assert_eq!(cookie.extract(&get("cookie", &format!("session={text}"))), Extracted::Key(cookie.key_of(bytes)));
            // A user name ends at the first colon.
            if !text.contains(':') {
                let value = basic(format!("{text}:{password}").as_bytes());
                prop_assert_eq!(user.extract(&get("authorization", &value)), Extracted::Key(user.key_of(bytes)));
            }
            prop_assert_eq!(tenant.extract(&get("x-tenant", &text)), Extracted::Key(KeyText::new(&bytes)));
            if other != uuid {
                prop_assert_ne!(api_key.extract(&get("x-api-key", &spell(other, case, form))), Extracted::Key(api_key.key_of(bytes)));
            }
        }
    }

    /// Against the decoder of the crate `base64`: whatever it accepts in one of its modes has the key of the user.
    #[test]
    fn encodings_of_a_basic_user_are_one_key(
        user in vec(any::<u8>().prop_filter("a colon", |byte| *byte != b':'), 1..20),
        password in vec(any::<u8>(), 0..20),
        pads: bool, url_safe: bool, bits: u8,
        scheme in "[Bb][Aa][Ss][Ii][Cc]", spaces in " {1,3}",
    ) {
        let credentials = [&user[..], b":", &password].concat();
        let config = GeneralPurposeConfig::new().with_encode_padding(pads);
        let engine = GeneralPurpose::new(if url_safe { &URL_SAFE } else { &STANDARD }, config);
        let mut text = engine.encode(&credentials).into_bytes();
        set_unused_bits(&mut text, &engine, bits);
        let value = format!("{scheme}{spaces}{}", String::from_utf8(text).expect("ASCII"));
        let key = Credential::basic_user();
        prop_assert_eq!(key.extract(&get("authorization", &value)), Extracted::Key(key.key_of(&user)), "{}", value);
    }

    /// What the lenient decoders of the crate `base64` reject is unusable, and nothing else is.
    #[test]
    fn malformed_basic_credentials_are_unusable(text in "[A-Za-z0-9+/_=.:-]{0,24}") {
        let key = Credential::basic_user();
        let config = GeneralPurposeConfig::new()
            .with_decode_allow_trailing_bits(true)
            .with_decode_padding_mode(DecodePaddingMode::Indifferent);
        let unpadded = text.trim_end_matches('=').replace('-', "+").replace('_', "/");
        let decoded = GeneralPurpose::new(&STANDARD, config).decode(unpadded).ok();
        let user = decoded.as_ref().and_then(|decoded| decoded.split(|byte| *byte == b':').next());
        let user = user.filter(|user| !user.is_empty() && user.len() < decoded.as_ref().map_or(0, Vec::len));
        let found = key.extract(&get("authorization", &format!("Basic {text}")));
        match user {
            Some(user) => prop_assert_eq!(found, Extracted::Key(key.key_of(user)), "{}", text),
            None => prop_assert!(matches!(&found, Extracted::Missing(missing) if missing.is_unusable()), "{:?}", found),
        }
    }
}

/// Sets the bits of the last digit that encode nothing.
fn set_unused_bits(text: &mut [u8], engine: &GeneralPurpose, bits: u8) {
    let digits = text.iter().position(|byte| *byte == b'=').unwrap_or(text.len());
    let unused = [0, 0, 4, 2][digits % 4];
    let alphabet: Vec<u8> = (0..64_u8).map(|value| engine.encode([value << 2]).as_bytes()[0]).collect();
    let last = alphabet.iter().position(|digit| *digit == text[digits - 1]).expect("a digit");
    text[digits - 1] = alphabet[last | usize::from(bits) & ((1 << unused) - 1)];
}

/// Without a canonical form each spelling is a key of its own, as the documentation says.
#[test]
fn spellings_are_different_keys_by_default() {
    let uuid = 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef;
    let spellings: Vec<_> = (0..128).map(|number| spell(uuid, number << 10, 7)).collect();
    let api_key = Credential::api_key("x-api-key");
    let keys: HashSet<_> = spellings.iter().map(|text| key(api_key.extract(&get("x-api-key", text)))).collect();
    assert!(keys.len() > 1);
    let canonical = api_key.canonical(parse_uuid);
    let keys: HashSet<_> = spellings.iter().map(|text| key(canonical.extract(&get("x-api-key", text)))).collect();
    assert_eq!(keys.len(), 1);
}

#[test]
fn value_without_a_canonical_form_is_unusable() {
    let reason = |extracted| {
        let Extracted::<KeyText>::Missing(found) = &extracted else { panic!("{extracted:?}") };
        assert!(found.is_unusable());
        missing(extracted).0
    };
    let tenant = Header::from_static("x-tenant").canonical(|text| text.strip_prefix("tenant-").map(str::to_owned));
    assert_eq!(tenant.extract(&get("x-tenant", "tenant-7")), Extracted::Key(KeyText::from("7")));
    assert_eq!(reason(tenant.extract(&get("x-tenant", "7"))), "the header x-tenant is malformed");
    assert_eq!(reason(tenant.extract(&get("x-tenant", "tenant-"))), "the header x-tenant is malformed", "empty");
    let latin =
        http::Request::get("/").header("x-tenant", http::HeaderValue::from_bytes(b"tenant-\xe9").expect("a value"));
    assert_eq!(
        reason(tenant.extract(&latin.body(()).expect("a request"))),
        "the header x-tenant is malformed",
        "Latin-1"
    );
    assert_eq!(reason(tenant.extract(&get("x-tenant", ""))), "the header x-tenant is empty");
    assert!(!format!("{:?}", tenant.extract(&get("x-tenant", "secret"))).contains("secret"));
}

#[test]
fn basic_user_is_parsed_as_in_the_standard() {
    let extract = |value: &str| Credential::basic_user().extract(&get("authorization", value));
    // RFC 7617, section 2.
    assert_eq!(
        extract("Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="),
        Extracted::Key(Credential::basic_user().key_of("Aladdin"))
    );
    assert_eq!(extract(&basic(b"a:b:c")), Extracted::Key(Credential::basic_user().key_of("a")), "at the first colon");
    assert_eq!(extract(&basic(b"a:")), Extracted::Key(Credential::basic_user().key_of("a")), "no password");
    assert_ne!(extract(&basic(b"A:b")), extract(&basic(b"a:b")), "case-sensitive");
    for value in ["Basic", "Basic ", "Basic YQ==", "Basic OmI=", "Basic a b", "Basic a:b", "Basic YTpi!", "YTpi"] {
        let (reason, is_server_error) = missing(extract(value));
        assert!(!is_server_error && reason.starts_with("the header authorization is malformed"), "{value}: {reason}");
    }
    assert_eq!(missing(extract("")).0, "the header authorization is empty");
    assert_eq!(missing(extract("Bearer YTpi")).0, "the header authorization contains no Basic credentials");
    let (reason, _) = missing(Credential::basic_user().extract(&with(&[])));
    assert_eq!(reason, "the header authorization is missing: expected Basic credentials");
}
