use http::Request;

use super::authorization::Scheme;
use super::fingerprint::Fingerprint;
use super::pepper::{Fingerprinter, Pepper, ProcessPepper};
use crate::key::canonical::{Canonical, canonical_setter};
use crate::key::{ExtractKey, Extracted};

/// The user name in `Authorization: Basic ...`, stored as a [fingerprint](Fingerprint).
///
/// The key is the same for every password, so the extractor also limits attempts to guess one. It is a fingerprint
/// because a user name is personal data, and in some interfaces the credential itself.
///
/// The credentials are decoded (RFC 7617), in both alphabets of base64 and with or without padding: all spellings of
/// one user name have one key. The key is absent if there is no `Authorization` header, or if the header contains
/// credentials of another scheme. The key is unusable if the header is empty, malformed (no base64, no colon, no user
/// name) or repeated.
///
/// ```
/// use http::Request;
/// use tower_ratelimit::ExtractKey;
/// use tower_ratelimit::key::{BasicUser, Extracted};
///
/// let key = BasicUser::new();
/// // alice:wonderland
/// let request = Request::get("/").header("authorization", "Basic YWxpY2U6d29uZGVybGFuZA==").body(()).unwrap();
/// assert_eq!(key.extract(&request), Extracted::Key(key.key_of("alice")));
/// ```
///
/// # Invented user names
///
/// The extractor does not check the password. A client that invents user names gets a separate limit for each, and a
/// client that sends another user's name uses up the limit of this user. Limit the address as well: see
/// [`Bearer`](super::Bearer).
#[derive(Clone, Debug, Default)]
pub struct BasicUser<P = ProcessPepper> {
    pepper: P,
    canonical: Canonical,
}

impl BasicUser {
    /// Creates an extractor with fingerprints that are specific to this process.
    #[must_use]
    pub const fn new() -> Self {
        Self { pepper: ProcessPepper, canonical: Canonical::VERBATIM }
    }
}

impl<P: Fingerprinter> BasicUser<P> {
    canonical_setter! {
        /// ```
        /// use tower_ratelimit::key::BasicUser;
        ///
        /// // If your application compares user names without regard to case.
        /// let key = BasicUser::new().canonical(|user| Some(user.to_lowercase()));
        /// ```
    }

    /// Creates fingerprints that are equal in all processes with the same pepper.
    #[must_use]
    pub fn pepper(self, pepper: Pepper) -> BasicUser<Pepper> {
        BasicUser { pepper, canonical: self.canonical }
    }

    /// Returns the key of a user name, with [`canonical`](Self::canonical) of its canonical form: for example to block
    /// the user in a limiter.
    #[must_use]
    pub fn key_of(&self, user: impl AsRef<[u8]>) -> Fingerprint<P> {
        self.pepper.fingerprint("authorization basic", user.as_ref())
    }
}

const BASIC: Scheme = Scheme {
    name: "Basic",
    missing: "is missing: expected Basic credentials",
    other: "contains no Basic credentials",
    malformed: "is malformed: expected \"Basic\", a space, and a user name and a password in base64",
};

impl<B, P: Fingerprinter> ExtractKey<Request<B>> for BasicUser<P> {
    type Key = Fingerprint<P>;

    fn extract(&self, request: &Request<B>) -> Extracted<Fingerprint<P>> {
        let found = BASIC.credentials(request.headers()).and_then(|credentials| {
            let user = user_name(credentials).ok_or_else(|| BASIC.malformed())?;
            Ok(self.key_of(self.canonical.of(&user).ok_or_else(|| BASIC.malformed())?))
        });
        found.map_or_else(Extracted::Missing, Extracted::Key)
    }
}

/// Returns the text before the first colon of the decoded credentials, unless it is empty.
fn user_name(credentials: &[u8]) -> Option<Vec<u8>> {
    let mut decoded = decode_base64(credentials)?;
    let colon = decoded.iter().position(|byte| *byte == b':').filter(|colon| *colon > 0)?;
    decoded.truncate(colon);
    Some(decoded)
}

/// Decodes base64 as the most lenient decoders do: both alphabets, any padding, and any unused bits.
///
/// A spelling that was rejected here, and accepted by the application, could not be counted.
fn decode_base64(text: &[u8]) -> Option<Vec<u8>> {
    let len = text.iter().rposition(|byte| *byte != b'=').map_or(0, |last| last + 1);
    let mut decoded = Vec::with_capacity(len);
    for group in text[..len].chunks(4) {
        if group.len() == 1 {
            return None;
        }
        let mut bits = 0;
        for digit in group {
            bits = bits << 6 | u32::from(value_of(*digit)?);
        }
        bits <<= 6 * (4 - group.len());
        decoded.extend_from_slice(&bits.to_be_bytes()[1..group.len()]);
    }
    Some(decoded)
}

const fn value_of(digit: u8) -> Option<u8> {
    Some(match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' | b'-' => 62,
        b'/' | b'_' => 63,
        _ => return None,
    })
}
