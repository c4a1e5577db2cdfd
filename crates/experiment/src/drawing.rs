//! An SVG read once, as a PNG or a PDF, with the font that is compiled in: it looks the same on a machine
//! without fonts.

use std::sync::{Arc, LazyLock};

use anyhow::{Context, Result, anyhow};
use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::fontdb::Database;
use resvg::usvg::{Options, Tree};
use svg2pdf::{ConversionOptions, PageOptions};

/// DejaVu Sans 2.37; its licence lies beside it.
const FONT: &[u8] = include_bytes!("../fonts/DejaVuSans.ttf");

static FONTS: LazyLock<Arc<Database>> = LazyLock::new(|| {
    let mut fonts = Database::new();
    fonts.load_font_data(FONT.to_vec());
    Arc::new(fonts)
});

/// The shapes of an SVG, its text set in our font.
pub struct Drawing(Tree);

impl Drawing {
    pub fn read(svg: &str) -> Result<Drawing> {
        let options =
            Options { font_family: "DejaVu Sans".into(), fontdb: FONTS.clone(), ..Options::default() };
        Ok(Drawing(Tree::from_str(svg, &options).context("reading our own SVG")?))
    }

    /// A PNG of `scale` pixels per unit.
    pub fn png(&self, scale: f32) -> Result<Vec<u8>> {
        let size = self.0.size().to_int_size().scale_by(scale).context("the plot has no size")?;
        let mut pixels = Pixmap::new(size.width(), size.height()).context("the plot has no size")?;
        resvg::render(&self.0, Transform::from_scale(scale, scale), &mut pixels.as_mut());
        pixels.encode_png().context("encoding the PNG")
    }

    /// A PDF: one page of the size of the SVG, its text as text.
    pub fn pdf(&self) -> Result<Vec<u8>> {
        svg2pdf::to_pdf(&self.0, ConversionOptions::default(), PageOptions::default())
            .map_err(|error| anyhow!("writing the PDF: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SVG: &str = "<svg xmlns='http://www.w3.org/2000/svg' width='60' height='20'>\
        <text x='2' y='15' font-family='DejaVu Sans' font-size='12' fill='#000000'>TEXT</text></svg>";

    #[test]
    fn text_is_drawn_with_the_font_that_we_carry() {
        let png = |text: &str| Drawing::read(&SVG.replace("TEXT", text)).unwrap().png(1.0).unwrap();
        let (blank, written) = (png(""), png("Gbit/s"));
        assert!(written.starts_with(b"\x89PNG") && written.len() > blank.len() + 50);
    }

    #[test]
    fn a_pdf_is_one_page_with_its_font_inside() {
        let pdf = Drawing::read(SVG).unwrap().pdf().unwrap();
        let has = |words: &str| pdf.windows(words.len()).any(|found| found == words.as_bytes());
        assert!(pdf.starts_with(b"%PDF-") && has("/Count 1") && has("DejaVuSans"));
        assert!(pdf.len() < 40_000, "{} bytes: a part of the font only", pdf.len());
    }

    #[test]
    fn no_svg_is_an_error() {
        assert!(Drawing::read("nonsense").is_err());
    }
}
