//! Every message of `doctor` stands on `docs/hardware.md`, with its meaning: texts of the printing sources
//! are compared with the page.
//!
//! A message is a literal of those sources of two words or more, without its placeholders: `{name}` in the
//! source, … on the page. Left out: words of CUDA's driver, the dynamic loader and git, which messages quote.

use std::fs;

use crate::workspace::root;

const PAGE: &str = "docs/hardware.md";

/// Files that print, or a function of a file whose other messages `doctor` never prints.
const SOURCES: [(&str, &str); 15] = [
    ("xtask/src/doctor/mod.rs", ""),
    ("xtask/src/doctor/conclusion.rs", ""),
    ("xtask/src/doctor/hardware.rs", "fn says"),
    ("xtask/src/workspace.rs", "pub fn in_words"),
    ("xtask/src/wheels.rs", "pub fn state"),
    ("xtask/src/onnx_runtime.rs", "pub fn state"),
    ("crates/zoo/src/onnx_runtime.rs", "pub fn find"),
    ("crates/zoo/src/onnx_runtime.rs", "fn said_by"),
    ("xtask/src/gpu_machine.rs", "pub fn probe"),
    ("crates/gpu/src/bin/gpu-probe.rs", ""),
    ("crates/gpu/src/result/mod.rs", "pub enum Error"),
    ("crates/gpu/src/result/mod.rs", "fn what_to_do"),
    ("crates/gpu/src/result/cudnn.rs", "pub fn load"),
    ("crates/gpu/src/safe/toolkit.rs", "pub struct ToolkitMissing"),
    ("crates/gpu/src/safe/pages.rs", "fn doorbell_refused"),
];

/// Literals with these words are no messages of `doctor`: help, errors and input of `gpu-probe`.
const OTHERS: [&str; 6] = [
    "gpu-probe [--json]",
    "give the folder of a toolkit",
    "give the GPU's place",
    "\"kind\":\"answer\"",
    "is no option of it",
    "NVRM version",
];

/// Parts of the messages of a source.
fn messages(text: &str) -> Vec<String> {
    let texts = literals(text).into_iter().map(|literal| unescaped(&literal));
    let parts = texts.flat_map(|text| parts(&text));
    parts.filter(|part| !OTHERS.iter().any(|other| part.contains(other))).collect()
}

/// The insides of string literals; those of comments are none.
fn literals(text: &str) -> Vec<String> {
    let (mut found, mut rest) = (Vec::new(), text);
    while let Some(c) = rest.chars().next() {
        let until = |end: &str| rest.find(end).map_or(rest.len(), |at| at + end.len());
        let length = match c {
            '/' if rest.starts_with("//") => until("\n"),
            '"' => {
                let end = end_of_literal(&rest[1..]);
                found.push(rest[1..=end].to_owned());
                end + 2
            }
            // A character, not a lifetime.
            '\'' if rest.starts_with("'\"'") => 3,
            c => c.len_utf8(),
        };
        rest = rest.get(length..).unwrap_or_default();
    }
    found
}

/// Where the first quote is that no backslash precedes.
fn end_of_literal(text: &str) -> usize {
    let mut is_escaped = false;
    let end = text.bytes().position(|byte| {
        let is_end = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        is_end
    });
    end.unwrap_or(text.len())
}

/// What the compiler makes of a literal.
fn unescaped(literal: &str) -> String {
    let mut lines = literal.split("\\\n");
    let first = lines.next().unwrap_or_default().to_owned();
    lines.fold(first, |text, line| text + line.trim_start()).replace("\\\"", "\"").replace("\\t", " ")
}

/// The words between placeholders, if they are two or more.
fn parts(text: &str) -> Vec<String> {
    let text = text.replace("{{", "\u{1}").replace("}}", "\u{2}");
    let pieces = text.split('{').enumerate().map(|(at, piece)| match at {
        0 => piece,
        _ => piece.split_once('}').map_or("", |(_, piece)| piece),
    });
    let pieces = pieces.map(|piece| normal(piece.trim_matches(|c: char| !c.is_alphanumeric())));
    pieces
        .filter(|piece| piece.split(' ').filter(|word| word.contains(char::is_alphabetic)).count() > 1)
        .collect()
}

/// Without marks of code, and with single spaces.
fn normal(text: &str) -> String {
    text.replace(['`', '\u{1}', '\u{2}'], "").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// From the line with `item` to the one that closes it, or the whole file; attributes of a type included.
fn of_item<'a>(text: &'a str, item: &str) -> &'a str {
    let Some(at) = text.find(item).filter(|_| !item.is_empty()) else { return text };
    let begin = text[..at].rfind("\n\n").map_or(0, |begin| begin + 2);
    let line = text[..at].rfind('\n').map_or(0, |line| line + 1);
    let indent = &text[line..at];
    let close = format!("\n{}}}", " ".repeat(indent.len() - indent.trim_start().len()));
    text[at..].find(&close).map_or(&text[begin..], |end| &text[begin..at + end])
}

#[test]
fn every_message_is_explained() {
    let page = normal(&fs::read_to_string(root().join(PAGE)).unwrap());
    let (mut missing, mut count) = (Vec::new(), 0);
    for (path, item) in SOURCES {
        let whole = fs::read_to_string(root().join(path)).unwrap();
        let text = whole.split("#[cfg(test)]\nmod tests {").next().unwrap();
        assert!(text.contains(item), "{path} has no {item}");
        let messages = messages(of_item(text, item));
        assert!(!messages.is_empty(), "{path}: {item} holds no message");
        count += messages.len();
        let unexplained = messages.into_iter().filter(|part| !page.contains(part.as_str()));
        missing.extend(unexplained.map(|part| format!("{path}: {part}")));
    }
    assert!(missing.is_empty(), "{PAGE} explains none of these:\n{}", missing.join("\n"));
    assert!(count > 40, "only {count} parts of messages were found");
}

#[test]
fn messages_are_literals_without_their_placeholders() {
    let text = r#"
        // "no message at all"
        row("name", &format!("{name}: MISSING, and {} why \
             not", x));
        const NO: char = '"';
        let y = "say \"it\" now";
    "#;
    assert_eq!(messages(text), ["MISSING, and", "why not", "say \"it\" now"]);
    let two = "fn a() {\n    \"of a one\";\n}\n\n/// Doc.\n#[error(\"of b two\")]\nenum B {\n    C,\n}\n\nfn d() {}\n";
    assert_eq!(messages(of_item(two, "enum B")), ["of b two"]);
    assert_eq!(messages(of_item(two, "fn a")), ["of a one"]);
}
