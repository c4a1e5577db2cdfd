//! Medians, fits and ranks of measured points, and how a number is printed. Nothing is left out or smoothed.

pub use crate::by_x::log_fit;

/// A number as it is printed: with digits that say something; a dash for a number that was not measured.
pub fn number(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value.abs() >= 1e6 => format!("{:.3} M", value / 1e6),
        Some(value) => {
            let needed = if value.is_normal() { 1 - value.abs().log10().floor() as i32 } else { 0 };
            let decimals = if value.abs() >= 1e4 { 0 } else { needed.clamp(2, 9) as usize };
            format!("{value:.decimals$}")
        }
    }
}

/// Median of `values`; the mean of the two middle ones of an even number. `None` of none.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

/// Median, smallest and largest of `values`; `None` of none.
pub fn spread(values: &[f64]) -> Option<[f64; 3]> {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    Some([median(values)?, least, most])
}

/// A fit of a·log2(x) + k.
#[derive(Clone, Copy, Debug)]
pub struct LogFit {
    pub a: f64,
    pub k: f64,
    /// Coefficient of determination.
    pub r_squared: f64,
}

impl LogFit {
    pub fn at(&self, x: f64) -> f64 {
        self.a * x.log2() + self.k
    }
}

impl std::fmt::Display for LogFit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let LogFit { a, k, r_squared } = self;
        write!(f, "{}·log2(x) + {}, R² {r_squared:.4}", number(Some(*a)), number(Some(*k)))
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Line {
    pub slope: f64,
    /// Coefficient of determination.
    pub r_squared: f64,
}

/// Least-squares line; `None` with fewer than three points or no spread in x.
pub fn line(points: &[(f64, f64)]) -> Option<Line> {
    if points.len() < 3 {
        return None;
    }
    let n = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / n;
    let (mean_x, mean_y) = (mean(|point| point.0), mean(|point| point.1));
    let sum =
        |of: &dyn Fn(f64, f64) -> f64| points.iter().map(|(x, y)| of(x - mean_x, y - mean_y)).sum::<f64>();
    let (xx, xy, yy) = (sum(&|x, _| x * x), sum(&|x, y| x * y), sum(&|_, y| y * y));
    if xx == 0.0 {
        return None;
    }
    // Points on a level line are met by the line exactly.
    let r_squared = if yy == 0.0 { 1.0 } else { xy * xy / (xx * yy) };
    Some(Line { slope: xy / xx, r_squared })
}

/// Spearman's rank correlation of values in the order of their x; ties take the mean rank.
pub fn rank_correlation(values: &[f64]) -> Option<f64> {
    let rank = |value: &f64| {
        let below = values.iter().filter(|other| *other < value).count();
        let equal = values.iter().filter(|other| *other == value).count();
        below as f64 + (equal as f64 - 1.0) / 2.0
    };
    let ranked: Vec<(f64, f64)> =
        values.iter().enumerate().map(|(x, value)| (x as f64, rank(value))).collect();
    let fit = line(&ranked)?;
    Some(fit.r_squared.sqrt().copysign(fit.slope))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn a_line_is_found_and_noise_lowers_its_worth() {
        let exact = line(&[(1.0, 3.0), (2.0, 5.0), (3.0, 7.0)]).unwrap();
        assert!((exact.slope - 2.0).abs() < 1e-12 && (exact.r_squared - 1.0).abs() < 1e-12);
        assert!(line(&[(1.0, 3.0), (2.0, 0.0), (3.0, 7.0)]).unwrap().r_squared < 0.5);
        assert!(line(&[(1.0, 3.0), (2.0, 5.0)]).is_none());
        assert!(line(&[(1.0, 3.0), (1.0, 5.0), (1.0, 6.0)]).is_none());
    }

    #[test]
    fn ranks_tell_falling_from_rising() {
        assert!((rank_correlation(&[9.0, 5.0, 4.0, 1.0]).unwrap() + 1.0).abs() < 1e-12);
        assert!((rank_correlation(&[1.0, 2.0, 9.0]).unwrap() - 1.0).abs() < 1e-12);
        assert!(rank_correlation(&[1.0, 1.0, 1.0]).unwrap().abs() <= 1.0);
    }
}
