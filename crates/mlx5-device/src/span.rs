//! Spans of time as people write them: `250us`, `1.5ms`, `2s`, and `0`.

use std::fmt;
use std::str::FromStr;

/// A span, ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Span(pub u64);

impl Span {
    /// Whether it has no length.
    pub fn is_zero(&self) -> bool {
        self.0 == 0
    }
}

impl serde::Serialize for Span {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Span {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Span, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Units, the longest first, in ns.
const UNITS: [(&str, u64); 4] = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)];

/// Longest span that is read, ns: far above anything asked for, far below an overflow of sums.
const LONGEST_NS: f64 = 1e15;

impl FromStr for Span {
    type Err = String;

    /// A number and its unit; nothing else needs none but 0. The error is a sentence.
    fn from_str(text: &str) -> Result<Span, String> {
        let short: String = text.chars().take(40).collect();
        let refused = || format!("{short:?} is no time; a number and ns, us, ms or s is needed, as 250us");
        if text == "0" {
            return Ok(Span(0));
        }
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(refused)?;
        let (number, unit) = text.split_at(digits);
        let (_, ns) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(refused)?;
        let span: f64 = number.parse::<f64>().map_err(|_| refused())? * *ns as f64;
        if (0.0..=LONGEST_NS).contains(&span) { Ok(Span(span.round() as u64)) } else { Err(refused()) }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = |(_, ns): &&(&str, u64)| self.0 > 0 && self.0.is_multiple_of(*ns);
        match UNITS.iter().find(whole) {
            Some((name, ns)) => write!(f, "{}{name}", self.0 / ns),
            None => f.write_str("0"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_a_number_and_its_unit_and_is_shown_in_the_longest_unit_that_fits() {
        for (text, ns, shown) in [
            ("0", 0, "0"),
            ("0ms", 0, "0"),
            ("250us", 250_000, "250us"),
            ("1.5ms", 1_500_000, "1500us"),
            ("2s", 2_000_000_000, "2s"),
            ("0.001s", 1_000_000, "1ms"),
            ("7ns", 7, "7ns"),
            ("1000000s", 1_000_000_000_000_000, "1000000s"),
        ] {
            let span: Span = text.parse().unwrap();
            assert_eq!((span, span.to_string().as_str()), (Span(ns), shown), "{text}");
            assert_eq!(span.to_string().parse(), Ok(span), "{text}");
        }
    }

    #[test]
    fn anything_else_is_no_span() {
        for text in
            ["", "1", "us", "1 ms", "-1ms", "1e3us", "1.2.3ms", "1m", "inf", "nans", "1000001s", "1µs"]
        {
            let why = text.parse::<Span>().unwrap_err();
            assert!(why.contains("no time") && !why.contains('\n'), "{text}: {why}");
        }
    }
}
