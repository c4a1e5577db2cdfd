//! Moves attributes behind a structure's members, `struct s { … } __attribute__((packed))`, in front of them.
//! NVRTC takes them only there: behind, it warns that they apply to nothing, and its layout ignores them.
//!
//! GNU C treats both places alike (its manual, «Attribute Syntax»: an attribute specifier list may follow
//! the keyword or the closing brace). Only braces of `struct` or `union` count, not comments or strings.

const WORD: &str = "__attribute__";

/// The text with each such attribute moved; all else stays as it is.
pub fn in_front(text: &str) -> String {
    let code = blanked(text);
    let mut open = Vec::new();
    // Place and text of what is put in, and ranges of what is taken out.
    let mut edits: Vec<(usize, usize, String)> = Vec::new();
    for (at, byte) in code.bytes().enumerate() {
        match byte {
            b'{' => open.push(at),
            b'}' => {
                let Some(begin) = open.pop() else { continue };
                let (Some(keyword_end), Some((from, to))) =
                    (opened_by(&code[..begin]), attributes(&code, at + 1))
                else {
                    continue;
                };
                edits.push((keyword_end, keyword_end, format!(" {}", &text[from..to])));
                edits.push((from, to, String::new()));
            }
            _ => {}
        }
    }
    edits.sort_by_key(|(from, ..)| *from);
    let mut moved = text.to_owned();
    for (from, to, words) in edits.iter().rev() {
        moved.replace_range(from..to, words);
    }
    moved
}

/// The same length, with comments and strings blank.
fn blanked(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let len = match rest {
            [b'/', b'/', ..] => rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len()),
            [b'/', b'*', ..] => {
                rest[2..].windows(2).position(|pair| pair == b"*/").map_or(rest.len(), |end| end + 4)
            }
            [quote @ (b'"' | b'\''), ..] => string(rest, *quote),
            _ => {
                at += 1;
                continue;
            }
        };
        code[at..at + len].iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
        at += len;
    }
    // What is not ASCII stands in comments and strings alone, or else is none of ours.
    code.iter_mut().filter(|byte| !byte.is_ascii()).for_each(|byte| *byte = b' ');
    String::from_utf8(code).expect("ASCII")
}

/// Length of a string with its quotes.
fn string(text: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < text.len() && text[at] != quote {
        at += if text[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(text.len())
}

/// Where the keyword ends, if what a brace opens is a structure.
fn opened_by(before: &str) -> Option<usize> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let last_word = |text: &str| {
        let end = text.trim_end().len();
        let start = text[..end].trim_end_matches(is_word).len();
        (start < end).then_some((start, end))
    };
    let (start, end) = last_word(before)?;
    if is_structure(&before[start..end]) {
        return Some(end);
    }
    let (start, end) = last_word(&before[..start])?;
    is_structure(&before[start..end]).then_some(end)
}

fn is_structure(word: &str) -> bool {
    word == "struct" || word == "union"
}

/// The attributes that follow `at`, from the first one's word to the last one's parenthesis.
fn attributes(code: &str, at: usize) -> Option<(usize, usize)> {
    let mut range = None;
    let mut at = at;
    loop {
        let from = code.len() - code[at..].trim_start().len();
        let Some(rest) = code[from..].strip_prefix(WORD) else { return range };
        let list = code.len() - rest.trim_start().len();
        let mut depth = 0;
        let end = code[list..].bytes().position(|byte| {
            depth += i32::from(byte == b'(') - i32::from(byte == b')');
            depth == 0
        })?;
        at = list + end + 1;
        range = Some((range.map_or(from, |(first, _)| first), at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_of_structures_are_moved_and_all_else_stays() {
        for (text, moved) in [
            (
                "struct s { int a; } __attribute__((__packed__));",
                "struct __attribute__((__packed__)) s { int a; } ;",
            ),
            (
                "typedef struct {\n int a;\n} __attribute__((packed)) __attribute__ ((aligned(8))) t;",
                "typedef struct __attribute__((packed)) __attribute__ ((aligned(8))) {\n int a;\n}  t;",
            ),
            (
                "struct o { union { char c; } __attribute__((packed)); } __attribute__((packed));",
                "struct __attribute__((packed)) o { union __attribute__((packed)) { char c; } ; } ;",
            ),
            (
                "struct s { int a; }; int b __attribute__((unused));",
                "struct s { int a; }; int b __attribute__((unused));",
            ),
            ("void f() { } __attribute__((x))", "void f() { } __attribute__((x))"),
            (
                "struct s { int a; /* } __attribute__((packed)) */ };",
                "struct s { int a; /* } __attribute__((packed)) */ };",
            ),
            ("// {\nasm(\"{\\\"\"); struct s {} ;", "// {\nasm(\"{\\\"\"); struct s {} ;"),
            ("} } struct", "} } struct"),
            ("struct s { } __attribute__((", "struct s { } __attribute__(("),
        ] {
            assert_eq!(in_front(text), moved);
        }
    }
}
