//! `profiler check --image`: makes the model's input from a test image, as the manifest's pre-processing
//! says, with the engine's kernel and with the CPU's function.

use std::str::FromStr;

use anyhow::{Context, Result};
use inference::engine::gpu::Images;
use inference::engine::preprocess::{TOLERANCE, on_twin};
use zoo::preprocess::test_image;

use crate::engine::Engine;
use crate::model::Model;
use crate::subject::Gpu;

/// Rows and columns of an image, 8192 at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size([u32; 2]);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let edge = |edge: &str| edge.parse().ok().filter(|edge| (1..=8192).contains(edge));
        let edges = text.split_once('x').and_then(|(rows, columns)| Some([edge(rows)?, edge(columns)?]));
        edges.map(Size).ok_or_else(|| format!("{text} is not ROWSxCOLUMNS, each within 1 to 8192"))
    }
}

/// The batch's input that the engine's kernel makes of images, and whether it is near the CPU's; prints it.
pub fn input(model: &Model, (engine, gpu): (Engine, &Gpu), Size(extents): Size) -> Result<(Vec<f32>, bool)> {
    let preprocess = &model.manifest.preprocess;
    let [rows, columns] = extents;
    let what = || format!("--image {rows}x{columns}");
    let images = match engine.is_on_a_gpu() {
        true => {
            let (gpu, toolkit) = gpu.device(engine)?;
            Some(Images::new(gpu, toolkit)?)
        }
        false => None,
    };
    let (mut input, mut worst) = (Vec::new(), 0.0_f32);
    for number in 0..model.batch {
        let name = format!("{} {number}", model.manifest.name);
        let image = test_image(&name, rows as usize, columns as usize);
        let wanted = preprocess.run(&image).with_context(what)?;
        let made = match &images {
            Some(images) => images.input(preprocess, &image, extents)?,
            None => on_twin(preprocess, &image, extents)?,
        };
        let made = made.context("the kernel refuses an image that the CPU takes").with_context(what)?;
        worst = farther(worst, farthest(&made, &wanted));
        input.extend(made);
    }
    let by = if images.is_some() { "on the GPU" } else { "on the twin" };
    let plural = if model.batch == 1 { "" } else { "s" };
    say!(
        "pre-processing {by} of {} image{plural} of {rows} x {columns} pixels: at most {worst:.1e} from the CPU's, {TOLERANCE:.0e} is allowed",
        model.batch
    );
    Ok((input, worst < TOLERANCE))
}

/// The largest difference of an element; NaN if one is NaN, as an element that the kernel left out is.
fn farthest(made: &[f32], wanted: &[f32]) -> f32 {
    made.iter().zip(wanted).map(|(made, wanted)| (made - wanted).abs()).fold(0.0, farther)
}

/// The larger one; `f32::max` would leave NaN out.
fn farther(one: f32, other: f32) -> f32 {
    if one.is_nan() || one >= other { one } else { other }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_element_that_is_no_number_is_farther_than_all_others_wherever_it_stands() {
        assert_eq!(farthest(&[1.0, 2.5, 3.0], &[1.0, 2.0, 2.9]), 0.5);
        for place in 0..3 {
            let mut made = [1.0, 2.0, 3.0];
            made[place] = f32::NAN;
            assert!(farthest(&made, &[1.0, 2.0, 3.0]).is_nan(), "place {place}");
        }
        assert!(farther(f32::NAN, 0.0).is_nan() && farther(0.0, f32::NAN).is_nan());
    }

    #[test]
    fn the_size_of_an_image_is_rows_and_columns() {
        assert_eq!("480x640".parse(), Ok(Size([480, 640])));
        for text in ["", "480", "480x", "0x1", "8193x1", "1x1x1", "-1x5"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }
}
