//! Hints on prose in comments, messages and documents. None fails: `tidy --report` counts, so that they fall.

use super::source;

/// Words behind which «who» stands for a noun; elsewhere it asks, or belongs to the noun in front of it.
const PREPOSITIONS: [&str; 23] = [
    "and", "as", "at", "before", "beside", "but", "by", "for", "from", "if", "in", "like", "of", "on", "or",
    "than", "that", "then", "to", "until", "unless", "when", "with",
];

/// Where «who», «whose» or «whoever» is used as a noun («Who asks gets …», «for who asks»): the words there.
/// Looks at comments and literals of sources, and at Markdown; questions are left alone.
pub fn who_as_noun(path: &str, text: &str) -> Vec<String> {
    let words = words(path, text);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let is_end = |word: &str| word.ends_with(['.', ';', ':', '?', '!', '|']);
    let stands = |at: usize| {
        let word = words[at].trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase();
        let before =
            if words[at].starts_with('"') { "." } else { at.checked_sub(1).map_or(".", |at| words[at]) };
        let preposition = before.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase();
        let is_question =
            || words[at..].iter().find(|word| is_end(word)).is_some_and(|word| word.ends_with('?'));
        match word.as_str() {
            "whoever" | "whomever" => true,
            "who" | "whose" => {
                (is_end(before) || PREPOSITIONS.contains(&preposition.as_str())) && !is_question()
            }
            _ => false,
        }
    };
    let found = (0..words.len()).filter(|at| stands(*at));
    found.map(|at| words[at..words.len().min(at + 4)].join(" ")).collect()
}

/// Words of the prose in a file; where a comment or literal ends, a full stop stands by itself.
fn words(path: &str, text: &str) -> Vec<String> {
    let is_source = [".rs", ".h", ".c", ".cu", ".cpp"].iter().any(|end| path.ends_with(end));
    if !is_source && !path.ends_with(".md") {
        return Vec::new();
    }
    let code = if is_source { source::code(text) } else { String::new() };
    let mut words = Vec::new();
    for (line, code) in text.lines().zip(code.lines().chain(std::iter::repeat(""))) {
        let is_prose = |at: usize| code.as_bytes().get(at).is_none_or(|byte| *byte == b' ');
        let prose: String = line.char_indices().filter(|(at, _)| is_prose(*at)).map(|(_, c)| c).collect();
        let prose = prose.trim().trim_start_matches(['/', '*', '!']);
        // A line with code in it, or with nothing, ends the sentence.
        if prose.trim().is_empty() || !code.trim().is_empty() {
            words.push(".".to_owned());
        }
        words.extend(prose.split_whitespace().map(str::to_owned));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_counted_where_it_stands_for_a_noun() {
        for (path, text, count) in [
            ("a.rs", "/// Who asks gets it.", 1),
            ("a.rs", "/// The peer who asks gets it.", 0),
            ("a.rs", "/// Given to\n/// who asks, and whoever\n/// rings; whose turn it is.", 3),
            ("a.rs", "/// Says who asks.\nfn who() { f(who) }", 0),
            ("a.rs", "for who in whom {}", 0),
            ("a.rs", "fn f() {\n    bail!(\"for who asks\")", 1),
            ("a.rs", "/// Who asks?", 0),
            ("a.h", "/* Who asks. */", 1),
            ("a.md", "| x | who asks |\n\nWho asks", 2),
            ("a.toml", "# Who asks", 0),
        ] {
            assert_eq!(who_as_noun(path, text).len(), count, "{text}");
        }
    }
}
