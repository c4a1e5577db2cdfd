//! A GPU with the kernels of these tests, for one test at a time.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gpu::cache::Cache;
use gpu::{
    Arguments, Context, Form, Gpu, Image, ImageBuilder, Module, Priority, Shape, Stream, Toolkit, Unit,
    relaunch_unit, stamp_unit,
};

/// What ends at all ends long before.
pub const LIMIT: Duration = Duration::from_secs(5);
pub const ONE: Shape = Shape { grid: [1; 3], block: [1; 3], shared_bytes: 0 };

/// A folder with prebuilt images: NVRTC calls the driver if it finds one, and crashes on a stand-in.
pub const IMAGES: &str = "GPU_TEST_IMAGES";

/// One test at a time: what one leaves running, another would wait for.
static TURN: Mutex<()> = Mutex::new(());

/// A context with the kernels of these tests.
pub struct Bench {
    pub context: Context,
    pub image: Image,
    pub module: Module,
    /// What the tests before could not free.
    kept: usize,
    _turn: MutexGuard<'static, ()>,
}

impl Bench {
    pub fn new() -> Result<Bench, String> {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let gpu = Gpu::first().map_err(|error| error.to_string())?;
        let toolkit = Toolkit::find(None).map_err(|error| error.to_string())?;
        let context = Context::new(gpu).map_err(|error| error.to_string())?;
        let kept = std::env::var_os(IMAGES).map_or_else(Cache::off, Cache::at);
        let image =
            ImageBuilder::new(toolkit, kept).image(&units(), gpu.arch().unwrap(), Form::Cubin).unwrap();
        let module = Module::load(&context, &image).unwrap();
        Ok(Bench { kept: context.kept(), context, image, module, _turn: turn })
    }

    /// What could not be freed since.
    pub fn kept(&self) -> usize {
        self.context.kept().saturating_sub(self.kept)
    }

    pub fn stream(&self) -> Stream {
        Stream::new(&self.context, Priority::Least).unwrap()
    }

    pub fn launch(&self, stream: &Stream, kernel: &str, arguments: Arguments) -> gpu::Result<()> {
        let function = self.module.function(kernel)?;
        // SAFETY: each test keeps what it passes until the stream is idle.
        unsafe { stream.launch(&function, ONE, &arguments) }
    }
}

pub fn units() -> [Unit; 3] {
    [Unit::new("kernels.cu", include_str!("kernels.cu")), relaunch_unit(), stamp_unit()]
}

/// Waits for what a crowded machine may take a while for.
pub fn soon(what: &str, is: impl Fn() -> bool) {
    let since = Instant::now();
    while !is() {
        assert!(since.elapsed() < LIMIT, "{what} did not come");
        std::thread::yield_now();
    }
}
