//! The kernel that makes a model's input of an image, and the same on the host twin.
//!
//! It computes what `zoo::preprocess` computes; sums of three products may be rounded another way, so that
//! elements differ by [`TOLERANCE`] at most. On a GPU `gpu::Images` launches it.

use host_twin::Arguments;
use zoo::preprocess::{Image, Layout, PixelOrder, Preprocess, Resize};

use super::{EngineError, KERNELS};

/// The kernel's name.
pub(super) const KERNEL: &str = "preprocess";
/// Largest difference of an element from what `zoo::preprocess` computes.
pub const TOLERANCE: f32 = 1e-5;
/// Threads of a block, as the kernel's launch bounds say.
const THREADS: u32 = 128;
/// No edge of an image is longer, as in `zoo`.
const MOST_PIXELS: u32 = 1 << 16;

/// The kernel's words for a model's pre-processing. `most_bytes`: the room for an image.
pub fn words(preprocess: &Preprocess, most_bytes: u32) -> [u32; 24] {
    let (rows, columns) = match preprocess.resize {
        Resize::ShorterEdge(edge) => (edge, 0),
        Resize::To([rows, columns]) => (rows, columns),
    };
    let weights = preprocess.channels.weights();
    let mut words = [0; 24];
    let numbers = [preprocess.crop[0], preprocess.crop[1], rows, columns, weights.len()];
    words[..5].copy_from_slice(&numbers.map(|number| number as u32));
    words[5] = u32::from(preprocess.image == PixelOrder::Bgr);
    words[6] = u32::from(preprocess.layout == Layout::Nhwc);
    (words[7], words[8]) = (most_bytes, MOST_PIXELS);
    let floats = [(9, weights.as_flattened()), (18, &preprocess.mean[..]), (21, &preprocess.deviation[..])];
    for (at, floats) in floats {
        for (word, float) in words[at..].iter_mut().zip(floats) {
            *word = float.to_bits();
        }
    }
    words
}

/// Blocks (columns, rows) and threads of the kernel's launch.
pub(super) fn shape(preprocess: &Preprocess) -> ([u32; 2], u32) {
    let [rows, columns] = preprocess.crop;
    ([(columns as u32).div_ceil(THREADS), rows as u32], THREADS)
}

/// Whether it is consistent in itself.
pub(super) fn check(preprocess: &Preprocess) -> Result<(), EngineError> {
    preprocess.check().map_err(|error| EngineError::Preprocess { reason: error.to_string() })
}

/// A model's input for an image, by the kernel on the host twin; `None` if the kernel refuses the image.
/// `extents`: rows and columns as a peer gives them, which need not be the image's.
pub fn on_twin(
    preprocess: &Preprocess,
    image: &Image,
    extents: [u32; 2],
) -> Result<Option<Vec<f32>>, EngineError> {
    check(preprocess)?;
    let kernel = KERNELS.find(KERNEL).map_err(twin)?;
    let mut input = vec![f32::NAN; preprocess.elements()];
    let (mut status, mut extents, mut pixels) = (0_u32, extents, image.pixels.clone());
    let arguments = Arguments::new()
        .pointer(pixels.as_mut_ptr())
        .pointer(extents.as_mut_ptr())
        .pointer(input.as_mut_ptr())
        .pointer(&raw mut status)
        .push(words(preprocess, pixels.len() as u32));
    let ([x, y], threads) = shape(preprocess);
    // SAFETY: the kernel reads as many bytes of the image as it was told, and writes one element for each of
    // the crop's.
    unsafe { host_twin::run(kernel, &host_twin::Launch::new((x, y), threads), arguments) }.map_err(twin)?;
    Ok((status == 0).then_some(input))
}

fn twin(source: host_twin::TwinError) -> EngineError {
    EngineError::Twin { step: KERNEL.to_owned(), source }
}
