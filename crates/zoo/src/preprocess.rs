//! From an image of bytes to a model's input: resize, crop, channel order, scale, normalise, layout. On the
//! CPU.
//!
//! Resizing is bilinear with half-pixel centres, as ONNX `Resize` (`coordinate_transformation_mode`
//! half_pixel) defines it. Pixels outside of the crop are never computed: each element of the output samples
//! the image once. Left out: antialiasing, so that large reductions differ from what Pillow gives.

use anyhow::{Result, ensure};
use serde::Deserialize;

use crate::seed::Stream;

/// An image as it comes: rows from the top, three bytes a pixel (HWC).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Rows.
    pub height: usize,
    /// Pixels of a row.
    pub width: usize,
    /// `height` × `width` × 3 bytes.
    pub pixels: Vec<u8>,
}

/// Order of the bytes of an image's pixel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "a name that says it all has no comment")]
pub enum PixelOrder {
    Rgb,
    Bgr,
}

/// Channels of a model's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "a name that says it all has no comment")]
pub enum Channels {
    Rgb,
    Bgr,
    /// One channel: 0.299 R + 0.587 G + 0.114 B (ITU-R BT.601).
    Luminance,
}

impl Channels {
    /// What each channel takes of red, green and blue.
    pub fn weights(self) -> &'static [[f32; 3]] {
        match self {
            Channels::Rgb => &[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
            Channels::Bgr => &[[0.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]],
            Channels::Luminance => &[[0.299, 0.587, 0.114]],
        }
    }
}

/// Order of the axes of a model's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "a name that says it all has no comment")]
pub enum Layout {
    Nchw,
    Nhwc,
}

/// To which size an image is resized before the crop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resize {
    /// The shorter edge gets this many pixels, and the other one as many as its ratio gives, rounded down.
    ShorterEdge(usize),
    /// Rows and columns, whatever the ratio was.
    To([usize; 2]),
}

/// How images become a model's input: element (channel, row, column) is (weights · pixel / 255 − mean) /
/// deviation.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preprocess {
    /// Order of the images' bytes.
    pub image: PixelOrder,
    /// Size before the crop.
    pub resize: Resize,
    /// Rows and columns in the middle of it.
    pub crop: [usize; 2],
    /// Channels of the input.
    pub channels: Channels,
    /// Subtracted from each channel, which is in 0..=1.
    pub mean: Vec<f32>,
    /// What it is divided by then.
    pub deviation: Vec<f32>,
    /// Order of the input's axes.
    pub layout: Layout,
}

/// No edge of an image is longer; the product of two stays far from overflow.
const MOST: usize = 1 << 16;

impl Preprocess {
    /// Whether it is consistent in itself, whatever the image is.
    pub fn check(&self) -> Result<()> {
        let channels = self.channels.weights().len();
        for (what, values) in [("mean", &self.mean), ("deviation", &self.deviation)] {
            let sane = |value: &f32| value.is_finite() && (what == "mean" || *value != 0.0);
            ensure!(
                values.len() == channels && values.iter().all(sane),
                "{what}: {} values for {channels} channels, or one that is not finite or divides by zero",
                values.len()
            );
        }
        let least = match self.resize {
            Resize::ShorterEdge(edge) => [edge, edge],
            Resize::To(size) => size,
        };
        self.fits(least)
    }

    fn fits(&self, size: [usize; 2]) -> Result<()> {
        let fits = |axis: usize| (1..=size[axis]).contains(&self.crop[axis]) && size[axis] <= MOST;
        let crop = self.crop;
        ensure!(fits(0) && fits(1), "a crop of {crop:?} does not fit into an image resized to {size:?}");
        Ok(())
    }

    /// Elements of the input for one image.
    pub fn elements(&self) -> usize {
        self.crop[0] * self.crop[1] * self.channels.weights().len()
    }

    /// The size of an image of this size after resizing.
    fn resized(&self, height: usize, width: usize) -> [usize; 2] {
        match self.resize {
            Resize::To(size) => size,
            Resize::ShorterEdge(edge) if height <= width => [edge, edge * width / height],
            Resize::ShorterEdge(edge) => [edge * height / width, edge],
        }
    }

    /// Where the pixels of the crop lie in an image, by rows and by columns, when the crop has `factors`
    /// times as many rows and columns.
    pub(crate) fn samples(&self, image: &Image, factors: [usize; 2]) -> Result<[Vec<Sample>; 2]> {
        self.check()?;
        let &Image { height, width, .. } = image;
        let edges = 1..=MOST;
        ensure!(
            edges.contains(&height) && edges.contains(&width),
            "an image of {width} × {height} pixels is empty, or has an edge above {MOST}: reduce it"
        );
        let (found, bytes) = (image.pixels.len(), height * width * 3);
        ensure!(
            found == bytes,
            "an image of {width} × {height} pixels has {bytes} bytes, not {found}: the file is cut, or has more behind it"
        );
        let size = self.resized(height, width);
        let [rows, columns] = size;
        ensure!(
            rows.max(columns) <= MOST,
            "resized to {columns} × {rows} pixels it has an edge above {MOST}: crop it first"
        );
        self.fits(size)?;
        Ok([(0, height), (1, width)].map(|(axis, extent)| {
            let (size, crop, factor) = (size[axis], self.crop[axis], factors[axis]);
            let first = (size - crop) / 2 * factor;
            (first..first + crop * factor).map(|place| Sample::at(place, size * factor, extent)).collect()
        }))
    }

    /// The model's input for one image.
    pub fn run(&self, image: &Image) -> Result<Vec<f32>> {
        let [rows, columns] = self.samples(image, [1, 1])?;
        let channels = self.channels.weights();
        let mut input = vec![0.0; self.elements()];
        for (y, row) in rows.iter().enumerate() {
            for (x, column) in columns.iter().enumerate() {
                let colour = sample(image, self.image, row, column);
                for (channel, weights) in channels.iter().enumerate() {
                    let value = (mix(weights, colour) / 255.0 - self.mean[channel]) / self.deviation[channel];
                    let place = match self.layout {
                        Layout::Nchw => (channel * self.crop[0] + y) * self.crop[1] + x,
                        Layout::Nhwc => (y * self.crop[1] + x) * channels.len() + channel,
                    };
                    input[place] = value;
                }
            }
        }
        Ok(input)
    }
}

/// Two neighbours on one axis, and how much the second one counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    first: usize,
    second: usize,
    share: f32,
}

impl Sample {
    /// Where the centre of a resized pixel lies among `extent` pixels; beyond the outermost centres these
    /// count alone.
    fn at(place: usize, resized: usize, extent: usize) -> Sample {
        let centre = (place as f32 + 0.5) * (extent as f32 / resized as f32) - 0.5;
        let centre = centre.clamp(0.0, (extent - 1) as f32);
        let first = centre as usize;
        Sample { first, second: (first + 1).min(extent - 1), share: centre - first as f32 }
    }

    fn mix(&self, first: f32, second: f32) -> f32 {
        first + (second - first) * self.share
    }
}

/// What a channel takes of a colour.
pub(crate) fn mix(weights: &[f32; 3], colour: [f32; 3]) -> f32 {
    weights[0] * colour[0] + weights[1] * colour[1] + weights[2] * colour[2]
}

/// Red, green and blue at a point between four pixels, in 0..=255.
pub(crate) fn sample(image: &Image, order: PixelOrder, row: &Sample, column: &Sample) -> [f32; 3] {
    let byte = |y: usize, x: usize, colour: usize| {
        let colour = if order == PixelOrder::Rgb { colour } else { 2 - colour };
        f32::from(image.pixels[(y * image.width + x) * 3 + colour])
    };
    [0, 1, 2].map(|colour| {
        let along = |y: usize| column.mix(byte(y, column.first, colour), byte(y, column.second, colour));
        row.mix(along(row.first), along(row.second))
    })
}

/// A test image: a gradient, some rectangles and noise, all of them from the name. The same bytes on every
/// machine.
pub fn test_image(name: &str, height: usize, width: usize) -> Image {
    let mut stream = Stream::of(name);
    let mut below = |bound: usize| (stream.bits() >> 32) as usize % bound.max(1);
    let mut pixels = Vec::with_capacity(height * width * 3);
    for y in 0..height {
        for x in 0..width {
            let ramp =
                [255 * y / height.max(1), 255 * x / width.max(1), 255 * (x + y) / (height + width).max(1)];
            pixels.extend(ramp.map(|value| (value * 7 / 8 + below(32)) as u8));
        }
    }
    for _ in 0..8 {
        let (top, left) = (below(height), below(width));
        let (bottom, right) = (top + below(height - top) + 1, left + below(width - left) + 1);
        let colour = [below(256) as u8, below(256) as u8, below(256) as u8];
        for y in top..bottom.min(height) {
            for x in left..right.min(width) {
                pixels[(y * width + x) * 3..][..3].copy_from_slice(&colour);
            }
        }
    }
    Image { height, width, pixels }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As the definition says, in steps and in double precision: the whole image is resized, then cropped,
    /// then normalised.
    fn reference(preprocess: &Preprocess, image: &Image) -> Vec<f64> {
        let [rows, columns] = match preprocess.resize {
            Resize::To(size) => size,
            Resize::ShorterEdge(edge) if image.height <= image.width => {
                [edge, edge * image.width / image.height]
            }
            Resize::ShorterEdge(edge) => [edge * image.height / image.width, edge],
        };
        let pixel = |y: f64, x: f64, colour: usize| {
            let clamp = |at: f64, extent: usize| at.max(0.0).min(extent as f64 - 1.0) as usize;
            let colour = if preprocess.image == PixelOrder::Bgr { [2, 1, 0][colour] } else { colour };
            let place = clamp(y, image.height) * image.width + clamp(x, image.width);
            f64::from(image.pixels[3 * place + colour])
        };
        let mut resized = Vec::new();
        for row in 0..rows {
            for column in 0..columns {
                let y = (row as f64 + 0.5) * image.height as f64 / rows as f64 - 0.5;
                let x = (column as f64 + 0.5) * image.width as f64 / columns as f64 - 0.5;
                let (top, left) = (y.floor(), x.floor());
                for colour in 0..3 {
                    let corners = [(0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0)];
                    let weighed = corners.map(|(down, right)| {
                        let share = (1.0 - (y - top - down).abs()) * (1.0 - (x - left - right).abs());
                        share * pixel(top + down, left + right, colour)
                    });
                    resized.push(weighed.iter().sum::<f64>());
                }
            }
        }
        let [height, width] = preprocess.crop;
        let (top, left) = ((rows - height) / 2, (columns - width) / 2);
        let channels = preprocess.channels.weights();
        let element = |channel: usize, y: usize, x: usize| {
            let place = 3 * ((top + y) * columns + left + x);
            let mixed: f64 =
                (0..3).map(|colour| f64::from(channels[channel][colour]) * resized[place + colour]).sum();
            (mixed / 255.0 - f64::from(preprocess.mean[channel])) / f64::from(preprocess.deviation[channel])
        };
        let mut input = Vec::new();
        match preprocess.layout {
            Layout::Nchw => {
                for channel in 0..channels.len() {
                    for y in 0..height {
                        input.extend((0..width).map(|x| element(channel, y, x)));
                    }
                }
            }
            Layout::Nhwc => {
                for y in 0..height {
                    for x in 0..width {
                        input.extend((0..channels.len()).map(|channel| element(channel, y, x)));
                    }
                }
            }
        }
        input
    }

    fn any_preprocess() -> impl Strategy<Value = Preprocess> {
        let orders = prop_oneof![Just(PixelOrder::Rgb), Just(PixelOrder::Bgr)];
        let channels = prop_oneof![Just(Channels::Rgb), Just(Channels::Bgr), Just(Channels::Luminance)];
        let layouts = prop_oneof![Just(Layout::Nchw), Just(Layout::Nhwc)];
        let sizes = prop_oneof![
            (1usize..40).prop_map(Resize::ShorterEdge),
            (1usize..40, 1usize..40).prop_map(|(height, width)| Resize::To([height, width])),
        ];
        (orders, channels, layouts, sizes, 0.0f64..1.0, 0.0f64..1.0, -0.5f32..0.5, 0.1f32..2.0).prop_map(
            |(image, channels, layout, resize, rows, columns, mean, deviation)| {
                let least = match resize {
                    Resize::ShorterEdge(edge) => [edge, edge],
                    Resize::To(size) => size,
                };
                let crop = [(0, rows), (1, columns)]
                    .map(|(axis, part)| 1 + (part * (least[axis] - 1) as f64) as usize);
                let count = channels.weights().len();
                let mean = (0..count).map(|channel| mean + channel as f32 / 8.0).collect();
                let deviation = (0..count).map(|channel| deviation + channel as f32 / 8.0).collect();
                Preprocess { image, resize, crop, channels, mean, deviation, layout }
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_input_is_that_of_the_slow_reference(
            preprocess in any_preprocess(), height in 1usize..50, width in 1usize..50, name in 0u32..1000,
        ) {
            let image = test_image(&name.to_string(), height, width);
            let input = preprocess.run(&image).unwrap();
            let expected = reference(&preprocess, &image);
            prop_assert_eq!(input.len(), expected.len());
            for (place, (value, expected)) in input.iter().zip(expected).enumerate() {
                // Half of the last bit of a coordinate below 64 moves a value by at most 255 × 2⁻¹⁸ steps, by
                // deviation.
                let tolerance = 2e-5 / preprocess.deviation.iter().fold(f64::MAX, |least, &d| least.min(f64::from(d)));
                prop_assert!((f64::from(*value) - expected).abs() <= tolerance, "{place}: {value} {expected}");
            }
        }
    }

    fn identity(height: usize, width: usize) -> Preprocess {
        Preprocess {
            image: PixelOrder::Bgr,
            resize: Resize::To([height, width]),
            crop: [height, width],
            channels: Channels::Rgb,
            mean: vec![0.0; 3],
            deviation: vec![1.0; 3],
            layout: Layout::Nchw,
        }
    }

    #[test]
    fn planes_follow_one_another_in_the_model_s_channel_order() {
        let image = Image { height: 1, width: 2, pixels: vec![10, 20, 30, 40, 50, 60] };
        let input = identity(1, 2).run(&image).unwrap();
        assert_eq!(input, [30.0, 60.0, 20.0, 50.0, 10.0, 40.0].map(|byte: f32| byte / 255.0));
    }

    #[test]
    fn what_does_not_fit_is_an_error_with_the_numbers() {
        let image = test_image("errors", 8, 8);
        let good = identity(4, 4);
        for (wrong, image, words) in [
            (Preprocess { crop: [5, 4], ..good.clone() }, &image, "[5, 4]"),
            (Preprocess { crop: [0, 4], ..good.clone() }, &image, "[0, 4]"),
            (Preprocess { mean: vec![0.0; 2], ..good.clone() }, &image, "mean: 2 values for 3 channels"),
            (Preprocess { deviation: vec![1.0, 0.0, 1.0], ..good.clone() }, &image, "divides by zero"),
            (Preprocess { resize: Resize::ShorterEdge(3), ..good.clone() }, &image, "resized to [3, 3]"),
            (good.clone(), &Image { pixels: vec![0; 191], ..image.clone() }, "has 192 bytes, not 191"),
            (good.clone(), &Image { height: 0, width: 8, pixels: vec![] }, "8 × 0"),
            (
                Preprocess { resize: Resize::ShorterEdge(60_000), ..good.clone() },
                &test_image("thin", 1, 9),
                "540000",
            ),
        ] {
            let error = wrong.run(image).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn test_images_are_the_same_everywhere() {
        let image = test_image("door", 97, 131);
        assert_eq!(image.pixels.len(), 97 * 131 * 3);
        assert_eq!(image, test_image("door", 97, 131));
        assert_ne!(image, test_image("bell", 97, 131));
        assert_eq!(
            crate::Digest::of(&image.pixels).to_string(),
            "ae04f713237f4e465e52d21b9f496d96cf5d70eb9ee41df323c079010b22bdfd"
        );
    }
}
