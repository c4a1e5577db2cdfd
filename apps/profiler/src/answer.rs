//! `profiler answer`: what a model says of an image, by the manifest's pre-processing and post-processing.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use zoo::postprocess::Answer;

use crate::{alone, ppm};

/// Classes that are printed, the likeliest first.
const SHOWN: usize = 5;

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    choice: alone::Choice,
    /// The image: a PPM file (P6, 8 bits a colour); `ffmpeg -i PHOTO IMAGE.ppm` makes one.
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// The PPM file to write, if the model's answer is an image.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Prints or writes the answer.
pub fn run(options: &Options) -> Result<bool> {
    let path = options.image.display();
    let image = ppm::read(&options.image)?;
    let (model, mut compute) = options.choice.load()?;
    let manifest = &model.manifest;
    let order = manifest.preprocess.image;
    let image = ppm::ordered(image, order);
    let input = manifest.preprocess.run(&image).with_context(|| path.to_string())?;
    let outputs = compute(&[&input])?;
    let answer = manifest.answer(&image, &outputs[0]).with_context(|| path.to_string())?;
    let title = &manifest.title;
    match (answer, &options.out) {
        (Answer::Classes(classes), None) => {
            say!("{title} of {path}: {}", model.weights);
            say!("{:>11}  class", "probability");
            for class in classes.iter().take(SHOWN) {
                say!("{:11.6}  {}", class.probability, class.number);
            }
        }
        (Answer::Image(answer), Some(out)) => {
            let size = format!("{} x {} pixels", answer.height, answer.width);
            ppm::write(out, ppm::ordered(answer, order))
                .with_context(|| format!("--out {}", out.display()))?;
            say!("{title} of {path}: {size} in {}: {}", out.display(), model.weights);
        }
        (Answer::Classes(_), Some(_)) => {
            bail!("--out is for a model that answers with an image: {title} prints classes")
        }
        (Answer::Image(_), None) => bail!("{title} answers with an image: name its file by --out"),
    }
    Ok(true)
}
