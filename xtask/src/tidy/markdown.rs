//! Tables and code spans of our Markdown, as far as checks read them.

/// Rows of the table whose first header cell is `first`, header left out; cells are trimmed.
pub fn table(text: &str, first: &str) -> Option<Vec<Vec<String>>> {
    let mut lines = text.lines().skip_while(|line| !line.starts_with('|') || cells(line)[0] != first);
    lines.next()?;
    let rows = lines.take_while(|line| line.starts_with('|')).map(cells);
    Some(rows.filter(|row| !row[0].is_empty() && !row[0].chars().all(|c| "-: ".contains(c))).collect())
}

fn cells(line: &str) -> Vec<String> {
    line.trim().trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
}

/// The text without HTML comments; its lines stay where they are.
pub fn without_comments(text: &str) -> String {
    let mut parts = text.split("<!--");
    let mut prose = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (comment, rest) = part.split_once("-->").unwrap_or((part, ""));
        prose.extend(comment.chars().filter(|c| *c == '\n'));
        prose += rest;
    }
    prose
}

/// Lines with their numbers, fenced blocks left out.
pub fn unfenced<'a>(lines: impl Iterator<Item = &'a str>) -> impl Iterator<Item = (usize, &'a str)> {
    let mut fenced = false;
    (1..).zip(lines).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        fenced ^= is_fence;
        !fenced && !is_fence
    })
}

/// Code spans as (line number, text), fenced blocks left out.
pub fn code_spans(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let of_line =
        |(number, line): (usize, _)| str::split(line, '`').skip(1).step_by(2).map(move |span| (number, span));
    unfenced(text.lines()).flat_map(of_line)
}

/// Targets of links and pictures as (line number, target), fenced blocks and code spans left out.
pub fn links(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let of_line = |(number, line): (usize, _)| {
        let parts = str::split(line, '`').step_by(2).flat_map(|part| part.split("](").skip(1));
        parts.filter_map(move |behind| Some((number, behind.split_once(')')?.0)))
    };
    unfenced(text.lines()).flat_map(of_line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_found_by_its_first_header() {
        let text = "| a | b |\n|---|---|\n| 1 | 2 |\n\n| n | c |\n|:--|---|\n| 7 | x y |\n| 8 | |\n\ntext";
        assert_eq!(table(text, "n").unwrap(), [["7", "x y"], ["8", ""]]);
        assert_eq!(table(text, "a").unwrap(), [["1", "2"]]);
        assert_eq!(table(text, "z"), None);
    }

    #[test]
    fn a_comment_goes_and_leaves_its_lines() {
        assert_eq!(without_comments("a<!-- b -->c\n<!--\nd\n-->\ne<!-- f"), "ac\n\n\n\ne");
    }

    #[test]
    fn code_spans_skip_fences() {
        let spans: Vec<_> = code_spans("a `b` c `d`\n```\n`x`\n```\n`e`").collect();
        assert_eq!(spans, [(1, "b"), (1, "d"), (5, "e")]);
    }
}
