//! The machine that runs kernels: a GPU, or the host twin in its place.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gpu::cache::Cache;
use gpu::{DeviceMemory, Form, Gpu, ImageBuilder, Module, Priority, Stream, Toolkit, Unit};

use super::code::{Arguments, Source};
use super::error::KernelError;
use super::memory::{Copies, HostMemory, Memory};
use super::running::{Launched, Running};
use host_twin::{Launch, Visibility};

/// Longer than any launch of the twin: its deadline is kept by [`Running`].
const FOR_EVER: Duration = Duration::from_secs(1 << 20);

/// `CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER` of `cuda.h`.
const TO_OWNER: i32 = 100;

/// A GPU or the host twin; clones are the same.
#[derive(Debug, Clone)]
pub struct Machine(Arc<Inner>);

#[derive(Debug)]
enum Inner {
    Gpu(Box<OnGpu>),
    Twin(Visibility),
}

#[derive(Debug)]
struct OnGpu {
    context: gpu::Context,
    name: String,
    toolkit: Toolkit,
    /// Images that were loaded, by their source's name.
    modules: Mutex<BTreeMap<&'static str, Module>>,
    copies: Arc<Copies>,
    /// `GPU_DIRECT_RDMA_WRITES_ORDERING`; 0 where the driver does not tell.
    write_ordering: i32,
}

impl Machine {
    /// The GPU of that number; its kernels are compiled with the toolkit that [`Toolkit::find`] finds.
    /// Errors: no driver, no such GPU, no toolkit.
    pub fn gpu(ordinal: Option<u32>, toolkit: Option<&Path>) -> Result<Machine, KernelError> {
        let gpu = match ordinal {
            None => Gpu::first()?,
            Some(ordinal) => Gpu::of_ordinal(ordinal)?,
        };
        let toolkit = Toolkit::find(toolkit)?;
        let context = gpu::Context::new(gpu)?;
        let copies = Arc::new(Copies::new(&context)?);
        let name = gpu.name()?;
        let write_ordering = gpu.abilities().map_or(0, |abilities| abilities.write_ordering);
        let modules = Mutex::default();
        let on = OnGpu { context, name, toolkit, modules, copies, write_ordering };
        Ok(Machine(Arc::new(Inner::Gpu(Box::new(on)))))
    }

    /// The host twin.
    pub fn twin(visibility: Visibility) -> Machine {
        Machine(Arc::new(Inner::Twin(visibility)))
    }

    /// Whether it is a GPU.
    pub fn is_gpu(&self) -> bool {
        matches!(&*self.0, Inner::Gpu(_))
    }

    /// What it is, for reports: `NVIDIA H200, CUDA driver 13.0`, or `host twin`.
    pub fn name(&self) -> String {
        match &*self.0 {
            Inner::Twin(_) => "host twin".into(),
            Inner::Gpu(on) => match gpu::driver_version() {
                Ok(version) => format!("{}, CUDA driver {version}", on.name),
                Err(_) => on.name.clone(),
            },
        }
    }

    /// Host memory that its kernels see.
    pub fn host_memory(&self, bytes: usize) -> Result<HostMemory, KernelError> {
        HostMemory::new(self.context(), bytes)
    }

    /// Pages that others use too, as its kernels see them: pinned while that memory lives, if there is a GPU.
    pub fn show(&self, pages: &Arc<verbs::Pages>) -> Result<HostMemory, KernelError> {
        HostMemory::of_pages(self.context(), pages)
    }

    /// Its own memory, on pages that a NIC may be given; content unknown. Without a GPU: host memory.
    pub fn own_memory(&self, bytes: usize) -> Result<Memory, KernelError> {
        match &*self.0 {
            Inner::Twin(_) => Ok(self.host_memory(bytes)?.into()),
            Inner::Gpu(on) => {
                Ok(Memory::of_device(DeviceMemory::for_export(&on.context, bytes)?, &on.copies))
            }
        }
    }

    /// As [`Self::own_memory`], all of it 0.
    pub fn zeroed_memory(&self, bytes: usize) -> Result<Memory, KernelError> {
        let memory = self.own_memory(bytes)?;
        memory.fill(0)?;
        Ok(memory)
    }

    /// An error unless `other`, which `what` was made for, is this machine or one of the same GPU. The twin's
    /// kernels would store to a GPU's addresses; a GPU never shown these pages loses its context.
    pub fn reaches(&self, what: &str, other: &Machine) -> Result<(), KernelError> {
        let same = match (self.context(), other.context()) {
            (Some(ours), Some(theirs)) => ours.gpu() == theirs.gpu(),
            _ => Arc::ptr_eq(&self.0, &other.0),
        };
        match same {
            true => Ok(()),
            false => Err(KernelError::Refused(format!(
                "{what} was made for another machine ({}) than the one that runs the kernel ({}): make both with one `Machine`",
                other.name(),
                self.name()
            ))),
        }
    }

    /// An error unless its kernels, once they see a message's completion or last word in host memory, see all
    /// of it in `memory` (docs/orders.md, row "completions": else the payload is read too early).
    pub(super) fn sees_arrivals(&self, memory: &Memory) -> Result<(), KernelError> {
        match (&*self.0, memory) {
            (Inner::Gpu(on), Memory::Gpu(_)) => ordered(on.write_ordering, &on.name),
            _ => Ok(()),
        }
    }

    /// Code for a GPU, several sources linked into one image. Errors: always on the twin; compiler's; GPU's.
    pub fn module(&self, units: &[Unit]) -> Result<Module, KernelError> {
        match &*self.0 {
            Inner::Twin(_) => Err(KernelError::Refused("the host twin runs no graph of a GPU's".into())),
            Inner::Gpu(on) => on.load(units),
        }
    }

    /// As if the driver had told another order.
    #[cfg(test)]
    pub(super) fn with_write_ordering(self, write_ordering: i32) -> Machine {
        match Arc::into_inner(self.0) {
            Some(Inner::Gpu(on)) => Machine(Arc::new(Inner::Gpu(Box::new(OnGpu { write_ordering, ..*on })))),
            other => panic!("{other:?} is no GPU of one owner"),
        }
    }

    /// The GPU's context, if it is one.
    pub fn context(&self) -> Option<&gpu::Context> {
        match &*self.0 {
            Inner::Gpu(on) => Some(&on.context),
            Inner::Twin(_) => None,
        }
    }
}

fn ordered(write_ordering: i32, name: &str) -> Result<(), KernelError> {
    match write_ordering >= TO_OWNER {
        true => Ok(()),
        false => Err(KernelError::Refused(format!(
            "{name} does not promise that its kernels see what a NIC wrote to GPU memory before the completion in host memory \
             (GPU_DIRECT_RDMA_WRITES_ORDERING is {write_ordering}, and {TO_OWNER} is to the owner): receive into host memory"
        ))),
    }
}

/// A kernel ready to be launched: its code is on the machine, and it has a stream for its first launch.
#[derive(Debug, Clone)]
pub struct Kernel {
    name: &'static str,
    code: Code,
}

#[derive(Debug, Clone)]
enum Code {
    Gpu(gpu::Function, Streams),
    Twin(host_twin::Kernel, Visibility),
}

impl Kernel {
    /// Compiles the source if needed, and puts the code on the machine. Do it before anything else is
    /// launched there: loading may wait for running kernels.
    pub fn prepare(machine: &Machine, source: &Source, name: &'static str) -> Result<Kernel, KernelError> {
        Kernel::prepare_linked(machine, source, &[], name)
    }

    /// [`Self::prepare`] with functions of `units` linked into a GPU's image. The host twin links none.
    pub fn prepare_linked(
        machine: &Machine,
        source: &Source,
        units: &[Unit],
        name: &'static str,
    ) -> Result<Kernel, KernelError> {
        let code = match &*machine.0 {
            Inner::Twin(visibility) => Code::Twin(source.twin.find(name)?, *visibility),
            Inner::Gpu(on) => {
                let module = match units {
                    [] => on.module(source)?,
                    _ => on.load(&[&[source.unit()], units].concat())?,
                };
                Code::Gpu(module.function(name)?, Streams::new(&on.context)?)
            }
        };
        Ok(Kernel { name, code })
    }

    /// Blocks of `threads` for [`Self::launch_cooperative`]; on a GPU they leave room for short kernels.
    pub fn resident_blocks(&self, threads: u32) -> Result<u32, KernelError> {
        match &self.code {
            Code::Twin(_, Visibility::Weak { .. }) => {
                Ok((host_twin::MAX_LANES as u32 / threads.max(1)).max(1))
            }
            Code::Twin(..) => Ok(2),
            Code::Gpu(function, _) => Ok(function.resident_blocks(threads)?),
        }
    }

    /// Blocks of a launch for so many queue pairs. Error: more than an otherwise idle machine runs at once.
    pub fn blocks(&self, queues: usize, each: u32, threads: u32) -> Result<u32, KernelError> {
        let most = match &self.code {
            Code::Twin(..) => host_twin::MAX_LANES as u32 / threads.max(1),
            Code::Gpu(function, _) => function.max_blocks(threads)?,
        };
        let blocks = u32::try_from(queues).ok().and_then(|queues| queues.checked_mul(each));
        blocks.filter(|blocks| (1..=most).contains(blocks)).ok_or_else(|| {
            KernelError::Refused(format!(
                "{queues} queue pairs take {each} blocks of {threads} threads each, and kernel {} has 1 to {most} such blocks at a \
                 time here: give fewer queue pairs or producers",
                self.name
            ))
        })
    }

    /// Launches it. `cancel` is the word by which it is told to end; `held`, everything that it touches, is
    /// returned when it has ended.
    ///
    /// # Safety
    /// The kernel takes these arguments and keeps to memory that `held` keeps; it ends when `cancel` is set.
    pub unsafe fn launch<T>(
        &self,
        shape: [u32; 2],
        arguments: &Arguments,
        cancel: HostMemory,
        held: T,
    ) -> Result<Running<T>, KernelError> {
        // SAFETY: the caller's.
        unsafe { self.launch_as(false, shape, arguments, cancel, held) }
    }

    /// [`Self::launch`] for a kernel whose blocks wait for one another. Error also: more than run at once.
    ///
    /// # Safety
    /// As [`Self::launch`].
    pub unsafe fn launch_cooperative<T>(
        &self,
        shape: [u32; 2],
        arguments: &Arguments,
        cancel: HostMemory,
        held: T,
    ) -> Result<Running<T>, KernelError> {
        // SAFETY: the caller's.
        unsafe { self.launch_as(true, shape, arguments, cancel, held) }
    }

    unsafe fn launch_as<T>(
        &self,
        cooperative: bool,
        shape: [u32; 2],
        arguments: &Arguments,
        cancel: HostMemory,
        held: T,
    ) -> Result<Running<T>, KernelError> {
        cancel.words()[0].store(0, std::sync::atomic::Ordering::Release);
        let [blocks, threads] = shape;
        let launched = match &self.code {
            Code::Gpu(function, streams) => {
                let stream = streams.take()?;
                let shape = gpu::Shape::line(blocks, threads);
                let arguments = arguments.for_gpu();
                if cooperative {
                    // SAFETY: the caller's; `Running` keeps what the kernel uses until the stream is idle.
                    unsafe { stream.launch_cooperative(function, shape, &arguments) }
                } else {
                    // SAFETY: as above.
                    unsafe { stream.launch(function, shape, &arguments) }
                }?;
                Launched::Gpu(stream)
            }
            Code::Twin(kernel, visibility) => {
                let launch = Launch {
                    visibility: *visibility,
                    deadline: FOR_EVER,
                    cooperative,
                    ..Launch::new(blocks, threads)
                };
                // SAFETY: the caller's; `Running` keeps what the kernel uses until its lanes have ended.
                Launched::Twin(unsafe { host_twin::start(*kernel, &launch, arguments.for_twin()) }?)
            }
        };
        Ok(Running::new(self.name, launched, cancel, held))
    }
}

/// Streams of a kernel, one per launch in flight: a stream runs its launches in turn, and tells only that all
/// of them have ended.
#[derive(Debug, Clone)]
struct Streams(Arc<Mutex<Vec<Arc<Stream>>>>);

impl Streams {
    fn new(context: &gpu::Context) -> Result<Streams, KernelError> {
        let first = Arc::new(Stream::new(context, Priority::Least)?);
        Ok(Streams(Arc::new(Mutex::new(vec![first]))))
    }

    /// One that no launch has, and in which nothing runs that was given up; a new one where there is none.
    fn take(&self) -> Result<Arc<Stream>, KernelError> {
        let mut streams = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for stream in streams.iter() {
            if Arc::strong_count(stream) == 1 && stream.is_idle()? {
                return Ok(Arc::clone(stream));
            }
        }
        let another = Arc::new(Stream::new(streams[0].context(), Priority::Least)?);
        streams.push(Arc::clone(&another));
        Ok(another)
    }
}

impl OnGpu {
    /// Code of several sources linked into one image.
    fn load(&self, units: &[Unit]) -> Result<Module, KernelError> {
        let builder = ImageBuilder::new(self.toolkit.clone(), Cache::usual());
        let image = builder.image(units, self.context.gpu().arch()?, Form::Cubin)?;
        Ok(Module::load(&self.context, &image)?)
    }

    fn module(&self, source: &Source) -> Result<Module, KernelError> {
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(module) = modules.get(source.name) {
            return Ok(module.clone());
        }
        let module = self.load(&[source.unit()])?;
        modules.insert(source.name, module.clone());
        Ok(module)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_in_a_gpus_memory_are_seen_in_order_from_owner_on() {
        for (ordering, good) in [(-1, false), (0, false), (99, false), (100, true), (200, true)] {
            assert_eq!(ordered(ordering, "a GPU").is_ok(), good, "{ordering}");
        }
        let text = ordered(0, "a GPU").unwrap_err().to_string();
        assert!(
            text.starts_with("a GPU does not promise") && text.contains("ORDERING is 0, and 100"),
            "{text}"
        );
        let twin = Machine::twin(Visibility::InOrder);
        twin.sees_arrivals(&twin.own_memory(64).unwrap()).unwrap();
    }
}
