//! `kernels/add.cu`: the echo's model in the pipeline's modes. It adds 1 to a message's last word.

use gpu::{Function, Recorded, ResidentModel, Shape, SlotTensors, Stream, Unit};
use pipeline::gpu::by_cpu::Model;
use rdma_shim::kernel::{KernelError, Machine, Memory};

use super::KERNELS;

/// Threads of a block of the kernel that stays.
const THREADS: [u32; 2] = [32, 256];

/// The source as a GPU's compiler takes it.
pub fn unit() -> Unit {
    let (name, text) = gpu::GRID_HEADER;
    rdma_shim::device::unit("add.cu", include_str!("../../kernels/add.cu")).header(name, text)
}

/// Adds 1 to a message's last word on the CPU. Words are pairs of numbers, the lower half first.
pub fn add_on_cpu(inputs: &[Vec<f32>], outputs: &mut Vec<Vec<f32>>) {
    outputs.resize_with(inputs.len(), Vec::new);
    for (input, output) in inputs.iter().zip(outputs) {
        output.clone_from(input);
        if let [.., low, high] = &mut output[..] {
            let word = u64::from(low.to_bits()) | u64::from(high.to_bits()) << 32;
            let more = word.wrapping_add(1);
            [*low, *high] = [more as u32, (more >> 32) as u32].map(f32::from_bits);
        }
    }
}

/// The one buffer of a machine's that holds a message on its way through a turn.
#[derive(Debug, Clone)]
pub struct Buffer {
    machine: Machine,
    memory: Memory,
    /// Where its last word begins.
    last: usize,
}

impl Buffer {
    /// For messages of so many bytes, a multiple of 8. Error: no memory.
    pub fn new(machine: &Machine, bytes: u32) -> Result<Buffer, KernelError> {
        let memory = machine.own_memory(bytes as usize)?;
        memory.fill(0)?;
        Ok(Buffer { machine: machine.clone(), memory, last: bytes as usize - 8 })
    }

    /// Where kernels find it: requests are copied there, and answers from there.
    pub fn address(&self) -> u64 {
        self.memory.kernel_address()
    }

    /// The model, for kernels that this processor launches. Error: what the compiler says.
    pub fn model(self) -> Result<Model, KernelError> {
        Ok(match self.machine.is_gpu() {
            true => Model::Recorded(Box::new(self.recorded()?)),
            false => Model::Called(Box::new(move || self.add().map_err(|error| error.to_string()))),
        })
    }

    /// The model on the host twin.
    pub fn add(&self) -> Result<(), KernelError> {
        let mut word = [0; 8];
        self.memory.read(self.last, &mut word)?;
        self.memory.write(self.last, &u64::from_le_bytes(word).wrapping_add(1).to_le_bytes())
    }

    /// The model, for a graph of a GPU. Error: what the compiler says.
    pub fn recorded(self) -> Result<Add, KernelError> {
        let function = self.machine.module(&[unit()])?.function("add_last")?;
        Ok(Add { function, buffer: self })
    }
}

/// The model in a graph.
pub struct Add {
    function: Function,
    buffer: Buffer,
}

// SAFETY: the kernel reads and writes one word of the buffer, which the value keeps with the function.
unsafe impl Recorded for Add {
    fn record(&self, stream: &Stream) -> gpu::Result<()> {
        let arguments = gpu::Arguments::new().u64(self.buffer.address() + self.buffer.last as u64);
        let shape = Shape::line(1, 1);
        // SAFETY: as above.
        unsafe { stream.launch(&self.function, shape, &arguments) }
    }
}

/// The model in the resident kernel, with one request tensor and one answer tensor of the same length.
/// Errors: no memory; no C++ compiler for the twin's.
pub fn resident(machine: &Machine, tensors: &SlotTensors) -> Result<ResidentModel, KernelError> {
    let ([request], [answer]) = (&tensors.inputs[..], &tensors.outputs[..]) else {
        return Err(KernelError::Refused("an echo has one tensor each way".into()));
    };
    let ([slots, index, stride, request_at], [.., answer_at]) = (request.words(), answer.words());
    let arguments = machine.own_memory(size_of::<[u64; 6]>())?;
    // `struct db_add`.
    arguments.put(0, &[slots, index, stride, request_at, answer_at, request.bytes() as u64 / 8])?;
    let twin_entry = if machine.is_gpu() { 0 } else { KERNELS.find("db_model")?.entry() };
    let (address, threads) = (arguments.kernel_address(), THREADS[usize::from(machine.is_gpu())]);
    // SAFETY: the function keeps to its slots and arguments (held by the model); its only wait is the grid's.
    Ok(unsafe { ResidentModel::new(vec![unit()], twin_entry, address, threads, arguments) })
}
