//! Rust text prepared for textual checks: comments and literals blanked, test modules told apart.

use ra_ap_rustc_lexer::{FrontmatterAllowed, LiteralKind, TokenKind, tokenize};

/// `text` with the same length and lines; comments and literals but numbers are spaces. Reads C as well.
pub fn code(text: &str) -> String {
    blank(text, |kind| match kind {
        TokenKind::Literal { kind: LiteralKind::Int { .. } | LiteralKind::Float { .. }, .. } => false,
        TokenKind::Literal { .. } => true,
        kind => is_comment(kind),
    })
}

/// `text` with the same length and lines; comments are spaces. Reads C as well.
pub fn uncommented(text: &str) -> String {
    blank(text, is_comment)
}

fn is_comment(kind: &TokenKind) -> bool {
    matches!(kind, TokenKind::LineComment { .. } | TokenKind::BlockComment { .. })
}

/// `text` with the same length and lines; some tokens are spaces.
fn blank(text: &str, is_blank: impl Fn(&TokenKind) -> bool) -> String {
    let mut kept = String::with_capacity(text.len());
    for token in tokenize(text, FrontmatterAllowed::No) {
        let part = &text[kept.len()..kept.len() + token.len as usize];
        if is_blank(&token.kind) {
            kept.extend(part.bytes().map(|byte| if byte == b'\n' { '\n' } else { ' ' }));
        } else {
            kept += part;
        }
    }
    kept
}

/// Whether the whole file is for tests: integration tests, benches, files `*tests.rs`, mocks under `testing`.
pub fn is_test_file(path: &str) -> bool {
    path.split('/').any(|part| ["tests", "testing", "benches"].contains(&part)) || path.ends_with("tests.rs")
}

/// The lines before the unit tests, which stand last in a file (style card, §2); none in a test file.
pub fn without_tests<'a>(path: &str, text: &'a str) -> &'a str {
    if is_test_file(path) {
        return "";
    }
    let mut from = 0;
    while let Some(found) = text[from..].find("#[cfg(test)]") {
        let at = from + found;
        let after = text[at + "#[cfg(test)]".len()..].trim_start();
        // `mod tests;` in a file of its own keeps what follows it.
        if after.starts_with("mod ")
            && after.lines().next().is_some_and(|line| line.trim_end().ends_with('{'))
        {
            return &text[..at];
        }
        from = at + 1;
    }
    text
}

/// Every path that `use` items name, groups spelled out, as (line from zero, path); `code` is what [`code`]
/// leaves. `use std::{io, sync::{self, Arc as A}}` gives `std::io`, `std::sync::self`, `std::sync::Arc`.
pub fn use_paths(code: &str) -> Vec<(usize, String)> {
    let mut paths = Vec::new();
    for (at, _) in code.match_indices("use ") {
        let Some(end) = code[at..].find(';').filter(|_| !code[..at].ends_with(is_name)) else { continue };
        let (mut prefixes, mut from) = (vec![String::new()], at + "use ".len());
        for here in (from..=at + end).filter(|here| b"{,};".contains(&code.as_bytes()[*here])) {
            // `a as b`: the name that it gets does not matter. A group's closing brace ends an empty path.
            let own = code[from..here].split(" as ").next().unwrap_or_default().split_whitespace();
            let own: String = own.collect();
            let whole = format!("{}{own}", prefixes.last().map_or("", String::as_str));
            match code.as_bytes()[here] {
                b'{' => prefixes.push(whole),
                _ if own.is_empty() => {}
                _ => {
                    let line = code[..here].matches('\n').count();
                    paths.push((line, whole.trim_start_matches("::").to_owned()));
                }
            }
            if code[here..].starts_with('}') {
                prefixes.pop();
            }
            from = here + 1;
        }
    }
    paths
}

/// The words of a table, each with its meaning; a row has the meaning, and its words, apart by blanks.
pub fn words(
    table: &'static [(&'static str, &'static str)],
) -> impl Iterator<Item = (&'static str, &'static str)> {
    table.iter().flat_map(|(what, words)| words.split(' ').map(move |word| (word, *what)))
}

/// Whether a file is one of Rust, C or CUDA.
pub fn is_code(path: &str) -> bool {
    [".rs", ".h", ".c", ".cu"].iter().any(|end| path.ends_with(end))
}

/// Whether a name may hold this character.
pub fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Whether `word` stands in `line` as a word of its own.
pub fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word)
        .any(|(at, _)| !line[..at].ends_with(is_name) && !line[at + word.len()..].starts_with(is_name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_stays() {
        for (text, kept) in [
            ("a // unsafe\nb", "a b"),
            ("a /* x /* y */ z */ b", "a b"),
            ("f(\"un\\\"safe\") ", "f( )"),
            ("r#\"a\"b\"# c", "c"),
            ("'x' 'a: &'b c", "'a: &'b c"),
            ("'\\'' d", "d"),
            ("'é' d", "d"),
            ("for\"x\"", "for"),
        ] {
            let code = code(text);
            assert_eq!(code.len(), text.len(), "{text}");
            assert_eq!(code.split_whitespace().collect::<Vec<_>>().join(" "), kept, "{text}");
        }
    }

    #[test]
    fn an_unclosed_literal_ends_with_the_file() {
        for text in ["\"abc", "/* abc", "r#\"abc", "'\\"] {
            assert_eq!(code(text).trim(), "", "{text}");
        }
    }

    #[test]
    fn tests_at_the_end_are_cut_off() {
        assert_eq!(without_tests("src/a.rs", "fn a() {}\n#[cfg(test)]\nmod tests {\n}"), "fn a() {}\n");
        assert_eq!(
            without_tests("src/a.rs", "#[cfg(test)]\nmod tests;\nfn a() {}"),
            "#[cfg(test)]\nmod tests;\nfn a() {}"
        );
        assert_eq!(without_tests("src/a.rs", "#[cfg(test)]\nfn a() {}\n"), "#[cfg(test)]\nfn a() {}\n");
        assert_eq!(without_tests("tests/it/main.rs", "fn a() {}"), "");
    }

    #[test]
    fn groups_of_imports_are_spelled_out() {
        let text = "use std::{\n    io,\n    sync::{self, Arc as A},\n};\npub use ::a::b;\nfn reuse (x: u8) {}\nuse std as s;";
        let paths = use_paths(&code(text));
        let found: Vec<String> = paths.iter().map(|(line, path)| format!("{line} {path}")).collect();
        assert_eq!(found, ["1 std::io", "2 std::sync::self", "2 std::sync::Arc", "4 a::b", "6 std"]);
    }

    #[test]
    fn a_word_is_not_a_part_of_another() {
        assert!(has_word("unsafe {", "unsafe"));
        assert!(has_word("(unsafe)", "unsafe"));
        assert!(!has_word("unsafe_code", "unsafe"));
    }
}
