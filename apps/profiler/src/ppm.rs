//! Images in files: PPM (P6) with 8 bits a colour, as netpbm's `ppm(5)` defines it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use zoo::preprocess::{Image, PixelOrder};

/// An image whose bytes are red, green and blue. `Preprocess` checks their number.
pub fn read(path: &Path) -> Result<Image> {
    let name = || path.display().to_string();
    let file = fs::read(path).with_context(name)?;
    let wrong =
        "no PPM file with 8 bits a colour (P6, 255); `ffmpeg -i PHOTO -pix_fmt rgb24 IMAGE.ppm` makes one";
    parse(file).context(wrong).with_context(name)
}

fn parse(mut file: Vec<u8>) -> Option<Image> {
    let mut rest =
        file.strip_prefix(b"P6").filter(|rest| rest.first().is_some_and(u8::is_ascii_whitespace))?;
    let mut number = || {
        rest = rest.trim_ascii_start();
        while rest.starts_with(b"#") {
            rest = &rest[rest.iter().position(|&byte| byte == b'\n')?..];
            rest = rest.trim_ascii_start();
        }
        let (digits, behind) = rest.split_at(rest.iter().take_while(|byte| byte.is_ascii_digit()).count());
        rest = behind;
        str::from_utf8(digits).ok()?.parse::<usize>().ok()
    };
    let (width, height, most) = (number()?, number()?, number()?);
    let (space, pixels) = rest.split_first()?;
    let header = file.len() - pixels.len();
    (most == 255 && space.is_ascii_whitespace()).then(|| {
        file.drain(..header);
        Image { height, width, pixels: file }
    })
}

/// Writes an image whose bytes are red, green and blue.
pub fn write(path: &Path, image: &Image) -> std::io::Result<()> {
    let header = format!("P6\n{} {}\n255\n", image.width, image.height);
    measure::write_whole(path, &[header.as_bytes(), &image.pixels].concat())
}

/// From red, green and blue to this order, or from it.
pub fn ordered(mut image: Image, order: PixelOrder) -> Image {
    if order == PixelOrder::Bgr {
        image.pixels.as_chunks_mut::<3>().0.iter_mut().for_each(|pixel| pixel.reverse());
    }
    image
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_as_ppm_5_defines_it_or_refused() {
        let pixels: Vec<u8> = (b' '..b' ' + 6).collect();
        let file = |header: &str| [header.as_bytes(), &pixels].concat();
        for header in ["P6\n2 1\n255\n", "P6 2\t1 255 ", "P6\n# by a program\n2 # wide\n#\n1\n255\n"] {
            // The first pixel begins with a space: one alone ends the header.
            let image = Image { height: 1, width: 2, pixels: pixels.clone() };
            assert_eq!(parse(file(header)), Some(image), "{header}");
        }
        for header in [
            "P3\n2 1\n255\n",
            "P6\n2 1\n65535\n",
            "P62 1 255\n",
            "P6\n2 1\n",
            "P6\n-2 1\n255\n",
            "P6\n2 1\n255#",
            "P6\n# 2 1",
            "P6",
            "",
            "P6\n99999999999999999999 1\n255\n",
        ] {
            assert_eq!(parse(file(header)), None, "{header}");
        }
        assert_eq!(parse(b"P6\n2 1\n255".to_vec()), None);
    }

    #[test]
    fn the_bytes_of_a_pixel_are_turned_and_turned_back() {
        let image = Image { height: 1, width: 2, pixels: vec![1, 2, 3, 4, 5, 6] };
        let turned = ordered(image.clone(), PixelOrder::Bgr);
        assert_eq!(turned.pixels, [3, 2, 1, 6, 5, 4]);
        assert_eq!(ordered(turned, PixelOrder::Bgr), image);
        assert_eq!(ordered(image.clone(), PixelOrder::Rgb), image);
    }
}
