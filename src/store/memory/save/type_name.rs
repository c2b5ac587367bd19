/// The end of the path of [`Fingerprint`](crate::key::Fingerprint), which a store cannot name.
const FINGERPRINT: &str = "::key::secret::fingerprint::Fingerprint";

/// Returns the name of a type without the paths of modules, which change when code moves.
pub(in crate::store::memory) fn short_type_name<T: ?Sized>() -> String {
    shorten(std::any::type_name::<T>())
}

/// Returns whether a type of keys contains the fingerprint of a secret under the random pepper of the process.
///
/// The name of a type contains the names of its parameters, but not the names of the fields of a `struct`.
pub(in crate::store::memory) fn is_of_process<T: ?Sized>() -> bool {
    // `Fingerprint<Pepper>` is the same in all processes. The compiler leaves out a parameter that is the default.
    let is_one = |rest: &str| !rest.starts_with(|next: char| next == '<' || next == '_' || next.is_alphanumeric());
    let mut parts = std::any::type_name::<T>().split(FINGERPRINT).skip(1);
    parts.any(is_one)
}

fn shorten(name: &str) -> String {
    let mut short = String::new();
    let mut word_start = 0;
    let mut rest = name;
    while let Some(char) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("::") {
            short.truncate(word_start);
            rest = after;
        } else {
            short.push(char);
            if !char.is_alphanumeric() && char != '_' {
                word_start = short.len();
            }
            rest = &rest[char.len_utf8()..];
        }
    }
    short
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::key::Fingerprint;

    #[test]
    fn snapshot_names_types_without_paths() {
        let names = ["u64", "core::net::ip_addr::IpAddr", "(a::b::C, d::E<f::G, &str>)", "[my_crate::key::Caller; 2]"];
        assert_eq!(names.map(shorten), ["u64", "IpAddr", "(C, E<G, &str>)", "[Caller; 2]"]);
        assert_eq!(short_type_name::<crate::algorithm::Gcra>(), "Gcra");
    }

    #[test]
    fn snapshot_recognises_keys_of_one_process() {
        assert!(is_of_process::<Fingerprint>() && is_of_process::<(u8, Option<Fingerprint>)>());
        assert!(!is_of_process::<Fingerprint<crate::key::Pepper>>() && !is_of_process::<str>());
    }
}
