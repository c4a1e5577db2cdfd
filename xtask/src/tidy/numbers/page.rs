//! What of a page are figures, which source stands behind each, and what the page's names stand for.

use super::formula;
use super::quantity::{Kind, Unit};

/// One page.
#[derive(Debug, Default)]
pub struct Page<'a> {
    pub figures: Vec<Figure<'a>>,
    /// Line, name and source of each `NAME = SOURCE` in the page's comment `<!-- numbers`.
    pub names: Vec<(usize, &'a str, &'a str)>,
    /// Comments with a source behind nothing: line and text.
    pub strays: Vec<(usize, &'a str)>,
}

/// A number in prose that has a unit or a source.
#[derive(Debug)]
pub struct Figure<'a> {
    pub line: usize,
    /// Number and unit as they stand there; a line may end between them.
    pub said: &'a str,
    pub number: &'a str,
    pub unit: Option<&'static Unit>,
    /// What stands in the comment directly behind it.
    pub source: Option<&'a str>,
}

impl Figure<'_> {
    /// Whether its unit asks for a source.
    pub fn is_asked(&self) -> bool {
        self.unit.is_some_and(|unit| unit.needs_source)
    }

    /// Whether it is a time like «nine minutes».
    pub fn is_in_words(&self) -> bool {
        self.said.starts_with(char::is_alphabetic)
    }
}

const OPEN: &str = "<!--";
const CLOSE: &str = "-->";
/// First line of the comment that defines names.
const NAMES: &str = "<!-- numbers";

impl Page<'_> {
    pub fn read(text: &str) -> Page<'_> {
        let mut page = Page::default();
        let (mut fenced, mut made, mut names, mut at) = (false, false, false, 0);
        // Where the paragraph of prose begins that is read.
        let mut begins = None;
        for (number, line) in (1..).zip(text.split_inclusive('\n')) {
            let trimmed = line.trim();
            let pair = trimmed.split_once('=').filter(|_| names);
            page.names.extend(pair.map(|(name, source)| (number, name.trim(), source.trim())));
            let is_fence = trimmed.starts_with("```") && !names;
            names |= trimmed == NAMES && !fenced;
            made = (made || trimmed.starts_with("<!-- table:")) && trimmed != "<!-- end of table -->";
            let is_prose = !(fenced || is_fence || made || names || trimmed.is_empty());
            fenced ^= is_fence;
            names &= !line.contains(CLOSE);
            match begins {
                None if is_prose => begins = Some(at),
                Some(first) if !is_prose => {
                    page.paragraph(text, first, at);
                    begins = None;
                }
                _ => {}
            }
            at += line.len();
        }
        if let Some(first) = begins {
            page.paragraph(text, first, text.len());
        }
        page
    }
}

fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

impl<'a> Page<'a> {
    /// Whether a figure's source, or that of another name, is a formula with this name.
    pub fn uses(&self, name: &str) -> bool {
        let of_figures = self.figures.iter().filter_map(|figure| figure.source);
        let mut all = of_figures.chain(self.names.iter().map(|(_, _, source)| *source));
        all.any(|source| !source.contains('#') && formula::words(source).any(|word| word == name))
    }

    /// Figures of prose from `first` to `end`, code spans and targets of links left out.
    fn paragraph(&mut self, text: &'a str, first: usize, end: usize) {
        let (prose, mut at) = (&text[first..end], 0);
        // Where the last figure ended, for the comment behind it.
        let mut last = None;
        while let Some(next) = prose[at..].chars().next() {
            let rest = &prose[at..];
            let line = || line_of(text, first + at);
            if let Some(inside) = rest.strip_prefix(OPEN) {
                let end = inside.find(CLOSE).unwrap_or(inside.len());
                if let Some(source) = inside[..end].trim().strip_prefix('=') {
                    match self.figures.last_mut().filter(|_| last == Some(at)) {
                        Some(figure) => figure.source = Some(source.trim()),
                        None => self.strays.push((line(), inside[..end].trim())),
                    }
                }
                at += OPEN.len() + (end + CLOSE.len()).min(inside.len());
            } else if next == '`' {
                at += rest[1..].find('`').map_or(rest.len(), |end| end + 2);
            } else if rest.starts_with("](") {
                at += rest.find(')').unwrap_or(rest.len());
            } else if let Some(mut figure) = figure(line, &prose[..at], rest) {
                at += figure.said.len();
                figure.unit = figure.unit.or_else(|| of_range(&prose[at..]));
                // A number alone is a figure only with a source.
                if figure.unit.is_some() || prose[at..].starts_with("<!-- =") {
                    self.figures.push(figure);
                    last = Some(at);
                }
            } else {
                at += next.len_utf8();
            }
        }
    }
}

/// The unit of «3 to 5 ms» and «3–5 ms» for the first number, which the text stands behind.
fn of_range(rest: &str) -> Option<&'static Unit> {
    let rest = match rest.strip_prefix(OPEN) {
        Some(comment) => comment.split_once(CLOSE)?.1,
        None => rest,
    };
    let last = [" to ", " to\n", "\nto ", "–"].iter().find_map(|to| rest.strip_prefix(to))?;
    figure(|| 0, "", last)?.unit
}

/// Numbers as words. «One» and «a» are left out: they are seldom a figure.
const WORDS: [(&str, &str); 18] = [
    ("two", "2"),
    ("three", "3"),
    ("four", "4"),
    ("five", "5"),
    ("six", "6"),
    ("seven", "7"),
    ("eight", "8"),
    ("nine", "9"),
    ("ten", "10"),
    ("eleven", "11"),
    ("twelve", "12"),
    ("fifteen", "15"),
    ("twenty", "20"),
    ("thirty", "30"),
    ("forty", "40"),
    ("fifty", "50"),
    ("sixty", "60"),
    ("ninety", "90"),
];

/// «Nine minutes»: a time whose number and unit are words.
fn in_words<'a>(line: impl Fn() -> usize, text: &'a str) -> Option<Figure<'a>> {
    let length = text.find(|c: char| !c.is_alphabetic())?;
    let (word, rest) = text.split_at(length);
    let (_, number) = WORDS.iter().find(|(name, _)| word.eq_ignore_ascii_case(name))?;
    let gap = rest.chars().next().filter(|c| " \u{a0}\n".contains(*c))?.len_utf8();
    let unit = Unit::leading(&rest[gap..]).filter(|unit| unit.kind == Kind::Time && unit.name.len() > 3)?;
    let said = &text[..length + gap + unit.name.len()];
    Some(Figure { line: line(), said, number, unit: Some(unit), source: None })
}

/// The figure that a text begins with: a number, no part of a word or a longer one, and its unit.
fn figure<'a>(line: impl Fn() -> usize, before: &str, text: &'a str) -> Option<Figure<'a>> {
    let is_part = |c: char| c.is_alphanumeric() || "._".contains(c);
    let sign = text.chars().next().filter(|sign| "-−".contains(*sign)).map_or(0, char::len_utf8);
    let digits = &text[sign..];
    if before.ends_with(is_part) {
        return None;
    }
    let is_digit = |c: char| c.is_ascii_digit();
    if !digits.starts_with(is_digit) {
        return in_words(line, text);
    }
    let goes_on = |(at, c): &(usize, char)| {
        is_digit(*c) || (",.".contains(*c) && digits[at + 1..].starts_with(is_digit))
    };
    let length = digits.char_indices().take_while(goes_on).count();
    let (number, rest) = text.split_at(sign + length);
    let gap = rest.chars().next().filter(|c| " \u{a0}\n-".contains(*c)).map_or(0, char::len_utf8);
    let unit = Unit::leading(&rest[gap..]);
    if unit.is_none() && rest.starts_with(is_part) && !rest.starts_with('.') {
        return None;
    }
    let said = unit.map_or(number, |unit| &text[..number.len() + gap + unit.name.len()]);
    Some(Figure { line: line(), said, number, unit, source: None })
}
