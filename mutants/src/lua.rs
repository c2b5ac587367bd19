//! Mutants of the Lua scripts, one token each.

use std::path::Path;

use crate::mutate::{Mutant, marked};

/// A mutant of a Lua script. A script that contains `original` is sent with `mutated` instead.
pub(crate) struct LuaMutant {
    pub(crate) mutant: Mutant,
    pub(crate) original: String,
    pub(crate) mutated: String,
}

const FOLDERS: [&str; 4] =
    ["src/algorithm", "src/algorithm/bucket", "src/algorithm/sliding_window", "src/store/redis/script"];
/// A protocol that admits too much, for tests only.
const EXCLUDED: [&str; 1] = ["lease_charged_at_grant.lua"];

/// Returns the mutants of all Lua scripts.
pub(crate) fn mutants(repository: &Path) -> Vec<LuaMutant> {
    let mut mutants = Vec::new();
    for folder in FOLDERS {
        let entries = std::fs::read_dir(repository.join(folder)).expect("a folder of Lua scripts");
        let mut files: Vec<_> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
        files.sort_unstable();
        for file in files.iter().filter(|file| file.ends_with(".lua") && !EXCLUDED.contains(&file.as_str())) {
            let text = std::fs::read_to_string(repository.join(folder).join(file)).expect("a Lua script");
            add(&format!("{folder}/{file}"), &text, &mut mutants);
        }
    }
    mutants
}

/// Adds the mutants of one script.
fn add(file: &str, text: &str, mutants: &mut Vec<LuaMutant>) {
    let tokens = tokens(text);
    let mut function = String::new();
    for (index, token) in tokens.iter().enumerate() {
        if index > 0 && tokens[index - 1].text == "function" && token.is_name() {
            // Also `this.charged`: two tables may have functions of one name.
            let dotted = tokens[index..].iter().take_while(|token| token.is_name() || token.text == ".");
            function = dotted.map(|token| token.text).collect();
        }
        let mut changes: Vec<(String, std::ops::Range<usize>, String)> = Vec::new();
        for to in replacements(&tokens, index) {
            changes.push((format!("`{}` to `{to}`", token.text), token.at..token.at + token.text.len(), to));
        }
        if let Some(range) = statement(text, token) {
            changes.push(("statement deleted".to_owned(), range, String::new()));
        }
        for (change, range, to) in changes {
            let before = &text[..range.start];
            let start_of_line = before.rfind('\n').map_or(0, |at| at + 1);
            let line = text[start_of_line..].lines().next().unwrap_or_default();
            let column = before[start_of_line..].chars().count();
            let mutant = Mutant {
                number: u32::try_from(mutants.len()).expect("few mutants"),
                file: file.to_owned(),
                line: before.matches('\n').count() + 1,
                column: column + 1,
                function: function.clone(),
                change,
                key: String::new(),
                source: marked(line, column),
            };
            let mutated = format!("{}{to}{}", &text[..range.start], &text[range.end..]);
            mutants.push(LuaMutant { mutant, original: text.to_owned(), mutated });
        }
    }
}

struct Token<'a> {
    at: usize,
    text: &'a str,
    is_first_of_line: bool,
}

impl Token<'_> {
    fn is_name(&self) -> bool {
        self.text.starts_with(|char: char| char.is_ascii_alphabetic() || char == '_')
    }

    /// Returns whether the token can end an operand, so that an operator after it has two operands.
    fn ends_operand(&self) -> bool {
        let keywords = ["and", "or", "not", "return", "then", "else", "do", "if", "while", "until", "in", "elseif"];
        let ends = self.text.ends_with(|char: char| char.is_ascii_alphanumeric() || "_)]}'\"".contains(char));
        ends && !keywords.contains(&self.text)
    }
}

/// Splits a script into tokens, without comments.
fn tokens(text: &str) -> Vec<Token<'_>> {
    let bytes = text.as_bytes();
    let (mut tokens, mut at, mut is_first_of_line) = (Vec::new(), 0, true);
    while at < bytes.len() {
        let rest = &text[at..];
        let length = |matches: fn(char) -> bool| rest.find(|char| !matches(char)).unwrap_or(rest.len());
        let len = match bytes[at] {
            b'\n' => {
                is_first_of_line = true;
                at += 1;
                continue;
            }
            byte if byte.is_ascii_whitespace() => {
                at += 1;
                continue;
            }
            b'-' if rest.starts_with("--") => {
                at += rest.find('\n').unwrap_or(rest.len());
                continue;
            }
            quote @ (b'\'' | b'"') => rest[1..].find(quote as char).expect("the end of a string") + 2,
            byte if byte.is_ascii_alphabetic() || byte == b'_' => {
                length(|char| char.is_ascii_alphanumeric() || char == '_')
            }
            byte if byte.is_ascii_digit() => length(|char| char.is_ascii_alphanumeric() || char == '.'),
            _ => {
                ["...", "==", "~=", "<=", ">=", ".."].iter().find(|op| rest.starts_with(**op)).map_or(1, |op| op.len())
            }
        };
        tokens.push(Token { at, text: &rest[..len], is_first_of_line });
        is_first_of_line = false;
        at += len;
    }
    tokens
}

/// Returns the texts that replace a token.
fn replacements(tokens: &[Token<'_>], index: usize) -> Vec<String> {
    let token = &tokens[index];
    let is_binary = index > 0 && tokens[index - 1].ends_operand();
    let fixed: &[&str] = match token.text {
        "<" => &["<=", ">="],
        "<=" => &["<", ">"],
        ">" => &[">=", "<="],
        ">=" => &[">", "<"],
        "==" => &["~="],
        "~=" => &["=="],
        "+" => &["-", "*"],
        "-" if is_binary => &["+", "/"],
        "*" => &["+", "/"],
        "/" => &["*", "-"],
        "%" => &["/", "+"],
        "and" => &["or"],
        "or" => &["and"],
        "not" => &[""],
        "true" => &["false"],
        "false" => &["true"],
        "floor" => &["ceil"],
        "ceil" => &["floor"],
        "min" => &["max"],
        "max" => &["min"],
        _ => &[],
    };
    if let Ok(number) = token.text.parse::<u64>() {
        let less = number.checked_sub(1).map(|less| less.to_string());
        return std::iter::once((number + 1).to_string()).chain(less).collect();
    }
    fixed.iter().map(|&to| to.to_owned()).collect()
}

/// Returns the range of a statement on a line of its own that can be deleted: a call, or an assignment that declares
/// nothing.
fn statement(text: &str, first: &Token<'_>) -> Option<std::ops::Range<usize>> {
    if !first.is_first_of_line || !first.is_name() {
        return None;
    }
    let keywords = ["local", "if", "elseif", "else", "for", "while", "repeat", "until", "function", "return", "end"];
    if keywords.contains(&first.text) {
        return None;
    }
    let line = text[first.at..].split('\n').next()?;
    let code = line.split("--").next()?.trim_end();
    let is_whole = code.matches(['(', '{', '[']).count() == code.matches([')', '}', ']']).count();
    let is_statement = (code.ends_with(')') && !code.contains(" = ")) || code.contains(" = ");
    // A line that ends in an operator or a comma continues, and one within a table constructor is no statement.
    let continues = code.ends_with([',', '+', '-', '*', '/', '=']) || code.ends_with("and") || code.ends_with("or");
    (is_whole && is_statement && !continues && !code.ends_with("function()")).then(|| first.at..first.at + code.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_a_line_are_mutated_and_comments_are_not() {
        let mut mutants = Vec::new();
        add("file.lua", "if a <= 1 then -- a < 2\n  call(b)\nend\n", &mut mutants);
        let changes: Vec<_> = mutants.iter().map(|mutant| mutant.mutant.change.as_str()).collect();
        assert_eq!(changes, ["`<=` to `<`", "`<=` to `>`", "`1` to `2`", "`1` to `0`", "statement deleted"]);
        assert_eq!(mutants[4].mutated, "if a <= 1 then -- a < 2\n  \nend\n");
        assert_eq!((mutants[4].mutant.line, mutants[4].mutant.column), (2, 3));
    }

    #[test]
    fn every_script_has_mutants() {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository");
        let mutants = mutants(repository);
        for (index, mutant) in mutants.iter().enumerate() {
            assert_ne!(mutant.original, mutant.mutated);
            if let Some(folder) = std::env::var_os("MUTANTS_TO") {
                std::fs::write(Path::new(&folder).join(format!("{index}.lua")), &mutant.mutated).expect("written");
            }
        }
        assert!(mutants.iter().any(|mutant| mutant.mutant.file.ends_with("sliding_log.lua")), "{}", mutants.len());
        assert!(mutants.iter().any(|mutant| mutant.mutant.file.ends_with("driver.lua")), "{}", mutants.len());
    }
}
