use std::fmt;

/// A share of a whole, in millionths.
///
/// ```
/// use tower_ratelimit_simulate::Share;
///
/// let share: Share = "0.1%".parse()?;
/// assert_eq!((share.rounded_down(2_500), share.rounded_up(2_500)), (2, 3));
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share(u64);

/// One hundred per cent.
const WHOLE: u64 = 1_000_000;

impl Share {
    /// Returns the share of a number, rounded down to a whole number.
    #[must_use]
    pub fn rounded_down(self, whole: u64) -> u64 {
        narrow(u128::from(whole) * u128::from(self.0) / u128::from(WHOLE))
    }

    /// Returns the share of a number, rounded up to a whole number.
    #[must_use]
    pub fn rounded_up(self, whole: u64) -> u64 {
        narrow((u128::from(whole) * u128::from(self.0)).div_ceil(u128::from(WHOLE)))
    }
}

/// A share of a number is at most this number.
fn narrow(share: u128) -> u64 {
    u64::try_from(share).unwrap_or(u64::MAX)
}

impl std::str::FromStr for Share {
    type Err = String;

    /// Parses a percentage with at most four decimals, such as `0.1%`.
    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || format!("{text:?} is no share: use a percentage such as 0.1%");
        let number = text.strip_suffix('%').ok_or_else(invalid)?;
        let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
        let are_digits = whole.bytes().chain(decimals.bytes()).all(|byte| byte.is_ascii_digit());
        if decimals.len() > 4 || whole.is_empty() || !are_digits {
            return Err(invalid());
        }
        let millionths = format!("{whole}{decimals:0<4}").parse().map_err(|_| invalid())?;
        if millionths > WHOLE { Err(invalid()) } else { Ok(Self(millionths)) }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimals = format!("{:04}", self.0 % 10_000);
        let decimals = decimals.trim_end_matches('0');
        let point = if decimals.is_empty() { "" } else { "." };
        write!(f, "{}{point}{decimals} %", self.0 / 10_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_are_parsed_to_millionths() {
        for (text, share, printed) in
            [("0%", 0, "0 %"), ("0.1%", 1_000, "0.1 %"), ("12.3456%", 123_456, "12.3456 %"), ("100%", WHOLE, "100 %")]
        {
            let parsed = text.parse::<Share>();
            assert_eq!(parsed, Ok(Share(share)), "{text:?}");
            assert_eq!(parsed.map(|share| share.to_string()), Ok(printed.to_owned()));
        }
        for text in ["", "%", "1", "-1%", "+1%", ".5%", "1.23456%", "100.0001%", "1,5%", "99999999999999999999%"] {
            assert!(text.parse::<Share>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn shares_are_rounded_down_or_up() {
        let tenth = Share(1_000);
        for (whole, down, up) in [(0, 0, 0), (1, 0, 1), (999, 0, 1), (1_000, 1, 1), (1_001, 1, 2)] {
            assert_eq!((tenth.rounded_down(whole), tenth.rounded_up(whole)), (down, up), "{whole}");
        }
        assert_eq!((Share(WHOLE).rounded_up(u64::MAX), Share(0).rounded_up(u64::MAX)), (u64::MAX, 0));
    }
}
