//! The kernel `preprocess` on a GPU: an image of bytes becomes a model's input there.

use gpu::{Arguments, DeviceMemory, Gpu, PinnedMemory, Priority, Shape, Staging, Stream, Toolkit};
use zoo::preprocess::{Image, Preprocess};

use super::code::Code;
use super::limits::{BETWEEN, LIMIT};
use super::memory::floats;
use super::ready::words_of;
use crate::engine::{EngineError, preprocess};

/// Pre-processing on a GPU, with a stream of its own.
#[derive(Debug)]
pub struct Images {
    code: Code,
    stream: Stream,
    between: PinnedMemory,
}

impl Images {
    /// Errors: the compiler's, the GPU's.
    pub fn new(gpu: Gpu, toolkit: Toolkit) -> Result<Images, EngineError> {
        let mut code = Code::new(gpu, toolkit)?;
        code.prepare([preprocess::KERNEL].into_iter())?;
        let stream = Stream::new(&code.context, Priority::Least)?;
        let between = PinnedMemory::new(&code.context, BETWEEN)?;
        Ok(Images { code, stream, between })
    }

    /// A model's input for an image, `f32`, in the manifest's order; `None` if the kernel refuses the image.
    /// `extents`: rows and columns as a peer gives them, which need not be the image's.
    pub fn input(
        &self,
        of: &Preprocess,
        image: &Image,
        extents: [u32; 2],
    ) -> Result<Option<Vec<f32>>, EngineError> {
        preprocess::check(of)?;
        let memory = |bytes: usize| DeviceMemory::new(&self.code.context, bytes.max(size_of::<u32>()));
        let way = Staging { stream: &self.stream, between: &self.between, limit: LIMIT };
        let (pixels, place) = (memory(image.pixels.len())?, memory(size_of_val(&extents))?);
        let (input, status) = (memory(of.elements() * size_of::<f32>())?, memory(size_of::<u32>())?);
        pixels.write(0, &image.pixels, way)?;
        place.write(0, &words_of(&extents), way)?;
        // What the kernel leaves out is no number.
        input.fill(0xff, &self.stream)?;
        status.fill(0, &self.stream)?;
        let addresses = [&pixels, &place, &input, &status].map(DeviceMemory::address);
        let arguments = addresses.into_iter().fold(Arguments::new(), Arguments::u64);
        let arguments = arguments.bytes(&words_of(&preprocess::words(of, image.pixels.len() as u32)));
        let ([x, y], threads) = preprocess::shape(of);
        let shape = Shape { grid: [x, y, 1], block: [threads, 1, 1], shared_bytes: 0 };
        // SAFETY: the kernel reads as many bytes of the image as it is told, and writes one element for each
        // of the crop's. All memory lives until the stream is idle, or the context keeps it.
        unsafe { self.stream.launch(self.code.function(preprocess::KERNEL)?, shape, &arguments) }?;
        self.stream.wait("the pre-processing of an image", LIMIT)?;
        let mut refused = [0; size_of::<u32>()];
        status.read(0, &mut refused, way)?;
        let elements = floats(&input, of.elements(), way)?;
        Ok((refused == [0; 4]).then_some(elements))
    }
}
