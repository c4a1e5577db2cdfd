//! Formulas: sums, products, powers and shifts of numbers and names, as in pages, Rust, C and CUDA constants.

use super::quantity::{Quantity, Unit};
use crate::tidy::source::is_name;

/// Finds what a name stands for, as it is written: with the modules before it.
type LookUp<'a> = dyn Fn(&str) -> Result<Quantity, String> + 'a;

/// Operators by how tightly they bind, the loosest first. `<` stands for `<<`.
const LEVELS: [&[char]; 4] = [&['<'], &['+', '-'], &['*', '/'], &['^']];

/// Functions of one number: constructors of `Duration`, by the unit that they take.
const DURATIONS: [(&str, &str); 4] =
    [("from_nanos", "ns"), ("from_micros", "us"), ("from_millis", "ms"), ("from_secs", "s")];

pub fn evaluate(text: &str, look_up: &LookUp<'_>) -> Result<Quantity, String> {
    let mut parser = Parser { rest: text.trim(), look_up };
    let quantity = parser.operation(0)?;
    match parser.rest {
        "" => Ok(quantity),
        rest => Err(format!("«{rest}» is not understood")),
    }
}

pub fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c| !is_name(c)).filter(|word| word.starts_with(|c: char| is_name(c) && !c.is_numeric()))
}

struct Parser<'a> {
    /// What is not read yet, without leading spaces.
    rest: &'a str,
    look_up: &'a LookUp<'a>,
}

impl Parser<'_> {
    fn operation(&mut self, level: usize) -> Result<Quantity, String> {
        let Some(operators) = LEVELS.get(level) else { return self.operand() };
        let mut left = self.operation(level + 1)?;
        while let Some(operator) = self.operator(operators) {
            let right = self.operation(level + 1)?;
            left = left.combine(operator, right)?;
        }
        Ok(left)
    }

    fn operator(&mut self, operators: &[char]) -> Option<char> {
        let operator = self.rest.chars().next().filter(|first| operators.contains(first))?;
        self.skip(if operator == '<' { 2 } else { 1 });
        Some(operator)
    }

    fn operand(&mut self) -> Result<Quantity, String> {
        let quantity = if self.rest.starts_with('(') {
            self.group()?
        } else {
            let end = self.rest.find(|c| !is_name(c) && c != '.' && c != ':').unwrap_or(self.rest.len());
            let word = &self.rest[..end];
            self.skip(end);
            match word.starts_with(|c: char| c.is_ascii_digit()) {
                true => Quantity::plain(literal(word).ok_or_else(|| format!("{word} is no number"))?),
                false if self.rest.starts_with('(') => {
                    self.call(word.rsplit("::").next().unwrap_or_default())?
                }
                false if word.is_empty() => return Err(format!("«{}» is not understood", self.rest)),
                false => (self.look_up)(word)?,
            }
        };
        // A conversion changes no number that is written down.
        if let Some(rest) = self.rest.strip_prefix("as ") {
            self.rest = rest;
            self.skip(rest.find(|c| !is_name(c)).unwrap_or(rest.len()));
        }
        Ok(quantity)
    }

    fn group(&mut self) -> Result<Quantity, String> {
        self.skip(1);
        let inside = self.operation(0)?;
        if !self.rest.starts_with(')') {
            return Err(format!("a parenthesis is not closed before «{}»", self.rest));
        }
        self.skip(1);
        Ok(inside)
    }

    fn call(&mut self, name: &str) -> Result<Quantity, String> {
        let argument = self.group()?;
        match DURATIONS.iter().find(|(function, _)| *function == name) {
            Some((_, unit)) => argument.in_unit(Unit::named(unit).ok_or("no unit")?),
            None if ["Some", "from"].contains(&name) => Ok(argument),
            None => Err(format!("{name}() is not worked out here")),
        }
    }

    fn skip(&mut self, bytes: usize) {
        self.rest = self.rest.get(bytes..).unwrap_or_default().trim_start();
    }
}

/// A number of Rust or C: with underscores, a type behind it, or in hexadecimal.
fn literal(word: &str) -> Option<f64> {
    let digits: String = word.to_lowercase().chars().filter(|c| *c != '_').collect();
    let types = ["u8", "u16", "u32", "u64", "usize", "i32", "i64", "f32", "f64", "ull", "ul", "u", "ll", "l"];
    let bare = types.iter().find_map(|name| digits.strip_suffix(name)).unwrap_or(&digits);
    match bare.strip_prefix("0x") {
        Some(hexadecimal) => Some(u64::from_str_radix(hexadecimal, 16).ok()? as f64),
        None => bare.parse().ok(),
    }
}
