//! The colours of plots: on white, and those in their places where a page has a dark ground.

use plotters::prelude::*;

pub const INK: RGBColor = RGBColor(40, 40, 40);
pub const GRID: RGBColor = RGBColor(225, 225, 225);
pub const FAINT: RGBColor = RGBColor(110, 110, 110);
/// The ground of plots in a dark page.
const DARK: RGBColor = RGBColor(28, 31, 36);

/// One colour a curve: Okabe and Ito's first, which the colour-blind tell apart, then darker or paler ones.
pub const COLOURS: [RGBColor; 16] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(170, 90, 140),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(120, 30, 40),
    RGBColor(60, 60, 130),
    RGBColor(120, 160, 40),
    RGBColor(250, 120, 140),
    RGBColor(20, 90, 70),
    RGBColor(150, 110, 220),
    RGBColor(140, 100, 50),
    RGBColor(0, 0, 0),
    RGBColor(200, 30, 160),
    RGBColor(130, 130, 130),
];

/// Every colour of a plot on white, and the one in its place on a dark ground, as CSS has them.
pub fn on_dark() -> Vec<[String; 2]> {
    let css = |colour: RGBColor| format!("#{:02X}{:02X}{:02X}", colour.0, colour.1, colour.2);
    let grounds = [
        (WHITE, DARK),
        (INK, RGBColor(222, 224, 228)),
        (FAINT, RGBColor(160, 165, 172)),
        (GRID, RGBColor(58, 62, 68)),
    ];
    // So much white that dark ones stand out: luminance 0.23 is 4.5 times the ground's (WCAG 2.2, gamma 2).
    let paler = |RGBColor(red, green, blue): RGBColor| {
        let mixed = |tenths: u16| {
            [red, green, blue].map(|part| (u16::from(part) + (255 - u16::from(part)) * tenths / 10) as u8)
        };
        let luminance = |rgb: [u8; 3]| {
            let parts = rgb.iter().zip([0.2126, 0.7152, 0.0722]);
            parts.map(|(part, share)| share * (f64::from(*part) / 255.0).powi(2)).sum::<f64>()
        };
        let [red, green, blue] =
            mixed((0..10).find(|tenths| luminance(mixed(*tenths)) >= 0.23).unwrap_or(10));
        RGBColor(red, green, blue)
    };
    let curves = COLOURS.iter().map(|colour| (*colour, paler(*colour)));
    grounds.into_iter().chain(curves).map(|(light, dark)| [css(light), css(dark)]).collect()
}
