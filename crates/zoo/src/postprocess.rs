//! From a model's first output to what it means: classes with probabilities, or an image. On the CPU.
//!
//! An output of luminance replaces the image's own, as PyTorch's super-resolution tutorial merges it
//! (`advanced/super_resolution_with_onnxruntime`): the chrominance (BT.601) stays. It is resized as
//! [`preprocess`](crate::preprocess) resizes, which is bilinear; the tutorial's is bicubic.

use anyhow::{Result, bail, ensure};
use serde::Deserialize;

use crate::preprocess::{Channels, Image, PixelOrder, Preprocess, mix, sample};

/// What the first output means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Postprocess {
    /// A score for each class, before softmax; the largest is the answer.
    Logits {
        /// How many.
        classes: usize,
    },
    /// Rows of luminance, 0 black and 1 white; values outside are cut.
    Luminance,
}

/// What an output says of an image.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// All classes, the likeliest first; of equal ones that of the lower number.
    Classes(Vec<Class>),
    /// Its bytes are in the order of those of the image that was asked about.
    Image(Image),
}

/// A class of an image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Class {
    /// Its place in the output, from 0.
    pub number: usize,
    /// Softmax of its score: 0 to 1.
    pub probability: f64,
}

impl Postprocess {
    /// Whether an output of this shape has that meaning, for a model whose input has `crop` pixels.
    pub(crate) fn check(self, crop: [usize; 2], shape: &[usize]) -> Result<()> {
        match (self, shape) {
            (Postprocess::Logits { classes }, &[1, extent]) if extent == classes => Ok(()),
            (Postprocess::Luminance, &[1, 1, rows, columns])
                if rows.is_multiple_of(crop[0]) && columns.is_multiple_of(crop[1]) =>
            {
                Ok(())
            }
            (Postprocess::Logits { classes }, _) => {
                bail!("postprocess: output {shape:?} has not the scores of {classes} classes")
            }
            (Postprocess::Luminance, _) => {
                bail!("postprocess: output {shape:?} is no luminance of a multiple of {crop:?} pixels")
            }
        }
    }

    /// What an output says of the image that the input was made of. `shape`: the output's, which
    /// [`Manifest`](crate::Manifest) has checked.
    pub(crate) fn answer(
        self,
        preprocess: &Preprocess,
        image: &Image,
        (shape, output): (&[usize], &[f32]),
    ) -> Result<Answer> {
        let (found, wanted) = (output.len(), shape.iter().product());
        ensure!(
            found == wanted,
            "an output of {found} values, the manifest's has {wanted}; give the whole output of one image"
        );
        if let Some(place) = output.iter().position(|value| !value.is_finite()) {
            bail!(
                "value {place} of the output is {}; look for such a value in the weights, or run the model in single precision",
                output[place]
            );
        }
        match self {
            Postprocess::Logits { .. } => Ok(Answer::Classes(classes(output))),
            Postprocess::Luminance => {
                Ok(Answer::Image(recoloured(preprocess, image, output, [shape[2], shape[3]])?))
            }
        }
    }
}

/// Softmax of scores, in double precision.
fn classes(scores: &[f32]) -> Vec<Class> {
    let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    // The largest becomes 1: no power overflows.
    let powers: Vec<f64> = scores.iter().map(|&score| (f64::from(score) - f64::from(most)).exp()).collect();
    let sum: f64 = powers.iter().sum();
    let classes = powers.iter().enumerate().map(|(number, power)| Class { number, probability: power / sum });
    let mut classes: Vec<Class> = classes.collect();
    classes.sort_by(|one, other| scores[other.number].total_cmp(&scores[one.number]));
    classes
}

/// The image's crop, resized to that many rows and columns, with this luminance.
fn recoloured(
    preprocess: &Preprocess,
    image: &Image,
    luminance: &[f32],
    [height, width]: [usize; 2],
) -> Result<Image> {
    let factors = [height / preprocess.crop[0], width / preprocess.crop[1]];
    let [rows, columns] = preprocess.samples(image, factors)?;
    let weights = &Channels::Luminance.weights()[0];
    let places = rows.iter().flat_map(|row| columns.iter().map(move |column| (row, column)));
    let mut pixels = Vec::with_capacity(height * width * 3);
    for ((row, column), luminance) in places.zip(luminance) {
        let colour = sample(image, preprocess.image, row, column);
        // Chrominance is red and blue less luminance: with it unchanged, all three move with luminance.
        let change = luminance.clamp(0.0, 1.0) * 255.0 - mix(weights, colour);
        let mut pixel = colour.map(|value| (value + change).round().clamp(0.0, 255.0) as u8);
        if preprocess.image == PixelOrder::Bgr {
            pixel.reverse();
        }
        pixels.extend(pixel);
    }
    Ok(Image { height, width, pixels })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::Manifest;
    use crate::preprocess::{Layout, Resize, test_image};

    fn committed(name: &str) -> Manifest {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../modelzoo/models");
        Manifest::find(name, Some(&folder)).unwrap().0
    }

    #[test]
    fn scores_become_probabilities_and_the_likeliest_class_is_first() {
        let manifest = committed("squeezenet-1.1");
        let image = test_image("scores", 4, 4);
        // Their powers of e are 1, 3 and 2, and those of the other 997 vanish.
        let mut scores = vec![-1e30_f32; 1000];
        (scores[7], scores[285], scores[999]) = (0.0, 3.0_f32.ln(), 2.0_f32.ln());
        // Softmax does not change when all scores do, however large they are.
        for shift in [0.0, -1000.0, 1000.0] {
            let shifted: Vec<f32> = scores.iter().map(|score| score + shift).collect();
            let Ok(Answer::Classes(classes)) = manifest.answer(&image, &shifted) else {
                panic!("no classes")
            };
            assert_eq!(classes.len(), 1000);
            for (class, (number, probability)) in
                classes.iter().zip([(285, 3.0 / 6.0), (999, 2.0 / 6.0), (7, 1.0 / 6.0), (0, 0.0), (1, 0.0)])
            {
                assert_eq!(class.number, number);
                assert!((class.probability - probability).abs() < 1e-4, "{class:?}");
            }
        }
    }

    #[test]
    fn luminance_replaces_the_image_s_and_is_cut() {
        let mut manifest = committed("super-resolution-x3");
        (manifest.preprocess.resize, manifest.preprocess.crop) = (Resize::To([1, 2]), [1, 2]);
        manifest.output[0].shape = vec![1, 1, 1, 2];
        let answer = |manifest: &Manifest, image: &Image, output: &[f32]| match manifest.answer(image, output)
        {
            Ok(Answer::Image(image)) => (image.height, image.width, image.pixels),
            other => panic!("{other:?}"),
        };
        // Blue, green, red. The first has luminance 0.114 × 10 + 0.587 × 20 + 0.299 × 30 = 21.85.
        let image = Image { height: 1, width: 2, pixels: vec![10, 20, 30, 255, 0, 0] };
        // 0.4 × 255 = 102 is 80.15 more; blue of luminance 1 is 225.93 brighter, and what passes 255 is cut.
        assert_eq!(answer(&manifest, &image, &[0.4, 7.0]), (1, 2, vec![90, 100, 110, 255, 226, 226]));
        assert_eq!(answer(&manifest, &image, &[-3.0, 29.07 / 255.0]), (1, 2, vec![0, 0, 8, 255, 0, 0]));
        manifest.preprocess.image = PixelOrder::Rgb;
        let red_first = Image { pixels: vec![30, 20, 10, 0, 0, 255], ..image };
        assert_eq!(answer(&manifest, &red_first, &[0.4, 7.0]), (1, 2, vec![110, 100, 90, 226, 226, 255]));
    }

    /// The answer of a model that resizes luminance as pre-processing does. Panics unless it is the image,
    /// resized, within half a step of rounding and what single precision loses.
    fn round_trip(mut manifest: Manifest, image: &Image, (resize, crop): (Resize, [usize; 2])) -> Image {
        manifest.output[0].shape = [&[1, 1], &crop[..]].concat();
        let larger = Preprocess { resize, crop, ..manifest.preprocess.clone() };
        let Ok(Answer::Image(answer)) = manifest.answer(image, &larger.run(image).unwrap()) else {
            panic!("no image")
        };
        assert_eq!([answer.height, answer.width], crop);
        let (mean, deviation) = (vec![0.0; 3], vec![1.0; 3]);
        let colours = Preprocess { channels: Channels::Bgr, mean, deviation, layout: Layout::Nhwc, ..larger };
        for (byte, wanted) in answer.pixels.iter().zip(colours.run(image).unwrap()) {
            let wanted = 255.0 * wanted;
            assert!((f32::from(*byte) - wanted).abs() < 0.501, "{resize:?}: {byte} {wanted}");
        }
        answer
    }

    #[test]
    fn pre_and_post_processing_of_an_image_give_the_image() {
        let image = test_image("same", 640, 480);
        let same = (Resize::To([640, 480]), [640, 480]);
        assert_eq!(round_trip(committed("super-resolution-x1"), &image, same), image);
        let larger = (Resize::To([672, 672]), [672, 672]);
        round_trip(committed("super-resolution-x3"), &test_image("larger", 224, 224), larger);
    }

    /// The middle of a larger image: what was cut off from the input is not in the answer.
    #[test]
    fn the_answer_shows_the_crop() {
        let mut manifest = committed("super-resolution-x3");
        (manifest.preprocess.resize, manifest.preprocess.crop) = (Resize::ShorterEdge(4), [2, 4]);
        let image = test_image("crop", 4, 8);
        let answer = round_trip(manifest.clone(), &image, (Resize::ShorterEdge(4), [2, 4]));
        let rows = [1, 2].iter().flat_map(|y| image.pixels[(y * 8 + 2) * 3..][..12].to_vec());
        assert_eq!(answer.pixels, rows.collect::<Vec<u8>>());
        round_trip(manifest, &image, (Resize::ShorterEdge(12), [6, 12]));
    }

    #[test]
    fn a_manifest_s_output_has_the_shape_of_its_meaning() {
        let (logits, luminance) = (Postprocess::Logits { classes: 10 }, Postprocess::Luminance);
        for (meaning, shape, words) in [
            (logits, &[1, 10][..], ""),
            (logits, &[1, 9], "not the scores of 10 classes"),
            (logits, &[1, 1, 1, 10], "not the scores of 10 classes"),
            (luminance, &[1, 1, 8, 12], ""),
            (luminance, &[1, 1, 6, 12], "no luminance of a multiple of [4, 6] pixels"),
            (luminance, &[1, 1, 8, 9], "no luminance"),
            (luminance, &[1, 3, 8, 12], "no luminance"),
            (luminance, &[1, 10], "no luminance"),
        ] {
            let said = meaning.check([4, 6], shape).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(said.contains(words) && said.is_empty() == words.is_empty(), "{shape:?}: {said}");
        }
    }

    #[test]
    fn an_output_without_a_meaning_is_an_error_that_names_the_value() {
        let image = test_image("errors", 8, 8);
        for (name, values) in [("squeezenet-1.1", 1000), ("super-resolution-x3", 672 * 672)] {
            let manifest = committed(name);
            let said = |output: &[f32]| manifest.answer(&image, output).unwrap_err().to_string();
            let length = said(&vec![0.0; values - 1]);
            let words = [format!("output of {} values", values - 1), format!("has {values}; give the whole")];
            assert!(words.iter().all(|word| length.contains(word)), "{length}");
            for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut output = vec![0.0; values];
                output[values - 2] = value;
                let error = said(&output);
                let words = format!("value {} of the output is {value}; look for", values - 2);
                assert!(error.contains(&words), "{error}");
            }
        }
        let cut = Image { pixels: vec![0; 191], ..image };
        let error = committed("super-resolution-x3").answer(&cut, &vec![0.0; 672 * 672]).unwrap_err();
        assert!(error.to_string().contains("has 192 bytes, not 191"), "{error}");
    }
}
