//! Quantities: a number with its kind, their arithmetic, and whether a sentence's figure is one rounded.

use std::fmt;

/// What a number is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nanoseconds.
    Time,
    Bytes,
    /// Bits a second.
    Rate,
    /// Times a second.
    PerSecond,
    /// A quotient of two numbers.
    Ratio,
    /// Joules.
    Energy,
    /// Watts.
    Power,
}

/// A unit as a sentence has it.
#[derive(Debug)]
pub struct Unit {
    pub name: &'static str,
    pub kind: Kind,
    /// One of it in the unit of its kind.
    pub factor: f64,
    /// Whether a figure with it needs a source: it was measured, published, or is a limit of the program.
    pub needs_source: bool,
}

const fn unit(name: &'static str, kind: Kind, factor: f64) -> Unit {
    Unit { name, kind, factor, needs_source: true }
}

/// Sizes of formats, which the code's layouts and their golden bytes hold already.
const fn optional(name: &'static str, kind: Kind, factor: f64) -> Unit {
    Unit { name, kind, factor, needs_source: false }
}

const UNITS: &[Unit] = &[
    unit("ns", Kind::Time, 1.0),
    unit("µs", Kind::Time, 1e3),
    unit("us", Kind::Time, 1e3),
    unit("microseconds", Kind::Time, 1e3),
    unit("ms", Kind::Time, 1e6),
    unit("milliseconds", Kind::Time, 1e6),
    unit("s", Kind::Time, 1e9),
    unit("seconds", Kind::Time, 1e9),
    unit("min", Kind::Time, 60e9),
    unit("minutes", Kind::Time, 60e9),
    unit("h", Kind::Time, 3600e9),
    unit("hours", Kind::Time, 3600e9),
    unit("Mb/s", Kind::Rate, 1e6),
    unit("Mbit/s", Kind::Rate, 1e6),
    unit("Gb/s", Kind::Rate, 1e9),
    unit("Gbit/s", Kind::Rate, 1e9),
    unit("MB/s", Kind::Rate, 8e6),
    unit("GB/s", Kind::Rate, 8e9),
    unit("MiB/s", Kind::Rate, 8.0 * 1_048_576.0),
    unit("GiB/s", Kind::Rate, 8.0 * 1_073_741_824.0),
    unit("messages/s", Kind::PerSecond, 1.0),
    unit("M messages/s", Kind::PerSecond, 1e6),
    unit("M/s", Kind::PerSecond, 1e6),
    unit("MHz", Kind::PerSecond, 1e6),
    unit("GHz", Kind::PerSecond, 1e9),
    unit("%", Kind::Ratio, 0.01),
    unit("×", Kind::Ratio, 1.0),
    unit("mJ", Kind::Energy, 1e-3),
    unit("J", Kind::Energy, 1.0),
    unit("W", Kind::Power, 1.0),
    unit("KiB", Kind::Bytes, 1024.0),
    unit("MiB", Kind::Bytes, 1_048_576.0),
    unit("GiB", Kind::Bytes, 1_073_741_824.0),
    unit("kB", Kind::Bytes, 1e3),
    unit("MB", Kind::Bytes, 1e6),
    unit("GB", Kind::Bytes, 1e9),
    optional("B", Kind::Bytes, 1.0),
    optional("byte", Kind::Bytes, 1.0),
    optional("bytes", Kind::Bytes, 1.0),
    optional("times", Kind::Ratio, 1.0),
];

/// How names of fields and constants end that say their unit.
const ENDINGS: [(&str, &str); 14] = [
    ("ns", "ns"),
    ("us", "us"),
    ("ms", "ms"),
    ("s", "s"),
    ("secs", "s"),
    ("seconds", "s"),
    ("bytes", "bytes"),
    ("kib", "KiB"),
    ("mib", "MiB"),
    ("gbps", "Gbit/s"),
    ("percent", "%"),
    ("ratio", "×"),
    ("mj", "mJ"),
    ("w", "W"),
];

impl Unit {
    pub fn named(name: &str) -> Option<&'static Unit> {
        UNITS.iter().find(|unit| unit.name == name)
    }

    /// The longest unit that a text begins with, as a word of its own.
    pub fn leading(text: &str) -> Option<&'static Unit> {
        let is_whole = |unit: &&Unit| {
            let rest = text.strip_prefix(unit.name);
            rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '/'))
        };
        UNITS.iter().filter(is_whole).max_by_key(|unit| unit.name.len())
    }

    /// What the name of a field or a constant says.
    pub fn of_name(name: &str) -> Option<&'static Unit> {
        let name = name.to_lowercase();
        if name.ends_with("_per_s") {
            return Unit::named("messages/s");
        }
        if name.contains("_per_") {
            return None;
        }
        let last = name.rsplit('_').next().filter(|last| *last != name || *last == "bytes")?;
        ENDINGS.iter().find(|(ending, _)| *ending == last).and_then(|(_, unit)| Unit::named(unit))
    }
}

/// A number, and what it is of where that is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quantity {
    /// In the unit of its kind.
    pub value: f64,
    pub kind: Option<Kind>,
}

impl Quantity {
    pub fn plain(value: f64) -> Quantity {
        Quantity { value, kind: None }
    }

    /// The same number in a unit, if it has none yet.
    pub fn in_unit(self, unit: &Unit) -> Result<Quantity, String> {
        match self.kind {
            None => Ok(Quantity { value: self.value * unit.factor, kind: Some(unit.kind) }),
            Some(_) => Err(format!("its place says its unit; leave «in {}» out", unit.name)),
        }
    }

    pub fn combine(self, operator: char, other: Quantity) -> Result<Quantity, String> {
        let (a, b) = (self.value, other.value);
        let (value, kind) = match (operator, self.kind, other.kind) {
            ('+', left, right) if left == right => (a + b, left),
            ('-', left, right) if left == right => (a - b, left),
            ('*', kind, None) | ('*', None, kind) => (a * b, kind),
            ('/', kind, None) => (a / b, kind),
            ('/', left, right) if left == right => (a / b, None),
            ('^', None, None) => (a.powf(b), None),
            ('<', None, None) => (a * b.exp2(), None),
            _ => return Err(format!("{self} {operator} {other} is not worked out here")),
        };
        Ok(Quantity { value, kind })
    }

    /// Whether a figure is this one, rounded to as many digits as it shows.
    pub fn compare(self, number: &str, unit: Option<&Unit>) -> Result<(), String> {
        let factor = match (unit, self.kind) {
            (Some(unit), Some(kind)) if kind != unit.kind => {
                return Err(format!("{self} is no number of {}", unit.name));
            }
            (Some(unit), None) if ![Kind::Bytes, Kind::Ratio].contains(&unit.kind) => {
                let name = unit.name;
                return Err(format!("its unit is not known: end it with «in {name}», or what it is in"));
            }
            (Some(unit), _) => unit.factor,
            (None, None | Some(Kind::Ratio)) => 1.0,
            (None, Some(_)) => return Err(format!("{self} has a unit, and the figure has none")),
        };
        let digits: String = number.chars().filter(|c| *c != ',').collect();
        let said: f64 = digits.replace('−', "-").parse().map_err(|_| format!("{number} is no number"))?;
        let decimals = digits.split_once('.').map_or(0, |(_, decimals)| decimals.len());
        let ours = self.value / factor;
        let half = 0.5 * 0.1_f64.powi(i32::try_from(decimals).unwrap_or(i32::MAX));
        if (said - ours).abs() <= half * (1.0 + 1e-9) {
            return Ok(());
        }
        let unit = unit.map_or_else(String::new, |unit| format!(" {}", unit.name));
        // One digit more, so that the difference shows.
        Err(format!("that is {ours:.*}{unit}", decimals + 1))
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = match self.kind {
            None => "",
            Some(Kind::Time) => " ns",
            Some(Kind::Bytes) => " B",
            Some(Kind::Rate) => " bit/s",
            Some(Kind::PerSecond) => "/s",
            Some(Kind::Ratio) => " (a ratio)",
            Some(Kind::Energy) => " J",
            Some(Kind::Power) => " W",
        };
        write!(f, "{}{unit}", self.value)
    }
}
