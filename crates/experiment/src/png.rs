//! SVG to PNG with the font that is compiled in, so that a plot looks the same on a machine without fonts.

use anyhow::{Context, Result};
use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree};

/// DejaVu Sans 2.37; its licence lies beside it.
const FONT: &[u8] = include_bytes!("../fonts/DejaVuSans.ttf");

/// Rasterises `svg` at `scale` pixels per unit.
pub fn png(svg: &str, scale: f32) -> Result<Vec<u8>> {
    let tree = tree(svg)?;
    let size = tree.size().to_int_size().scale_by(scale).context("the plot has no size")?;
    let mut pixels = Pixmap::new(size.width(), size.height()).context("the plot has no size")?;
    resvg::render(&tree, Transform::from_scale(scale, scale), &mut pixels.as_mut());
    pixels.encode_png().context("encoding the PNG")
}

/// The SVG as shapes, its text set in our font.
pub(crate) fn tree(svg: &str) -> Result<Tree> {
    let mut options = Options { font_family: "DejaVu Sans".into(), ..Options::default() };
    options.fontdb_mut().load_font_data(FONT.to_vec());
    Tree::from_str(svg, &options).context("reading our own SVG")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SVG: &str = "<svg xmlns='http://www.w3.org/2000/svg' width='60' height='20'>\
        <text x='2' y='15' font-family='DejaVu Sans' font-size='12' fill='#000000'>TEXT</text></svg>";

    #[test]
    fn text_is_drawn_with_the_font_that_we_carry() {
        let blank = png(&SVG.replace("TEXT", ""), 1.0).unwrap();
        let written = png(&SVG.replace("TEXT", "Gbit/s"), 1.0).unwrap();
        assert!(written.starts_with(b"\x89PNG") && written.len() > blank.len() + 50);
    }

    #[test]
    fn no_svg_is_an_error() {
        assert!(png("nonsense", 1.0).is_err());
    }
}
