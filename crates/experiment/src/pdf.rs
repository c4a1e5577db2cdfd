//! SVG to PDF, with the compiled-in font as a part of the file, so that a plot prints alike everywhere.

use anyhow::{Result, anyhow};
use svg2pdf::{ConversionOptions, PageOptions};

use crate::png::tree;

/// One page of the size of `svg`, its text as text.
pub fn pdf(svg: &str) -> Result<Vec<u8>> {
    let tree = tree(svg)?;
    svg2pdf::to_pdf(&tree, ConversionOptions::default(), PageOptions::default())
        .map_err(|error| anyhow!("writing the PDF: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pdf_is_one_page_with_its_font_inside() {
        let svg = "<svg xmlns='http://www.w3.org/2000/svg' width='60' height='20'>\
            <text x='2' y='15' font-family='DejaVu Sans' font-size='12' fill='#000000'>Gbit/s</text></svg>";
        let pdf = pdf(svg).unwrap();
        let has = |words: &str| pdf.windows(words.len()).any(|found| found == words.as_bytes());
        assert!(pdf.starts_with(b"%PDF-") && has("/Count 1") && has("DejaVuSans"));
        assert!(pdf.len() < 40_000, "{} bytes: a part of the font only", pdf.len());
        assert!(super::pdf("nonsense").is_err());
    }
}
