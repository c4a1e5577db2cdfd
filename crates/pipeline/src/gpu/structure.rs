//! What a turn is made of on a GPU: the nodes of the recorded graph, with one kernel in the place of a model.

use std::time::Duration;

use gpu::graph_rules::{Node, NodeKind, Place as End};
use gpu::{Arguments, Function, Recorded, Shape, Stream, Unit};
use rdma_shim::kernel::{Machine, Place};
use slots::{Geometry, Tensor, TensorKind};

use super::{Again, Arrival, Served, ServedError, Setting, launch};

/// Stands for a model.
const NOTHING: &str = "extern \"C\" __global__ void one_node() {}";

struct OneNode(Function);

// SAFETY: the kernel touches no memory.
unsafe impl Recorded for OneNode {
    fn record(&self, stream: &Stream) -> gpu::Result<()> {
        let shape = Shape { grid: [1; 3], block: [32, 1, 1], shared_bytes: 0 };
        // SAFETY: as above.
        unsafe { stream.launch(&self.0, shape, &Arguments::new()) }
    }
}

/// How many nodes of each kind the graph of a turn has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Structure {
    pub nodes: usize,
    pub kernels: usize,
    /// Functions that the CPU would run, and nodes that wait for something outside of the graph.
    pub host_nodes: usize,
    pub copies: usize,
    /// Of these, copies from or to host memory.
    pub host_copies: usize,
}

impl Structure {
    fn of(nodes: &[Node]) -> Structure {
        let mut all = Structure { nodes: nodes.len(), ..Structure::default() };
        for node in nodes {
            match node.kind {
                NodeKind::Kernel => all.kernels += 1,
                NodeKind::Copy => {
                    all.copies += 1;
                    all.host_copies += usize::from(node.places.iter().any(|end| *end != End::Device));
                }
                _ => all.host_nodes += 1,
            }
        }
        all
    }
}

/// Records a turn's graph on a GPU, which launches none of it. Errors: the machine is none; what the driver refuses.
pub fn structure(machine: &Machine) -> Result<Structure, ServedError> {
    let tensor = Tensor { kind: TensorKind::F32, count: 32 };
    let geometry =
        Geometry::new(0, &[tensor], &[tensor]).map_err(|error| ServedError::Refused(error.to_string()))?;
    let setting = Setting {
        geometry: &geometry,
        slots: 1,
        clients: 1,
        arrival: Arrival::Flag,
        place: Place::Gpu,
        inputs: &[],
        outputs: &[],
        wait: Duration::from_millis(1),
        threads: 32,
        copying: [1, 32],
    };
    let served = Served::new(machine, setting)?;
    let model = OneNode(machine.module(&[Unit::new("one_node.cu", NOTHING)])?.function("one_node")?);
    let graph = launch::graph(machine, served.core.told, Again::Relaunch, &model)?;
    Ok(Structure::of(&graph.nodes()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use measure::need;

    #[test]
    fn nodes_are_counted_by_what_they_need() {
        let copy = |places| Node { kind: NodeKind::Copy, places, children: Vec::new() };
        let of = |nodes: &[Node]| Structure::of(nodes);
        let kernel = Node::of(NodeKind::Kernel);
        let four = Structure { nodes: 2, kernels: 2, ..Structure::default() };
        assert_eq!(of(&[kernel.clone(), kernel.clone()]), four);
        let found = of(&[
            kernel,
            Node::of(NodeKind::Host),
            Node::of(NodeKind::WaitEvent),
            copy(vec![End::Device, End::Device]),
            copy(vec![End::Unified, End::Device]),
            copy(vec![End::Device, End::Host]),
        ]);
        let wanted = Structure { nodes: 6, kernels: 1, host_nodes: 2, copies: 3, host_copies: 2 };
        assert_eq!(found, wanted);
    }

    /// M11: the release's graph has about 17 kernels that take times beside the four steps, and copies.
    #[test]
    fn gpu_release_m11_a_turn_is_four_kernels_and_nothing_else() {
        let machine =
            need!(Machine::gpu(None, None).map_err(|error| error.to_string()), gpu, "one CUDA device");
        let wanted = Structure { nodes: 4, kernels: 4, ..Structure::default() };
        assert_eq!(structure(&machine).unwrap(), wanted);
    }
}
