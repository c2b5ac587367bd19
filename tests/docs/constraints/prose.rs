//! The manual has short sentences, and none of the phrases that readers have to read twice.

use std::fs;
use std::path::Path;

use crate::ROOT;

/// CONTRIBUTING.md asks for at most 25 words. The check leaves room for names and lists.
const MAX_WORDS: usize = 30;

/// Phrases that hide their noun, and phrases that say something else than they mean.
const BANNED: [&str; 9] = [
    "that of",
    "those of",
    "the one of",
    "by how much",
    "from when on",
    "stops to spend",
    "stop to spend",
    "in vain",
    "nor is",
];

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(path)).expect(path)
}

/// The text of a page, with one paragraph or list item in each line. Code, tables, headings and definitions of links are
/// left out, and a code span counts as one word.
fn paragraphs(page: &str) -> Vec<String> {
    let (mut paragraphs, mut is_code) = (vec![String::new()], false);
    for line in page.lines().map(str::trim) {
        is_code ^= line.starts_with("```");
        let starts_other = line.starts_with(['|', '#', '<', '!']) || line.starts_with("```");
        let is_definition = line.starts_with('[') && line.contains("]: ");
        if is_code || starts_other || is_definition || line.is_empty() {
            paragraphs.push(String::new());
            continue;
        }
        let number = line.split_once(". ").filter(|(number, _)| number.bytes().all(|byte| byte.is_ascii_digit()));
        let item = line.strip_prefix("- ").or(number.map(|(_, text)| text));
        if item.is_some() {
            paragraphs.push(String::new());
        }
        let paragraph = paragraphs.last_mut().expect("a paragraph");
        paragraph.push(' ');
        paragraph.push_str(item.unwrap_or(line));
    }
    let code_as_a_word = |text: String| {
        let spans = text.split('`').enumerate();
        spans.map(|(index, part)| if index % 2 == 1 { "code" } else { part }).collect::<String>()
    };
    paragraphs.into_iter().map(code_as_a_word).filter(|text| !text.is_empty()).collect()
}

/// The sentences of a paragraph: they end with a mark before a space.
fn sentences(paragraph: &str) -> Vec<String> {
    let marked = ["** ", "* ", ") ", "\" ", " "].iter().fold(paragraph.to_owned() + " ", |text, end| {
        let text = text.replace(&format!(".{end}"), ".\n").replace(&format!("?{end}"), "?\n");
        text.replace(&format!("!{end}"), "!\n")
    });
    marked.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect()
}

/// Returns what is wrong with a text: long sentences and banned phrases.
fn faults(page: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for sentence in paragraphs(page).iter().flat_map(|paragraph| sentences(paragraph)) {
        let words = sentence.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count();
        let lower = sentence.to_lowercase();
        let has_words = |phrase: &&&str| {
            format!(" {lower} ").replace([',', '.', ';', ':', '('], " ").contains(&format!(" {phrase} "))
        };
        if words > MAX_WORDS {
            faults.push(format!("{words} words: {sentence}"));
        }
        faults.extend(BANNED.iter().filter(has_words).map(|phrase| format!("{phrase:?}: {sentence}")));
    }
    faults
}

/// The pages of the manual, and the front page of the documentation. `docs/testing.md` is a list of proofs.
fn pages() -> Vec<(String, String)> {
    let folder = Path::new(ROOT).join("docs");
    let files = fs::read_dir(folder).expect("docs").map(|entry| entry.expect("an entry").file_name());
    let names = files.filter_map(|name| name.to_str()?.strip_suffix(".md").map(str::to_owned));
    let mut pages: Vec<_> = names.filter(|name| name != "testing").map(|name| format!("docs/{name}.md")).collect();
    pages.sort();
    pages.push("README.md".to_owned());
    let mut pages: Vec<_> = pages.into_iter().map(|page| (page.clone(), read(&page))).collect();
    let front = read("src/lib.rs");
    let front: Vec<_> = front.lines().filter_map(|line| line.strip_prefix("//!")).map(str::trim).collect();
    pages.push(("src/lib.rs".to_owned(), front.join("\n")));
    assert!(pages.len() > 20, "{}", pages.len());
    pages
}

#[test]
fn sentences_of_the_manual_are_short() {
    let faults =
        |(name, page): (String, String)| faults(&page).into_iter().map(move |fault| format!("{name}: {fault}"));
    let faults: Vec<_> = pages().into_iter().flat_map(faults).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn long_sentences_and_banned_phrases_are_found() {
    let words = |count: usize| "word ".repeat(count);
    assert_eq!(faults(&format!("{}end.\n", words(29))), [""; 0]);
    assert_eq!(faults(&format!("{}end.\n", words(30))).len(), 1);
    assert_eq!(faults(&format!("{}\n{}end.", words(15), words(15))).len(), 1, "a sentence of two lines");
    assert_eq!(faults(&format!("{}end. {}end.", words(20), words(20))), [""; 0]);
    assert_eq!(faults(&format!("{}`a long span of code` end.", words(28))), [""; 0]);
    assert_eq!(faults(&format!("- {}\n- {}\n1. {}", words(20), words(20), words(20))), [""; 0]);
    for left_out in [format!("```\n{}\n```\n", words(40)), format!("| {} |", words(40)), format!("# {}", words(40))] {
        assert_eq!(faults(&left_out), [""; 0], "{left_out}");
    }
    assert_eq!(faults("The clock is that of the server.").len(), 1);
    assert_eq!(faults("The process stops\nto spend, early.").len(), 1);
    assert_eq!(faults("`that of` is code."), [""; 0]);
}
