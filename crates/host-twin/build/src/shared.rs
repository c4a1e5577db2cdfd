//! Rewrites `__shared__` declarations: the host's compiler has no storage that the lanes of a block share.
//!
//! `__shared__ T a[16], b;` becomes a reference into the block's shared memory, which the runtime hands out
//! (`db_twin_shared_of`); `extern __shared__ T s[];` becomes a pointer to its dynamic part. Lines keep their
//! numbers. Left out: `__shared__` in headers, and at namespace scope without `extern`. Both do not compile.

use std::ops::Range;

/// The source with its declarations rewritten, or what is wrong with one, by line.
pub(crate) fn rewrite(text: &str) -> Result<String, String> {
    let code = blank(text);
    let mut out = String::with_capacity(text.len());
    let mut copied = 0;
    for (number, at) in words(&code, "__shared__").into_iter().enumerate() {
        let line = text[..at].matches('\n').count() + 1;
        let start = code[..at].rfind([';', '{', '}', '#']).map_or(0, |last| last + 1);
        let start = start + code[start..].len() - code[start..].trim_start().len();
        let end =
            at + end_of_declaration(&code[at..]).ok_or(format!("line {line}: no end of the declaration"))?;
        let declaration = code[start..end].replace("__shared__", " ");
        let in_function = is_in_function(&code[..start]);
        let dynamic = words(&declaration, "extern").first().copied();
        let declaration = match dynamic {
            Some(at) => declaration[at + "extern".len()..].to_owned(),
            None => strip_word(&declaration, "static"),
        };
        out.push_str(&text[copied..start]);
        out.push_str(&match (dynamic.is_some(), in_function) {
            (true, _) => pointer(number, &declaration, in_function),
            (false, true) => references(number, &declaration),
            (false, false) => {
                return Err(format!("line {line}: __shared__ outside a function, and not extern"));
            }
        });
        out.push_str(&"\n".repeat(text[start..end].matches('\n').count()));
        copied = end + 1;
    }
    out.push_str(&text[copied..]);
    Ok(out)
}

/// `__shared__ T a[16], b`: a struct with these members, and a reference to each.
fn references(number: usize, declaration: &str) -> String {
    let names: Vec<&str> = declarators(declaration).into_iter().map(|range| &declaration[range]).collect();
    let members = one_line(declaration);
    let mut text = format!(
        " struct db_twin_s{number} {{ {members}; }}; auto &db_twin_r{number} = db_twin_shared_of<db_twin_s{number}>(\"{}\");",
        names.join(", ")
    );
    for name in names {
        text.push_str(&format!(" [[maybe_unused]] auto &{name} = db_twin_r{number}.{name};"));
    }
    text
}

/// `extern __shared__ T s[]`: a pointer to the dynamic part.
fn pointer(number: usize, declaration: &str, in_function: bool) -> String {
    let declaration = strip_alignment(declaration);
    let Some(name) = declarators(&declaration).into_iter().next() else { return String::new() };
    let (kind, rest) = (one_line(&declaration[..name.start]), &declaration[name.end..]);
    let inner = rest.split_once(']').map_or("", |(_, inner)| inner).trim();
    let (name, element) = (&declaration[name], format!("db_twin_e{number}"));
    let variable = match in_function {
        true => format!("[[maybe_unused]] {element} *const {name} = ({element} *)db_twin_dynamic();"),
        false => format!("static const db_twin_dynamic_of<{element}> {name}{{}};"),
    };
    format!(" typedef {kind} {element}{inner}; {variable}")
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Where the word stands.
fn words(code: &str, word: &str) -> Vec<usize> {
    let alone = |at: usize| !code[..at].ends_with(is_word) && !code[at + word.len()..].starts_with(is_word);
    code.match_indices(word).map(|(at, _)| at).filter(|&at| alone(at)).collect()
}

fn strip_word(code: &str, word: &str) -> String {
    let mut text = code.to_owned();
    while let Some(&at) = words(&text, word).first() {
        text.replace_range(at..at + word.len(), " ");
    }
    text
}

/// Without `alignas(…)` and `__align__(…)`: the dynamic part is aligned for everything.
fn strip_alignment(code: &str) -> String {
    let mut text = code.to_owned();
    for word in ["alignas", "__align__"] {
        while let Some(&at) = words(&text, word).first() {
            let close = text[at..].find(')').map_or(text.len(), |close| at + close + 1);
            text.replace_range(at..close, " ");
        }
    }
    text
}

/// The `;` that ends the declaration.
fn end_of_declaration(code: &str) -> Option<usize> {
    let mut depth = 0;
    code.char_indices().find_map(|(at, c)| {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        (c == ';' && depth == 0).then_some(at)
    })
}

/// The names that a declaration declares: the last word of each declarator before its brackets.
fn declarators(declaration: &str) -> Vec<Range<usize>> {
    let (mut names, mut bracketed, mut last, mut word) = (Vec::new(), false, None, None);
    // Within brackets `<` compares and shifts.
    let (mut depth, mut angles) = (0, 0);
    for (at, c) in declaration.char_indices().chain([(declaration.len(), ',')]) {
        match (is_word(c), word) {
            (true, None) => word = Some(at),
            (false, Some(start)) => {
                if depth == 0 && angles == 0 && !bracketed {
                    last = Some(start..at);
                }
                word = None;
            }
            _ => {}
        }
        match c {
            '[' | '(' | '{' => {
                bracketed = bracketed || depth == 0 && angles == 0 && c == '[';
                depth += 1;
            }
            ']' | ')' | '}' => depth -= 1,
            '<' if depth == 0 => angles += 1,
            '>' if depth == 0 => angles -= 1,
            ',' if depth == 0 && angles == 0 => {
                names.extend(last.take());
                bracketed = false;
            }
            _ => {}
        }
    }
    names
}

/// Whether a place lies in braces that are not a namespace's or `extern "C"`'s.
fn is_in_function(before: &str) -> bool {
    let mut braces: Vec<bool> = Vec::new();
    let mut statement = 0;
    for (at, c) in before.char_indices() {
        match c {
            '{' => {
                let head = &before[statement..at];
                let alone = head.trim_end().ends_with("extern") || !words(head, "namespace").is_empty();
                braces.push(!alone);
            }
            '}' => {
                braces.pop();
            }
            _ => {}
        }
        if matches!(c, ';' | '{' | '}') {
            statement = at + 1;
        }
    }
    braces.contains(&true)
}

/// The same length; comments, strings and preprocessor lines are spaces, but `#`, the end of what precedes.
pub(crate) fn blank(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    let mut line_is_empty = true;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let length = if rest.starts_with(b"//") {
            end_of_line(rest)
        } else if rest.starts_with(b"/*") {
            text[at + 2..].find("*/").map_or(rest.len(), |close| close + 4)
        } else if rest[0] == b'"' || rest[0] == b'\'' && !out.last().is_some_and(u8::is_ascii_digit) {
            end_of_literal(rest)
        } else if rest[0] == b'#' && line_is_empty {
            end_of_line(rest)
        } else {
            0
        };
        if length == 0 {
            line_is_empty = rest[0] == b'\n' || line_is_empty && rest[0].is_ascii_whitespace();
            out.push(rest[0]);
            at += 1;
            continue;
        }
        let blanked = rest[..length].iter().map(|&byte| if byte == b'\n' { b'\n' } else { b' ' });
        out.extend(blanked);
        if rest[0] == b'#'
            && let Some(last) = out.last_mut()
        {
            // At its end: what comes next begins anew.
            *last = b'#';
        }
        at += length;
    }
    String::from_utf8(out).unwrap_or_default()
}

/// Up to the end of the line, continued ones included.
fn end_of_line(rest: &[u8]) -> usize {
    let is_end = |at: &usize| rest[*at] == b'\n' && (*at == 0 || rest[at - 1] != b'\\');
    (0..rest.len()).find(is_end).unwrap_or(rest.len())
}

fn end_of_literal(rest: &[u8]) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != rest[0] {
        at += if rest[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A function's body, rewritten.
    fn body(text: &str) -> String {
        let whole = format!("void f() {{\n{text}\n}}");
        let rewritten = rewrite(&whole).unwrap();
        assert_eq!(rewritten.matches('\n').count(), whole.matches('\n').count(), "lines keep their numbers");
        rewritten["void f() {\n".len()..rewritten.len() - 2].trim().to_owned()
    }

    #[test]
    fn variables_become_references_into_the_blocks_memory() {
        assert_eq!(
            body("__shared__ float tile[16][T<3>::n], last;"),
            "struct db_twin_s0 { float tile[16][T<3>::n], last; }; \
             auto &db_twin_r0 = db_twin_shared_of<db_twin_s0>(\"tile, last\"); \
             [[maybe_unused]] auto &tile = db_twin_r0.tile; [[maybe_unused]] auto &last = db_twin_r0.last;"
        );
        for (declaration, names) in [
            ("static __shared__ volatile int count;", "count"),
            ("__shared__ double wide[1 << 15], next[N < 3 ? 1 : 2];", "wide, next"),
            ("__shared__ struct { int a, b; } pair;", "pair"),
            ("__shared__ __align__(16) std::array<int, 4> rows[2];", "rows"),
            ("__shared__\n  unsigned char *a,\n b[8];", "a, b"),
        ] {
            assert!(body(declaration).contains(&format!("(\"{names}\")")), "{}", body(declaration));
        }
    }

    #[test]
    fn extern_arrays_become_pointers_to_the_dynamic_part() {
        assert_eq!(
            body("extern __shared__ __align__(16) unsigned char s[];"),
            "typedef unsigned char db_twin_e0; [[maybe_unused]] db_twin_e0 *const s = (db_twin_e0 *)db_twin_dynamic();"
        );
        assert!(body("extern __shared__ float rows[][16];").starts_with("typedef float db_twin_e0[16];"));
        let outside = rewrite("namespace a { extern \"C\" {\nextern __shared__ int s[];\n} }").unwrap();
        assert!(outside.contains("static const db_twin_dynamic_of<db_twin_e0> s{};"), "{outside}");
    }

    #[test]
    fn what_is_no_declaration_stays_and_what_cannot_be_is_named_by_line() {
        let text = "#define A __shared__ \\\n x\n// __shared__ int a;\nconst char *s = \"__shared__\"; /* __shared__ */\n";
        assert_eq!(rewrite(text).unwrap(), text);
        assert_eq!(
            rewrite("\n__shared__ int a;\n").unwrap_err(),
            "line 2: __shared__ outside a function, and not extern"
        );
        assert!(rewrite("void f() { __shared__ int a }").unwrap_err().starts_with("line 1: no end"));
    }

    #[test]
    fn a_declaration_behind_a_preprocessor_line_takes_nothing_of_it_along() {
        let text = "void f() {\n#ifdef N\n    __shared__ int a;\n#endif\n}\n";
        let rewritten = rewrite(text).unwrap();
        assert!(
            rewritten.starts_with("void f() {\n#ifdef N\n") && rewritten.contains("int a; };"),
            "{rewritten}"
        );
        assert!(rewritten.ends_with("\n#endif\n}\n"), "{rewritten}");
    }
}
