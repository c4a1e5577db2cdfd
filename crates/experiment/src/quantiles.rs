//! The distribution that a recorded row keeps: quantiles of its runs' times, from the least to the largest.
//!
//! In `measured.json` they are one string: the least time in ns, then each quantile less the one before. A
//! line each, 1,001 numbers would take 20,000 bytes a row of a file in the tree; differences take a tenth.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::point::Point;

/// More than any point has.
const MOST: usize = 10_001;

/// Times in ns, at equal shares of the runs, the least first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quantiles(Vec<u64>);

impl Quantiles {
    /// Those of a point's `detail` (`quantiles_ns`), if it has some and none is less than the one before.
    pub fn of(point: &Point) -> Option<Quantiles> {
        let numbers = point.detail.get("quantiles_ns")?.as_array()?;
        let times: Option<Vec<u64>> = numbers.iter().map(serde_json::Value::as_u64).collect();
        times.filter(|times| times.len() > 1 && times.len() <= MOST && times.is_sorted()).map(Quantiles)
    }

    /// The times in ns.
    pub fn ns(&self) -> &[u64] {
        &self.0
    }
}

impl Serialize for Quantiles {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let less = |(at, ns): (usize, &u64)| ns - if at == 0 { 0 } else { self.0[at - 1] };
        let words: Vec<String> = self.0.iter().enumerate().map(|pair| less(pair).to_string()).collect();
        serializer.serialize_str(&words.join(" "))
    }
}

impl<'de> Deserialize<'de> for Quantiles {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Quantiles, D::Error> {
        let text = String::deserialize(deserializer)?;
        let add = |sum: &mut u64, word: &str| -> Option<u64> {
            *sum = sum.checked_add(word.parse().ok()?)?;
            Some(*sum)
        };
        let times: Option<Vec<u64>> =
            text.split(' ').take(MOST + 1).scan(0, |sum, word| Some(add(sum, word))).collect();
        let times = times.filter(|times| times.len() > 1 && times.len() <= MOST);
        times.map(Quantiles).ok_or_else(|| D::Error::custom("quantiles_ns: not 2 to 10001 differences of ns"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::example;

    fn with(quantiles: serde_json::Value) -> Option<Quantiles> {
        let detail = serde_json::json!({ "quantiles_ns": quantiles });
        Quantiles::of(&Point { detail, ..example("gpu-thread", 1) })
    }

    #[test]
    fn quantiles_are_read_as_they_were_written_and_take_few_bytes() {
        // As a GPU's timer counts: steps of 32 ns.
        let times: Vec<u64> = (0..1001).map(|place| 231_424 + place / 40 * 32).collect();
        let kept = with(serde_json::json!(times)).unwrap();
        let text = serde_json::to_string(&kept).unwrap();
        assert!(text.starts_with("\"231424 0 0 ") && text.len() < 3000, "{} bytes: {text}", text.len());
        assert_eq!(serde_json::from_str::<Quantiles>(&text).unwrap().ns(), times);
    }

    #[test]
    fn what_is_no_distribution_is_not_kept_and_not_read() {
        for wrong in [
            serde_json::json!(null),
            serde_json::json!([1]),
            serde_json::json!([2, 1]),
            serde_json::json!([1, -2]),
        ] {
            assert_eq!(with(wrong.clone()), None, "{wrong}");
        }
        let (long, far) = (["1"; MOST + 1].join(" "), format!("1 {}", u64::MAX));
        for text in ["", "1", "1 -1", "1  2", "1.5 2", &long, &far] {
            let text = serde_json::to_string(text).unwrap();
            assert!(serde_json::from_str::<Quantiles>(&text).is_err(), "{text:.20}");
        }
    }
}
