/// Selects lines of a log by the values of their fields.
///
/// A rule is `FIELD=PATTERN`. In the pattern a `*` stands for any text.
///
/// ```
/// use tower_ratelimit_simulate::Filter;
///
/// // Requests to the API, without those of the monitoring.
/// let filter = Filter::default().only("path=/api/*")?.exclude("address=10.0.*")?;
/// let line = |path, address| filter.selects(|field| Some(if field == "path" { path } else { address }));
/// assert!(line("/api/orders", "192.0.2.1"));
/// assert!(!line("/api/orders", "10.0.7.7"));
/// assert!(!line("/", "192.0.2.1"));
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    only: Vec<Rule>,
    exclude: Vec<Rule>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    field: String,
    pattern: String,
}

impl Filter {
    /// Adds a rule that lines must match. Of several rules on one field, a line must match one.
    ///
    /// # Errors
    ///
    /// Returns an error if the rule is not `FIELD=PATTERN`.
    pub fn only(mut self, rule: &str) -> Result<Self, String> {
        self.only.push(Rule::parse(rule)?);
        Ok(self)
    }

    /// Adds a rule that lines must not match.
    ///
    /// # Errors
    ///
    /// Returns an error if the rule is not `FIELD=PATTERN`.
    pub fn exclude(mut self, rule: &str) -> Result<Self, String> {
        self.exclude.push(Rule::parse(rule)?);
        Ok(self)
    }

    /// Returns whether a line with these fields is selected. A field that the line lacks matches no rule.
    pub fn selects<'a>(&self, field: impl Fn(&str) -> Option<&'a str>) -> bool {
        let matches = |rule: &Rule| field(&rule.field).is_some_and(|text| is_match(&rule.pattern, text));
        let is_wanted = |rule: &Rule| self.only.iter().any(|other| other.field == rule.field && matches(other));
        self.only.iter().all(is_wanted) && !self.exclude.iter().any(matches)
    }

    /// Returns the field of each rule.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        self.only.iter().chain(&self.exclude).map(|rule| rule.field.as_str())
    }
}

impl Rule {
    fn parse(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((field, pattern)) if !field.is_empty() => {
                Ok(Self { field: field.to_owned(), pattern: pattern.to_owned() })
            }
            _ => Err(format!("{text:?} is no rule: use FIELD=PATTERN, as in path=/health*")),
        }
    }
}

/// Returns whether the text has the form of the pattern.
fn is_match(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(start) else { return false };
    let (middle, end) = rest.rsplit_once('*').unwrap_or(("", rest));
    // The first place of each part leaves the most text for the parts after it.
    for part in middle.split('*') {
        let Some(place) = text.find(part) else { return false };
        text = text.get(place + part.len()..).unwrap_or("");
    }
    text.ends_with(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn star_stands_for_any_text() {
        for (pattern, text) in [
            ("", ""),
            ("a", "a"),
            ("*", ""),
            ("*", "ab"),
            ("a*", "a"),
            ("*b", "ab"),
            ("a*c", "abc"),
            ("/*/b/*", "/a/b/"),
            ("**", "x"),
            ("a*b*c", "a-b-b-c"),
            ("é*", "éß"),
        ] {
            assert!(is_match(pattern, text), "{pattern:?} {text:?}");
        }
        for (pattern, text) in
            [("", "a"), ("a", "ab"), ("a*", "ba"), ("*b", "ba"), ("ab*ba", "aba"), ("a*b*b", "ab"), ("/*/b/*", "/b/")]
        {
            assert!(!is_match(pattern, text), "{pattern:?} {text:?}");
        }
    }

    #[test]
    fn line_must_match_a_rule_of_each_field_and_no_exclusion() {
        let filter = Filter::default().only("path=/a*").and_then(|filter| filter.only("path=/b*"));
        let filter =
            filter.and_then(|filter| filter.only("method=POST")).and_then(|filter| filter.exclude("user=root"));
        let filter = filter.expect("rules");
        let selects = |path, method, user| {
            filter.selects(|field| match field {
                "path" => path,
                "method" => method,
                _ => user,
            })
        };
        assert!(selects(Some("/a"), Some("POST"), Some("alice")));
        assert!(selects(Some("/b1"), Some("POST"), None));
        assert!(!selects(Some("/c"), Some("POST"), None));
        assert!(!selects(Some("/a"), Some("GET"), None));
        assert!(!selects(Some("/a"), None, None));
        assert!(!selects(Some("/a"), Some("POST"), Some("root")));
        assert!(Filter::default().selects(|_| None));
    }

    #[test]
    fn text_without_a_field_is_no_rule() {
        for text in ["", "path", "=x"] {
            assert!(Filter::default().only(text).is_err() && Filter::default().exclude(text).is_err(), "{text:?}");
        }
    }
}
