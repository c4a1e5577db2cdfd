//! `profiler answer`: what a model says of an image, by the manifest's pre-processing and post-processing.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use zoo::Manifest;
use zoo::postprocess::{Answer, Postprocess};

use crate::{ppm, single_run};

/// Classes that are printed, the likeliest first.
const SHOWN: usize = 5;

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    choice: single_run::Choice,
    /// The image: a PPM file (P6, 8 bits a colour); `ffmpeg -i PHOTO -pix_fmt rgb24 IMAGE.ppm` makes one.
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
    let (manifest, title) = (&model.manifest, &model.manifest.title);
    let out = out(options, manifest)?;
    let order = manifest.preprocess.image;
    let image = ppm::ordered(image, order);
    let input = manifest.preprocess.run(&image).with_context(|| path.to_string())?;
    let outputs = compute(&[&input])?;
    let answer = manifest.answer(&image, &outputs[0]).with_context(|| path.to_string())?;
    match answer {
        Answer::Classes(classes) => {
            say!("{title} of {path}: {}", model.weights);
            say!("{:>11}  class", "probability");
            for class in classes.iter().take(SHOWN) {
                say!("{:11.6}  {}", class.probability, class.number);
            }
        }
        Answer::Image(answer) => {
            let out = out.expect("the file of an image");
            let size = format!("{} x {} pixels", answer.height, answer.width);
            ppm::write(out, &ppm::ordered(answer, order))
                .with_context(|| format!("--out {}", out.display()))?;
            say!("{title} of {path}: {size} in {}: {}", out.display(), model.weights);
        }
    }
    Ok(true)
}

/// The file of the answer, if it is an image. Errors: `--out` is missing, of no use, or in no folder.
fn out<'a>(options: &'a Options, manifest: &Manifest) -> Result<Option<&'a Path>> {
    let (out, title) = (options.out.as_deref(), &manifest.title);
    match (&manifest.postprocess, out) {
        (Postprocess::Logits { .. }, Some(_)) => {
            bail!("--out is for a model that answers with an image: {title} prints classes")
        }
        (Postprocess::Luminance, None) => bail!("{title} answers with an image: name its file by --out"),
        _ => {}
    }
    let folder = out.and_then(Path::parent).filter(|folder| !folder.as_os_str().is_empty());
    if let (Some(out), Some(folder)) = (out, folder.filter(|folder| !folder.is_dir())) {
        bail!("--out {}: there is no folder {}; make it", out.display(), folder.display());
    }
    Ok(out)
}
