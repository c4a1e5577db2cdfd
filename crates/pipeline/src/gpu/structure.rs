//! What a GPU's turn is made of: the graph's nodes, of a pipeline that serves or with one kernel as model.

use std::time::Duration;

use gpu::graph_rules::{Node, NodeKind, Place as End};
use gpu::{Arguments, Function, Recorded, Shape, Stream, Unit};
use rdma_shim::kernel::{Machine, Place};
use slots::{Geometry, Tensor, TensorKind};

use super::runs::{Runs, Threaded};
use super::{Arrival, Repeat, Served, ServedError, Setting, launch};

/// Stands for a model.
const NOTHING: &str = "extern \"C\" __global__ void one_node() {}";

struct OneNode(Function);

impl OneNode {
    fn new(machine: &Machine) -> Result<OneNode, ServedError> {
        Ok(OneNode(machine.module(&[Unit::new("one_node.cu", NOTHING)])?.function("one_node")?))
    }
}

// SAFETY: the kernel touches no memory.
unsafe impl Recorded for OneNode {
    fn record(&self, stream: &Stream) -> gpu::Result<()> {
        let shape = Shape { grid: [1; 3], block: [32, 1, 1], shared_bytes: 0 };
        // SAFETY: as above.
        unsafe { stream.launch(&self.0, shape, &Arguments::new()) }
    }
}

/// How many nodes of each kind the graph of a turn has, those of its child graphs included.
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
                NodeKind::Fill => {}
                // A WHILE node is the GPU's own, once its body is known.
                NodeKind::Child | NodeKind::Conditional if !node.children.is_empty() => {
                    let Structure { nodes, kernels, host_nodes, copies, host_copies } =
                        Structure::of(&node.children);
                    all.nodes += nodes;
                    all.kernels += kernels;
                    all.host_nodes += host_nodes;
                    all.copies += copies;
                    all.host_copies += host_copies;
                }
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

impl Served {
    /// The recorded graph that has the turns of a pipeline on a GPU; of two, one. `None`: it is the twin's,
    /// one kernel that stays, or has no model yet. Error: the driver's.
    pub fn structure(&self) -> Result<Option<Structure>, ServedError> {
        Ok(match &self.runs {
            Runs::Graph { graph, .. } => Some(Structure::of(&graph.nodes()?)),
            Runs::Thread { of: Threaded::Ahead(ahead), .. } => {
                ahead.nodes()?.map(|nodes| Structure::of(&nodes))
            }
            Runs::Not | Runs::Thread { .. } => None,
        })
    }
}

/// Records a turn's graph on a GPU, and launches none of it. Errors: the machine is no GPU; the driver's.
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
    let graph = launch::graph(machine, served.core.told, Repeat::Relaunch, &OneNode::new(machine)?)?;
    Ok(Structure::of(&graph.nodes()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::cost::Waiting;
    use crate::gpu::tests::test_pipeline::geometry;
    use measure::need;

    #[test]
    fn nodes_are_counted_by_what_they_need() {
        let copy = |places| Node { kind: NodeKind::Copy, places, children: Vec::new() };
        let of = |nodes: &[Node]| Structure::of(nodes);
        let kernel = Node::of(NodeKind::Kernel);
        let parent = |kind, children| Node { children, ..Node::of(kind) };
        let four = Structure { nodes: 2, kernels: 2, ..Structure::default() };
        assert_eq!(of(&[kernel.clone(), kernel.clone()]), four);
        let found = of(&[
            kernel.clone(),
            Node::of(NodeKind::Host),
            Node::of(NodeKind::WaitEvent),
            copy(vec![End::Device, End::Device]),
            copy(vec![End::Unified, End::Device]),
            copy(vec![End::Device, End::Host]),
        ]);
        let wanted = Structure { nodes: 6, kernels: 1, host_nodes: 2, copies: 3, host_copies: 2 };
        assert_eq!(found, wanted);
        let inner = vec![kernel.clone(), Node::of(NodeKind::Fill), copy(vec![End::Host, End::Device])];
        let found = of(&[parent(NodeKind::Conditional, vec![parent(NodeKind::Child, inner)])]);
        let wanted = Structure { nodes: 5, kernels: 1, copies: 1, host_copies: 1, ..Structure::default() };
        assert_eq!(found, wanted, "what lies in a loop is counted");
        // A loop whose body is not known may hold anything.
        assert_eq!(of(&[Node::of(NodeKind::Conditional)]).host_nodes, 1);
    }

    #[test]
    fn gpu_the_body_of_a_while_node_is_counted() {
        let machine =
            need!(Machine::gpu(None, None).map_err(|error| error.to_string()), gpu, "one CUDA device");
        let mut waiting = Waiting::new(&machine, geometry(), 2, 64).unwrap();
        assert_eq!(waiting.served.structure().unwrap(), None);
        waiting
            .served
            .prepare_graph(Repeat::While, Box::new(OneNode::new(&machine).unwrap()))
            .and_then(|()| waiting.served.start())
            .unwrap();
        let wanted = Structure { nodes: 5, kernels: 4, ..Structure::default() };
        assert_eq!(waiting.served.structure().unwrap(), Some(wanted));
        waiting.until(0).unwrap();
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
