//! How a number is printed.

/// With digits that say something; a dash for a number that was not measured.
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
