use std::net::IpAddr;
use std::str::FromStr as _;
use std::sync::Arc;

use http::HeaderName;

use super::key::text_of;
use crate::key::{Credential, Host, KeyText, NO_ROUTE, Pepper};

/// A part of a request, with its name in a file. Parts of one name are equal.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) name: Arc<str>,
    pub(super) source: Source,
}

/// Where a part is read. The cheapest are first.
#[derive(Clone, Debug)]
pub(super) enum Source {
    Route,
    Method,
    Path,
    Host,
    Address,
    User,
    BasicUser(Credential<Pepper>),
    HeaderOrCookie(Credential<Pepper>),
}

/// The number of sources of one part each.
pub(super) const PLAIN_PARTS: usize = 7;
/// Their places in a key.
// The route is first, so that it is read before another part shows that the limit does not apply.
pub(super) const ROUTE: usize = 0;
pub(super) const ADDRESS: usize = 4;
pub(super) const USER: usize = 5;

impl Part {
    /// Finds the part with a name.
    pub(super) fn new(name: &str, pepper: &Pepper) -> Result<Self, String> {
        let source = match name.split_once(':') {
            None => match name {
                "method" => Source::Method,
                "route" if cfg!(feature = "axum") => Source::Route,
                "route" => return Err("\"route\" needs axum; enable the feature `axum` of tower-ratelimit".to_owned()),
                "path" => Source::Path,
                "host" => Source::Host,
                "address" => Source::Address,
                "user" => Source::User,
                "basic-user" => Source::BasicUser(Credential::basic_user().pepper(pepper.clone())),
                _ => return Err(unknown(name)),
            },
            Some(("header", header)) => {
                let Ok(header) = HeaderName::from_str(header) else {
                    return Err(format!("invalid name of a header {header:?}; write it as in \"header:x-api-key\""));
                };
                let name = format!("header:{header}").into();
                return Ok(Self {
                    name,
                    source: Source::HeaderOrCookie(Credential::header(header).pepper(pepper.clone())),
                });
            }
            Some(("cookie", cookie)) => {
                let cookie = Credential::try_cookie(cookie).map_err(|error| error.to_string())?;
                Source::HeaderOrCookie(cookie.pepper(pepper.clone()))
            }
            Some(_) => return Err(unknown(name)),
        };
        Ok(Self { name: name.into(), source })
    }

    /// Returns the place in the order in which conditions are checked, and of a plain part in a key.
    pub(super) fn order(&self) -> usize {
        match self.source {
            Source::Route => ROUTE,
            Source::Method => 1,
            Source::Path => 2,
            Source::Host => 3,
            Source::Address => ADDRESS,
            Source::User => USER,
            Source::BasicUser(_) => 6,
            Source::HeaderOrCookie(_) => PLAIN_PARTS,
        }
    }

    /// Returns whether the value of the part is a keyed hash.
    pub(super) fn is_hashed(&self) -> bool {
        matches!(self.source, Source::BasicUser(_) | Source::HeaderOrCookie(_))
    }

    /// Returns the value that a request with a text of the configuration has.
    pub(super) fn value_of(&self, text: &str) -> KeyText {
        let fingerprint = match &self.source {
            Source::BasicUser(credential) | Source::HeaderOrCookie(credential) => credential.key_of(text),
            Source::Host => return KeyText::from(&*text.to_ascii_lowercase()),
            Source::Address => match text.parse::<IpAddr>() {
                Ok(address) => return text_of(&address.to_canonical()),
                // A keyed hash.
                Err(_) => return text_of(&text),
            },
            Source::User => return text_of(&text),
            _ => return KeyText::from(text),
        };
        KeyText::from(&*fingerprint.to_string())
    }

    /// Returns what is wrong with a value of the configuration, if no request can have it.
    pub(super) fn problem_of(&self, text: &str) -> Option<&'static str> {
        match self.source {
            Source::Method if text == "HEAD" => Some("HEAD counts as GET; write \"GET\""),
            Source::Method if text.bytes().any(|byte| byte.is_ascii_lowercase()) => {
                Some("methods are in upper case; write it as in \"POST\"")
            }
            Source::Route if text != NO_ROUTE && !text.starts_with('/') => {
                Some("routes begin with a slash; write it as in axum, with the prefixes of nested routers")
            }
            Source::Route if text.contains("/:") || text.contains("/*") => {
                Some("axum names parameters in braces; write \"/users/{id}\" or \"/files/{*path}\"")
            }
            Source::Path if !text.starts_with('/') => Some("paths begin with a slash; write it as in \"/login\""),
            Source::Path if text.contains(['?', '#']) => Some("paths have no query; write it as in \"/login\""),
            Source::Host if !Host::is_name(text) => {
                Some("hosts have no port and no dot at the end; write it as in \"api.example.org\"")
            }
            Source::Address if text.contains(['.', ':', '/']) && text.parse::<IpAddr>().is_err() => Some(
                "a condition names keys of addresses; write one address, of IPv6 the first one of its prefix (/64 by default)",
            ),
            _ => None,
        }
    }
}

fn unknown(name: &str) -> String {
    format!(
        "unknown part {name:?}; use \"address\", \"method\", \"route\", \"path\", \"host\", \"user\", \"basic-user\", \
         \"header:NAME\" or \"cookie:NAME\""
    )
}
