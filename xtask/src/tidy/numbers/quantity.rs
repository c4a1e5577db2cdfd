//! Quantities: a number with its kind, their arithmetic, and whether a sentence's figure is one rounded.

use std::fmt;
use std::sync::LazyLock;

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

/// Units by what they are of, each with one of it in the unit of its kind. `false`: sizes of formats, which
/// the code's layouts and their golden bytes hold already, need no source.
const UNITS: [(Kind, bool, &str); 11] = [
    (
        Kind::Time,
        true,
        "ns 1, µs 1e3, us 1e3, microseconds 1e3, ms 1e6, milliseconds 1e6, s 1e9, seconds 1e9",
    ),
    (Kind::Time, true, "min 60e9, minutes 60e9, h 3600e9, hours 3600e9"),
    (Kind::Rate, true, "Mb/s 1e6, Mbit/s 1e6, Gb/s 1e9, Gbit/s 1e9, MB/s 8e6, GB/s 8e9"),
    (Kind::Rate, true, "MiB/s 8388608, GiB/s 8589934592"),
    (Kind::PerSecond, true, "messages/s 1, M messages/s 1e6, M/s 1e6, MHz 1e6, GHz 1e9"),
    (Kind::Energy, true, "mJ 1e-3, J 1"),
    (Kind::Power, true, "W 1"),
    (Kind::Ratio, true, "% 0.01, × 1"),
    (Kind::Ratio, false, "times 1"),
    (Kind::Bytes, true, "KiB 1024, MiB 1048576, GiB 1073741824, kB 1e3, MB 1e6, GB 1e9"),
    (Kind::Bytes, false, "B 1, byte 1, bytes 1"),
];

static ALL: LazyLock<Vec<Unit>> = LazyLock::new(|| {
    let of = |(kind, needs_source, units): (Kind, bool, &'static str)| {
        let pairs = units.split(", ").filter_map(|unit| unit.rsplit_once(' '));
        let factor = |text: &str| text.parse().expect("a number");
        pairs.map(move |(name, of)| Unit { name, kind, factor: factor(of), needs_source })
    };
    UNITS.into_iter().flat_map(of).collect()
});

/// How names of fields and constants end that say their unit, each with the unit.
const ENDINGS: &str = "ns ns, us us, ms ms, s s, secs s, seconds s, bytes bytes, kib KiB, mib MiB, gbps Gbit/s, \
    percent %, ratio ×, mj mJ, w W";

impl Unit {
    pub fn named(name: &str) -> Option<&'static Unit> {
        ALL.iter().find(|unit| unit.name == name)
    }

    /// The longest unit that a text begins with, as a word of its own.
    pub fn leading(text: &str) -> Option<&'static Unit> {
        let is_whole = |unit: &&Unit| {
            let rest = text.strip_prefix(unit.name);
            rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '/'))
        };
        ALL.iter().filter(is_whole).max_by_key(|unit| unit.name.len())
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
        let mut endings = ENDINGS.split(", ").filter_map(|pair| pair.split_once(' '));
        Unit::named(endings.find(|(ending, _)| *ending == last)?.1)
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
