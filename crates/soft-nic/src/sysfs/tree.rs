//! A virtual file tree: absolute path → directory, file, symbolic link or device, resolved as by a kernel.
//!
//! Pure: no system call. What lies outside the tree is the kernel's; what lies under a shadowed prefix and is
//! not in the tree does not exist, even if the machine has it.

use std::collections::{BTreeMap, btree_map};
use std::ops::Bound;

/// Links followed before a path is a loop, as in Linux.
const MAX_LINKS: usize = 40;
/// All nodes carry one time: libibverbs takes a device directory's for the identity of the device.
const TIME: i64 = 1_700_000_000;

/// What a path names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    /// Its number, which no other directory has.
    Directory(u32),
    /// Read-only file.
    File(Vec<u8>),
    /// Read-only file about the port at this place among all ports, which may go down: made at each look.
    Port(u8, PortFile),
    Link(String),
    /// `/dev/infiniband/uverbsN` of this device index.
    Device(u8),
    /// `/dev/infiniband/rdma_cm`.
    Manager,
}

/// Files that follow a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortFile {
    State,
    /// `phys_state`.
    PhysicalState,
}

/// What `stat` says of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    pub mode: u32,
    /// `st_ino`, never 0.
    pub inode: u64,
    pub size: u64,
    /// `st_rdev` as major and minor.
    pub device: (u32, u32),
    /// All three times, seconds.
    pub time: i64,
}

/// Where a path leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lookup<'t> {
    Node {
        /// Its own path, links resolved.
        path: String,
        node: &'t Node,
    },
    /// Nowhere: this errno.
    Missing(i32),
    /// Through the tree out of it: the real path to go on with.
    Outside(String),
    /// Never into the tree.
    Foreign,
}

#[derive(Debug, Default)]
pub struct Tree {
    nodes: BTreeMap<String, Node>,
    /// Paths of the directories, by their numbers.
    directories: Vec<String>,
    shadowed: &'static [&'static str],
}

impl Tree {
    /// A tree without nodes; paths that start with one of these prefixes (also mid-name) belong to it.
    pub fn shadowing(shadowed: &'static [&'static str]) -> Tree {
        Tree { shadowed, ..Tree::default() }
    }

    /// Adds a directory, unless it is there.
    pub fn add_directory(&mut self, path: &str) {
        if let btree_map::Entry::Vacant(entry) = self.nodes.entry(path.to_owned()) {
            entry.insert(Node::Directory(self.directories.len() as u32));
            self.directories.push(path.to_owned());
        }
    }

    /// Adds a node and the directories above it, down from the shadowed prefix that it lies under.
    pub fn insert(&mut self, path: impl Into<String>, node: Node) {
        let path = path.into();
        let mut above = path.as_str();
        while let Some((parent, _)) = above.rsplit_once('/') {
            if !self.is_shadowed(parent) {
                break;
            }
            self.add_directory(parent);
            above = parent;
        }
        self.nodes.insert(path, node);
    }

    /// A file whose content is `text` and a newline, as sysfs shows values.
    pub fn value(&mut self, path: impl Into<String>, text: impl AsRef<str>) {
        self.insert(path, Node::File(format!("{}\n", text.as_ref()).into_bytes()));
    }

    /// Whether the machine's own file of this path is hidden.
    pub fn is_shadowed(&self, path: &str) -> bool {
        self.shadowed.iter().any(|prefix| path.starts_with(prefix))
    }

    #[cfg(test)]
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.nodes.keys().map(String::as_str)
    }

    /// The path of the directory with this number.
    pub fn directory(&self, number: u32) -> Option<&str> {
        self.directories.get(number as usize).map(String::as_str)
    }

    /// Resolves an absolute path; `follow`: also when its last name is a link.
    pub fn lookup(&self, path: &str, follow: bool) -> Lookup<'_> {
        let mut names: Vec<String> = path.split('/').rev().map(str::to_owned).collect();
        let must_be_directory = path.ends_with('/') || path.ends_with("/.") || path.ends_with("/..");
        let (mut at, mut links, mut entered) = (String::new(), 0, false);
        while let Some(name) = names.pop() {
            match (name.as_str(), self.nodes.get(&at)) {
                ("", _) => continue,
                (_, Some(Node::File(_) | Node::Port(..) | Node::Device(_) | Node::Manager)) => {
                    return Lookup::Missing(libc::ENOTDIR);
                }
                (".", _) => continue,
                ("..", _) => at.truncate(at.rfind('/').unwrap_or(0)),
                (name, _) => at = format!("{at}/{name}"),
            }
            let node = self.nodes.get(&at);
            entered |= node.is_some() || self.is_shadowed(&at);
            let last = names.iter().all(|name| name.is_empty());
            if let Some(Node::Link(target)) = node
                && (follow || !last || must_be_directory)
            {
                links += 1;
                if links > MAX_LINKS {
                    return Lookup::Missing(libc::ELOOP);
                }
                names.extend(target.split('/').rev().map(str::to_owned));
                let parent = if target.starts_with('/') { 0 } else { at.rfind('/').unwrap_or(0) };
                at.truncate(parent);
            }
        }
        match self.nodes.get(&at) {
            Some(node) if must_be_directory && !matches!(node, Node::Directory(_)) => {
                Lookup::Missing(libc::ENOTDIR)
            }
            Some(node) => Lookup::Node { path: at, node },
            None if self.is_shadowed(&at) => Lookup::Missing(libc::ENOENT),
            None if entered => Lookup::Outside(if at.is_empty() { "/".to_owned() } else { at }),
            None => Lookup::Foreign,
        }
    }

    /// Names in a directory with their nodes, in order, without `.` and `..`.
    pub fn children<'t>(&'t self, path: &str) -> impl Iterator<Item = (&'t str, &'t Node)> + use<'t> {
        let prefix = format!("{path}/");
        let from = Bound::Excluded(prefix.clone());
        self.nodes
            .range((from, Bound::Unbounded))
            .map_while(move |(path, node)| Some((path.strip_prefix(prefix.as_str())?, node)))
            .filter(|(name, _)| !name.contains('/'))
    }

    /// What `stat` says of a node at a resolved path.
    pub fn attributes(path: &str, node: &Node) -> Attributes {
        let (mode, size, device) = match node {
            Node::Directory(_) => (libc::S_IFDIR | 0o755, 0, (0, 0)),
            Node::File(content) => (libc::S_IFREG | 0o444, content.len().max(4096) as u64, (0, 0)),
            Node::Port(..) => (libc::S_IFREG | 0o444, 4096, (0, 0)),
            Node::Link(target) => (libc::S_IFLNK | 0o777, target.len() as u64, (0, 0)),
            Node::Device(_) => (libc::S_IFCHR | 0o666, 0, COMMAND_DEVICE),
            Node::Manager => (libc::S_IFCHR | 0o666, 0, MANAGER_DEVICE),
        };
        Attributes { mode, inode: inode(path), size, device, time: TIME }
    }
}

/// Device number of every uverbs node: `/dev/null`'s, which a descriptor opened for its path alone really is.
pub const COMMAND_DEVICE: (u32, u32) = (1, 3);

/// Device number of the connection manager's node: a miscellaneous device. The program gets a pipe, so the
/// interposer answers `fstat` of it.
pub const MANAGER_DEVICE: (u32, u32) = (10, 121);

/// FNV-1a of the path: stable across processes, and never 0.
fn inode(path: &str) -> u64 {
    let hash = path.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash >> 16 | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Tree {
        let mut tree = Tree::shadowing(&["/sys/class/infiniband", "/sys/devices/pci9", "/dev/infiniband"]);
        tree.value("/sys/devices/pci9/9:0/numa_node", "-1");
        tree.insert("/sys/devices/pci9/9:0/subsystem", Node::Link("../../../bus/pci".into()));
        tree.value("/sys/devices/pci9/9:0/infiniband/mlx5_0/node_type", "1: CA");
        tree.insert("/sys/devices/pci9/9:0/infiniband/mlx5_0/device", Node::Link("../../../9:0".into()));
        tree.insert(
            "/sys/class/infiniband/mlx5_0",
            Node::Link("../../devices/pci9/9:0/infiniband/mlx5_0".into()),
        );
        tree.insert("/sys/class/infiniband/loop", Node::Link("loop".into()));
        tree.insert("/dev/infiniband/uverbs0", Node::Device(0));
        tree
    }

    #[test]
    fn paths_resolve_as_in_a_kernel() {
        let tree = tree();
        for (path, follow, expected) in [
            ("/sys/class/infiniband", true, "node /sys/class/infiniband"),
            ("/sys//class/./infiniband/", true, "node /sys/class/infiniband"),
            ("/sys/class/infiniband/mlx5_0", true, "node /sys/devices/pci9/9:0/infiniband/mlx5_0"),
            ("/sys/class/infiniband/mlx5_0", false, "node /sys/class/infiniband/mlx5_0"),
            ("/sys/class/infiniband/mlx5_0/", false, "node /sys/devices/pci9/9:0/infiniband/mlx5_0"),
            ("/sys/class/infiniband/mlx5_0/device/numa_node", true, "node /sys/devices/pci9/9:0/numa_node"),
            ("/sys/class/infiniband/mlx5_0/device", true, "node /sys/devices/pci9/9:0"),
            (
                "/sys/class/net/../infiniband/mlx5_0/node_type",
                true,
                "node /sys/devices/pci9/9:0/infiniband/mlx5_0/node_type",
            ),
            ("/sys/class/infiniband/mlx5_0/node_type/x", true, "errno 20"),
            ("/sys/class/infiniband/mlx5_0/node_type/", true, "errno 20"),
            ("/sys/class/infiniband/mlx5_1", true, "errno 2"),
            ("/sys/class/infiniband_mad/abi_version", true, "errno 2"),
            ("/sys/class/infiniband/loop", true, "errno 40"),
            ("/sys/class/infiniband/loop", false, "node /sys/class/infiniband/loop"),
            ("/dev/infiniband/rdma_cm", true, "errno 2"),
            ("/dev/infiniband/uverbs0", true, "node /dev/infiniband/uverbs0"),
            ("/sys/class/infiniband/mlx5_0/device/subsystem/devices", true, "outside /sys/bus/pci/devices"),
            ("/sys/class/infiniband/../net", true, "outside /sys/class/net"),
            ("/sys/class/infiniband/../../..", true, "outside /"),
            ("/usr/lib/infiniband/x", true, "foreign"),
            ("/sys/devices/pci0", true, "foreign"),
        ] {
            let found = match tree.lookup(path, follow) {
                Lookup::Node { path, .. } => format!("node {path}"),
                Lookup::Missing(errno) => format!("errno {errno}"),
                Lookup::Outside(path) => format!("outside {path}"),
                Lookup::Foreign => "foreign".to_owned(),
            };
            assert_eq!(found, expected, "{path}");
        }
    }

    #[test]
    fn a_directory_lists_its_own_names_only() {
        let tree = tree();
        let names = |path: &str| tree.children(path).map(|(name, _)| name.to_owned()).collect::<Vec<_>>();
        assert_eq!(names("/sys/class/infiniband"), ["loop", "mlx5_0"]);
        assert_eq!(names("/sys/devices/pci9/9:0"), ["infiniband", "numa_node", "subsystem"]);
        assert_eq!(names("/dev/infiniband"), ["uverbs0"]);
    }

    #[test]
    fn a_directory_is_found_by_its_number() {
        let tree = tree();
        let numbered = tree.nodes.iter().filter_map(|(path, node)| match node {
            Node::Directory(number) => Some((path.as_str(), *number)),
            _ => None,
        });
        let numbered: Vec<_> = numbered.collect();
        assert!(numbered.len() > 3, "{numbered:?}");
        for (path, number) in numbered {
            assert_eq!(tree.directory(number), Some(path));
        }
        assert_eq!(tree.directory(u32::MAX), None);
    }

    #[test]
    fn stat_shows_a_char_device_where_the_node_is() {
        let node = Node::Device(0);
        let attributes = Tree::attributes("/dev/infiniband/uverbs0", &node);
        assert_eq!((attributes.mode & libc::S_IFMT, attributes.device), (libc::S_IFCHR, (1, 3)));
        assert_ne!(attributes.inode, Tree::attributes("/dev/infiniband/uverbs1", &Node::Device(1)).inode);
    }
}
