//! A number of measured points over x.

use std::collections::BTreeMap;

use crate::point::Point;
use crate::statistics::{Line, LogFit, line, spread};

/// [`spread`] of a number over the repetitions, by x, of the points of `series` that `of` accepts.
pub fn by_x(
    points: &[Point],
    series: &str,
    field: &str,
    of: impl Fn(&Point) -> bool,
) -> BTreeMap<u64, [f64; 3]> {
    let mut values: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for point in points.iter().filter(|point| point.series == series && of(point)) {
        if let Some(value) = point.values.get(field) {
            values.entry(point.x).or_default().push(*value);
        }
    }
    values.into_iter().filter_map(|(x, values)| Some((x, spread(&values)?))).collect()
}

/// Medians alone, by x, of the points that claims look at.
pub fn medians(points: &[Point], series: &str, field: &str) -> BTreeMap<u64, f64> {
    by_x(points, series, field, Point::is_base).into_iter().map(|(x, [median, ..])| (x, median)).collect()
}

/// The fit of the medians of a number over x; `None` with fewer than three x.
pub fn log_fit(points: &[Point], series: &str, field: &str) -> Option<LogFit> {
    let of = |(x, y): (u64, f64)| (x > 0).then(|| ((x as f64).log2(), y));
    let points: Vec<(f64, f64)> = medians(points, series, field).into_iter().filter_map(of).collect();
    let Line { slope, r_squared } = line(&points)?;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / points.len() as f64;
    Some(LogFit { a: slope, k: mean(|point| point.1) - slope * mean(|point| point.0), r_squared })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::example;

    #[test]
    fn repetitions_become_a_median_and_its_spread() {
        let points = [5.0, 1.0, 3.0].map(|gbps| example("cpu-shim", 64).with("wire_gbps", gbps));
        assert_eq!(by_x(&points, "cpu-shim", "wire_gbps", Point::is_base)[&64], [3.0, 1.0, 5.0]);
        assert!(by_x(&points, "cpu-shim", "wire_gbps", |point| !point.is_base()).is_empty());
        assert!(medians(&points, "cpu-ibverbs", "wire_gbps").is_empty());
    }
}
