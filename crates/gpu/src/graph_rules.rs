//! Which graphs a GPU may launch by itself, judged from a description, before the driver is asked.
//!
//! Follows `cudaGraphInstantiateWithParams` of CUDA 13.0's headers. Nodes are on one device: only kernels,
//! copies, fills and child graphs of these, at least one of the first three. Copies are only between device
//! memory and pinned, mapped host memory, no arrays. What only the driver sees (a kernel that launches
//! kernels, cooperative launches on a shared GPU, a copy's pages) is left to it, and reported in its words.

#![forbid(unsafe_code)]

use std::fmt;

/// A node's type, as `CUgraphNodeType` numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeKind {
    Kernel,
    Copy,
    Fill,
    /// A function on the CPU.
    Host,
    Child,
    /// Nothing but an order.
    Empty,
    WaitEvent,
    RecordEvent,
    /// Signals a semaphore of another API.
    SignalSemaphore,
    WaitSemaphore,
    /// Allocates memory, as `cudaMallocAsync` during a capture does.
    Allocate,
    Free,
    /// Writes and waits of a stream.
    MemoryOperations,
    Conditional,
    /// A type that a newer driver has.
    Unknown(u32),
}

const KINDS: [(NodeKind, &str); 14] = [
    (NodeKind::Kernel, "a kernel"),
    (NodeKind::Copy, "a copy"),
    (NodeKind::Fill, "a fill"),
    (NodeKind::Host, "a function on the CPU"),
    (NodeKind::Child, "a child graph"),
    (NodeKind::Empty, "an empty node"),
    (NodeKind::WaitEvent, "a wait for an event"),
    (NodeKind::RecordEvent, "a record of an event"),
    (NodeKind::SignalSemaphore, "a signal to another API"),
    (NodeKind::WaitSemaphore, "a wait for another API"),
    (NodeKind::Allocate, "an allocation (cudaMallocAsync during a capture)"),
    (NodeKind::Free, "a freeing of memory (cudaFreeAsync during a capture)"),
    (NodeKind::MemoryOperations, "a write or wait of a stream"),
    (NodeKind::Conditional, "a conditional node"),
];

impl NodeKind {
    pub fn of_number(number: u32) -> NodeKind {
        KINDS.get(number as usize).map_or(NodeKind::Unknown(number), |(kind, _)| *kind)
    }
}

impl fmt::Display for NodeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match KINDS.iter().find(|(kind, _)| kind == self) {
            Some((_, name)) => f.write_str(name),
            None => write!(f, "a node of unknown type ({self:?})"),
        }
    }
}

/// Where one end of a copy lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Memory of a GPU.
    Device,
    /// Host memory, by its address; whether it is pinned and mapped, the driver knows.
    Host,
    /// An address that is one or the other.
    Unified,
    /// A CUDA array.
    Array,
    /// A kind that a newer driver has.
    Unknown(u32),
}

impl Place {
    /// The kind that has this number in `CUmemorytype`.
    pub fn of_number(number: u32) -> Place {
        match number {
            1 => Place::Host,
            2 => Place::Device,
            3 => Place::Array,
            4 => Place::Unified,
            other => Place::Unknown(other),
        }
    }
}

/// A node, as far as the rules look at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub kind: NodeKind,
    /// A copy's ends, source first; empty for others.
    pub places: Vec<Place>,
    /// Nodes of a child graph, or of the body of a WHILE node; empty for others.
    pub children: Vec<Node>,
}

impl Node {
    /// A node without copy or children.
    pub fn of(kind: NodeKind) -> Node {
        Node { kind, places: Vec::new(), children: Vec::new() }
    }
}

/// Why a graph cannot be launched by the device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotLaunchable {
    #[error(
        "node {node} is {kind}: a graph that the GPU launches holds kernels, copies, fills and child graphs only"
    )]
    Kind {
        /// Its number, from 0 in the order in which nodes were made; in a child graph `2.0`.
        node: String,
        kind: NodeKind,
    },
    #[error(
        "node {node} copies {way} {place:?} memory: in a graph that the GPU launches both ends are device memory, or pinned host memory"
    )]
    Place { node: String, way: &'static str, place: Place },
    #[error("the graph holds no kernel, copy or fill ({nodes} nodes): the GPU launches none such")]
    Idle { nodes: usize },
    #[error("node {node} is a child graph more than {MOST_DEEP} deep")]
    Deep { node: String },
}

/// How deep child graphs may lie.
pub const MOST_DEEP: usize = 16;

/// Judges a graph by its nodes.
pub fn check_device_launch(nodes: &[Node]) -> Result<(), NotLaunchable> {
    match check(nodes, "", 0)? {
        0 => Err(NotLaunchable::Idle { nodes: nodes.len() }),
        _ => Ok(()),
    }
}

/// How many nodes do something.
fn check(nodes: &[Node], above: &str, deep: usize) -> Result<usize, NotLaunchable> {
    let mut work = 0;
    for (index, node) in nodes.iter().enumerate() {
        let name = format!("{above}{index}");
        match node.kind {
            NodeKind::Kernel | NodeKind::Fill => work += 1,
            NodeKind::Copy => {
                copy(node, &name)?;
                work += 1;
            }
            NodeKind::Child if deep == MOST_DEEP => return Err(NotLaunchable::Deep { node: name }),
            NodeKind::Child => work += check(&node.children, &format!("{name}."), deep + 1)?,
            kind => return Err(NotLaunchable::Kind { node: name, kind }),
        }
    }
    Ok(work)
}

fn copy(node: &Node, name: &str) -> Result<(), NotLaunchable> {
    for (way, place) in ["from", "to"].into_iter().zip(&node.places) {
        if matches!(place, Place::Array | Place::Unknown(_)) {
            return Err(NotLaunchable::Place { node: name.to_owned(), way, place: *place });
        }
    }
    Ok(())
}

/// What the driver's `CUgraphInstantiateResult` means.
pub fn refusal(result: u32) -> &'static str {
    match result {
        0 => "it gave no reason",
        1 => "it failed for another reason",
        2 => "the structure of the graph is invalid for it",
        3 => "a node does what the GPU may not launch",
        4 => "nodes are of several contexts",
        5 => "a conditional handle is used by no node",
        _ => "for a reason that is newer than this program",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy_of(from: Place, to: Place) -> Node {
        Node { places: vec![from, to], ..Node::of(NodeKind::Copy) }
    }

    fn child(children: Vec<Node>) -> Node {
        Node { children, ..Node::of(NodeKind::Child) }
    }

    #[test]
    fn what_the_rules_allow_passes() {
        use NodeKind::{Fill, Kernel};
        for nodes in [
            vec![Node::of(Kernel)],
            vec![Node::of(Fill)],
            vec![copy_of(Place::Unified, Place::Device)],
            vec![copy_of(Place::Host, Place::Device), Node::of(Kernel), Node::of(Fill)],
            vec![child(vec![Node::of(Kernel)])],
            vec![child(vec![child(vec![Node::of(Fill)]), child(vec![])]), child(vec![])],
        ] {
            assert_eq!(check_device_launch(&nodes), Ok(()), "{nodes:?}");
        }
    }

    #[test]
    fn each_other_type_is_refused_by_name_and_number() {
        // Numbers and names of CUgraphNodeType in cuda.h of 13.0.
        for (number, words) in [
            (3, "a function on the CPU"),
            (5, "an empty node"),
            (6, "a wait for an event"),
            (7, "a record of an event"),
            (8, "a signal"),
            (9, "a wait for another API"),
            (10, "an allocation (cudaMallocAsync"),
            (11, "a freeing"),
            (12, "a write or wait"),
            (13, "a conditional node"),
            (16, "a node of unknown type (Unknown(16))"),
        ] {
            let wrong = Node::of(NodeKind::of_number(number));
            let text =
                check_device_launch(&[Node::of(NodeKind::Kernel), wrong.clone()]).unwrap_err().to_string();
            assert!(text.starts_with(&format!("node 1 is {words}")), "{number}: {text}");
            let text = check_device_launch(&[child(vec![wrong])]).unwrap_err().to_string();
            assert!(text.starts_with(&format!("node 0.0 is {words}")), "{number}: {text}");
        }
        for (number, kind) in
            [(0, NodeKind::Kernel), (1, NodeKind::Copy), (2, NodeKind::Fill), (4, NodeKind::Child)]
        {
            assert_eq!(NodeKind::of_number(number), kind);
        }
    }

    #[test]
    fn copies_of_arrays_idle_graphs_and_endless_depth_are_refused() {
        let mut deep = child(vec![Node::of(NodeKind::Kernel)]);
        for _ in 0..MOST_DEEP {
            deep = child(vec![deep]);
        }
        for (nodes, words) in [
            (vec![copy_of(Place::Array, Place::Device)], "node 0 copies from Array memory"),
            (vec![copy_of(Place::Device, Place::Unknown(9))], "node 0 copies to Unknown(9) memory"),
            (vec![], "no kernel, copy or fill (0 nodes)"),
            (vec![child(vec![])], "no kernel, copy or fill (1 nodes)"),
            (vec![deep], "more than 16 deep"),
        ] {
            let text = check_device_launch(&nodes).unwrap_err().to_string();
            assert!(text.contains(words) && text.lines().count() == 1, "{words:?}: {text}");
        }
    }
}
