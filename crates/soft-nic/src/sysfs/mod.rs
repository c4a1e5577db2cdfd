//! What sysfs and `/dev` show of the devices, as a virtual tree: the paths that libibverbs, libmlx5,
//! perftest, pyverbs, UCX, NCCL and hwloc read.
//!
//! Left out: counters (see the stats file), `infiniband_mad`, `/sys/bus/pci/devices` listings. Formats: Linux
//! `Documentation/ABI/stable/sysfs-class-infiniband`, `Documentation/ABI/testing/sysfs-bus-pci`.

pub mod tree;

use mlx5_device::model::{DeviceConfig, GidKind, PCI_VENDOR};

use crate::config::{Config, LinkLayer};
use tree::{COMMAND_DEVICE, MANAGER_DEVICE, Node, PortFile, Tree};

/// A PCI domain that no machine has, so that nothing real is hidden.
const PCI_ROOT: &str = "/sys/devices/pci5074:00";
/// Part of every path of the tree that holds no "infiniband".
pub const PCI_MARK: &str = "5074:00";
/// Part of the others but the connection manager's, and of a few foreign ones.
pub const CLASS_MARK: &str = "infiniband";
/// Part of the paths of the connection manager.
pub const MANAGER_MARK: &str = "rdma_cm";
/// Version of the connection manager's commands, `RDMA_USER_CM_ABI_VERSION`.
const MANAGER_ABI: &str = "4";
/// Entries of a port's P_Key table.
pub const PKEY_TABLE_LENGTH: u16 = 1;

/// Entries of a port's GID table, as `query_port` says it.
pub fn gid_table_length(link_layer: LinkLayer) -> u32 {
    if link_layer == LinkLayer::Roce { 16 } else { 8 }
}

/// What the tree needs to know of the machine.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Processors, for `local_cpus`.
    pub processors: usize,
    /// Network interface that has the ports' IP addresses.
    pub interface: String,
    pub interface_index: u32,
}

pub fn build(config: &Config, machine: &Machine) -> Tree {
    let mut tree = Tree::shadowing(&[
        "/sys/class/infiniband",
        "/sys/class/misc/rdma_cm",
        "/dev/infiniband",
        PCI_ROOT,
        "/sys/bus/pci/devices/5074:00",
    ]);
    tree.value("/sys/class/infiniband_verbs/abi_version", "6");
    tree.add_directory("/sys/class/infiniband");
    let ports = DeviceConfig::all(&config.nic());
    for (place, port) in ports.iter().enumerate() {
        if port.port == 1 {
            device(&mut tree, port.index, port, machine);
        }
        let folder = format!("{}/infiniband/mlx5_{}/ports/{}", function(port.index), port.index, port.port);
        self::port(&mut tree, &folder, port, machine);
        tree.insert(format!("{folder}/state"), Node::Port(place as u8, PortFile::State));
        tree.insert(format!("{folder}/phys_state"), Node::Port(place as u8, PortFile::PhysicalState));
    }
    if config.devices > 0 {
        let (major, minor) = MANAGER_DEVICE;
        tree.value("/sys/class/misc/rdma_cm/abi_version", MANAGER_ABI);
        tree.value("/sys/class/misc/rdma_cm/dev", format!("{major}:{minor}"));
        tree.insert("/dev/infiniband/rdma_cm", Node::Manager);
    }
    tree
}

/// Address of a device's PCI function.
fn slot(index: u8) -> String {
    format!("{PCI_MARK}:{index:02x}.0")
}

/// Its folder.
fn function(index: u8) -> String {
    format!("{PCI_ROOT}/{}", slot(index))
}

/// A device, by its first port.
fn device(tree: &mut Tree, index: u8, device: &DeviceConfig, machine: &Machine) {
    let slot = slot(index);
    let pci = function(index);
    let (name, uverbs) = (format!("mlx5_{index}"), format!("uverbs{index}"));
    pci_function(tree, &pci, &slot, device, machine);
    let verbs = format!("{pci}/infiniband_verbs/{uverbs}");
    let (major, minor) = COMMAND_DEVICE;
    tree.value(format!("{verbs}/ibdev"), &name);
    tree.value(format!("{verbs}/abi_version"), "1");
    tree.value(format!("{verbs}/dev"), format!("{major}:{minor}"));
    tree.value(
        format!("{verbs}/uevent"),
        format!("MAJOR={major}\nMINOR={minor}\nDEVNAME=infiniband/{uverbs}\nDEVMODE=0666"),
    );

    let ib = format!("{pci}/infiniband/{name}");
    let identity = device.model.identity();
    for (file, value) in [
        ("node_type", "1: CA".to_owned()),
        ("node_guid", words(&device.guid.to_be_bytes())),
        ("sys_image_guid", words(&device.guid.to_be_bytes())),
        ("fw_ver", identity.firmware.to_owned()),
        ("board_id", identity.board_id.to_owned()),
        ("hca_type", format!("MT{}", identity.pci_device)),
        ("hw_rev", "0".to_owned()),
        ("node_desc", format!("softnic {name}")),
        ("uevent", format!("NAME={name}")),
    ] {
        tree.value(format!("{ib}/{file}"), value);
    }

    let home = format!("../../devices/pci5074:00/{slot}");
    for (link, target) in [
        (format!("/sys/bus/pci/devices/{slot}"), format!("../{home}")),
        (format!("/sys/class/infiniband/{name}"), format!("{home}/infiniband/{name}")),
        (format!("/sys/class/infiniband_verbs/{uverbs}"), format!("{home}/infiniband_verbs/{uverbs}")),
        (format!("{ib}/device"), format!("../../../{slot}")),
        (format!("{ib}/subsystem"), "../../../../../class/infiniband".to_owned()),
        (format!("{verbs}/device"), format!("../../../{slot}")),
        (format!("{verbs}/subsystem"), "../../../../../class/infiniband_verbs".to_owned()),
    ] {
        tree.insert(link, Node::Link(target));
    }
    tree.insert(format!("/dev/infiniband/{uverbs}"), Node::Device(index));
}

/// The PCI function: what a driver match, a NUMA-aware launcher or a topology scan reads.
fn pci_function(tree: &mut Tree, pci: &str, slot: &str, device: &DeviceConfig, machine: &Machine) {
    let id = device.model.identity().pci_device;
    let class = if device.link_layer == LinkLayer::Roce { 0x0200 } else { 0x0207 };
    let modalias = format!(
        "pci:v{PCI_VENDOR:08X}d{id:08X}sv{PCI_VENDOR:08X}sd00000006bc{:02x}sc{:02x}i00",
        class >> 8,
        class & 0xff
    );
    let uevent = format!(
        "DRIVER=mlx5_core\nPCI_CLASS={class:X}00\nPCI_ID={PCI_VENDOR:04X}:{id:04X}\nPCI_SUBSYS_ID={PCI_VENDOR:04X}:0006\n\
         PCI_SLOT_NAME={slot}\nMODALIAS={modalias}"
    );
    for (file, value) in [
        ("vendor", format!("{PCI_VENDOR:#06x}")),
        ("device", format!("{id:#06x}")),
        ("subsystem_vendor", format!("{PCI_VENDOR:#06x}")),
        ("subsystem_device", "0x0006".to_owned()),
        ("class", format!("{class:#06x}00")),
        ("revision", "0x00".to_owned()),
        ("modalias", modalias),
        ("uevent", uevent),
        ("numa_node", "-1".to_owned()),
        ("local_cpus", cpu_mask(machine.processors)),
        ("local_cpulist", format!("0-{}", machine.processors.max(1) - 1)),
        ("current_link_speed", "16.0 GT/s PCIe".to_owned()),
        ("max_link_speed", "16.0 GT/s PCIe".to_owned()),
        ("current_link_width", "16".to_owned()),
        ("max_link_width", "16".to_owned()),
    ] {
        tree.value(format!("{pci}/{file}"), value);
    }
    tree.insert(format!("{pci}/subsystem"), Node::Link("../../../bus/pci".to_owned()));
    // The machine's own interface, whose addresses the ports have; on InfiniBand in place of IPoIB's. A
    // kernel has it here, and a link in `/sys/class/net`.
    let name = &machine.interface;
    tree.insert(format!("{pci}/net/{name}"), Node::Link(format!("/sys/class/net/{name}")));
}

fn port(tree: &mut Tree, port: &str, device: &DeviceConfig, machine: &Machine) {
    let ethernet = device.link_layer == LinkLayer::Roce;
    let sm_lid = u16::from(!ethernet);
    for (file, value) in [
        ("link_layer", if ethernet { "Ethernet" } else { "InfiniBand" }.to_owned()),
        ("rate", rate(device.model.identity().active_speed).to_owned()),
        ("lid", format!("{:#x}", device.lid)),
        ("lid_mask_count", "0".to_owned()),
        ("sm_lid", format!("{sm_lid:#x}")),
        ("sm_sl", "0".to_owned()),
        ("cap_mask", format!("{:#010x}", port_capabilities(device.link_layer))),
        ("pkeys/0", "0xffff".to_owned()),
    ] {
        tree.value(format!("{port}/{file}"), value);
    }
    for index in 0..gid_table_length(device.link_layer) {
        let entry = device.gids.get(index as usize);
        tree.value(format!("{port}/gids/{index}"), words(&entry.map_or([0; 16], |entry| entry.gid)));
        // A kernel answers EINVAL to reads of an empty entry's attributes; here they do not exist.
        if let Some(entry) = entry {
            let kind = if entry.kind == GidKind::RoceV2 { "RoCE v2" } else { "IB/RoCE v1" };
            tree.value(format!("{port}/gid_attrs/types/{index}"), kind);
            if ethernet {
                tree.value(format!("{port}/gid_attrs/ndevs/{index}"), &machine.interface);
            }
        }
    }
}

/// `ib_port_state` of a port, and its physical state (`ib_port_phys_state`), with the kernel's words: without
/// a link an Ethernet port shows Disabled, as mlx5_ib does, an InfiniBand port Polling.
pub fn port_state(link_layer: LinkLayer, down: bool) -> [(u8, &'static str); 2] {
    match (down, link_layer) {
        (false, _) => [(4, "ACTIVE"), (5, "LinkUp")],
        (true, LinkLayer::Roce) => [(1, "DOWN"), (3, "Disabled")],
        (true, LinkLayer::Ib) => [(1, "DOWN"), (2, "Polling")],
    }
}

/// Content of a file that follows its port, as the kernel's `state_show` and `phys_state_show` print it.
pub fn port_file(file: PortFile, link_layer: LinkLayer, down: bool) -> String {
    let (number, word) = port_state(link_layer, down)[file as usize];
    format!("{number}: {word}\n")
}

/// Capability bits of the port, `ib_port_capability_mask_bits`: on InfiniBand what a card shows behind a
/// managed switch less what this NIC lacks, on Ethernet `IB_PORT_CM_SUP` and `IP_BASED_GIDS`.
pub fn port_capabilities(link_layer: LinkLayer) -> u32 {
    if link_layer == LinkLayer::Roce { 1 << 16 | 1 << 26 } else { 1 << 11 | 1 << 14 | 1 << 16 }
}

/// The `rate` line of a 4x link at this `active_speed`.
fn rate(active_speed: u8) -> &'static str {
    match active_speed {
        32 => "100 Gb/sec (4X EDR)",
        128 => "400 Gb/sec (4X NDR)",
        _ => "200 Gb/sec (4X HDR)",
    }
}

/// 16-bit words in hexadecimal, as sysfs prints GUIDs and GIDs.
fn words(bytes: &[u8]) -> String {
    bytes.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect::<Vec<_>>().join(":")
}

/// A mask of the first `processors` in comma-separated 32-bit words, highest first.
fn cpu_mask(processors: usize) -> String {
    let word = |index: usize| match processors.max(1).saturating_sub(index * 32).min(32) {
        32 => u32::MAX,
        left => (1 << left) - 1,
    };
    let count = processors.max(1).div_ceil(32);
    (0..count).rev().map(|index| format!("{:08x}", word(index))).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::tree::Lookup;
    use super::*;

    fn read(tree: &Tree, path: &str) -> String {
        match tree.lookup(path, true) {
            Lookup::Node { node: Node::File(content), .. } => {
                String::from_utf8(content.clone()).unwrap().trim_end().to_owned()
            }
            Lookup::Node { node: Node::Port(0, file), .. } => {
                port_file(*file, LinkLayer::Ib, false).trim_end().to_owned()
            }
            other => format!("{other:?}"),
        }
    }

    fn machine() -> Machine {
        Machine { processors: 2, interface: "lo".into(), interface_index: 1 }
    }

    /// The rows are those of a ConnectX-6 on a running Linux machine; GUIDs and LIDs are ours.
    #[test]
    fn libibverbs_finds_every_value_where_the_kernel_has_it() {
        let tree = build(&Config::default(), &machine());
        let uverbs = "/sys/class/infiniband_verbs/uverbs0";
        let ib = "/sys/class/infiniband/mlx5_0";
        for (path, value) in [
            ("/sys/class/infiniband_verbs/abi_version".to_owned(), "6"),
            (format!("{uverbs}/ibdev"), "mlx5_0"),
            (format!("{uverbs}/dev"), "1:3"),
            (format!("{uverbs}/abi_version"), "1"),
            (format!("{uverbs}/device/infiniband/mlx5_0/node_type"), "1: CA"),
            (format!("{uverbs}/device/infiniband_verbs/uverbs0/abi_version"), "1"),
            (format!("{ib}/node_type"), "1: CA"),
            (format!("{ib}/node_guid"), "0c42:a1ff:fe03:0001"),
            (format!("{ib}/sys_image_guid"), "0c42:a1ff:fe03:0001"),
            (format!("{ib}/fw_ver"), "20.35.1012"),
            (format!("{ib}/hca_type"), "MT4123"),
            (format!("{ib}/device/modalias"), "pci:v000015B3d0000101Bsv000015B3sd00000006bc02sc07i00"),
            (format!("{ib}/device/vendor"), "0x15b3"),
            (format!("{ib}/device/device"), "0x101b"),
            (format!("{ib}/device/class"), "0x020700"),
            (format!("{ib}/device/numa_node"), "-1"),
            (format!("{ib}/device/local_cpus"), "00000003"),
            (format!("{ib}/ports/1/state"), "4: ACTIVE"),
            (format!("{ib}/ports/1/phys_state"), "5: LinkUp"),
            (format!("{ib}/ports/1/link_layer"), "InfiniBand"),
            (format!("{ib}/ports/1/rate"), "200 Gb/sec (4X HDR)"),
            (format!("{ib}/ports/1/lid"), "0x1"),
            (format!("{ib}/ports/1/pkeys/0"), "0xffff"),
            (format!("{ib}/ports/1/gids/0"), "fe80:0000:0000:0000:0c42:a1ff:fe03:0001"),
            (format!("{ib}/ports/1/gids/7"), "0000:0000:0000:0000:0000:0000:0000:0000"),
            (format!("{ib}/ports/1/gid_attrs/types/0"), "IB/RoCE v1"),
            ("/sys/bus/pci/devices/5074:00:00.0/device".to_owned(), "0x101b"),
            ("/sys/class/misc/rdma_cm/abi_version".to_owned(), "4"),
            ("/sys/class/misc/rdma_cm/dev".to_owned(), "10:121"),
        ] {
            assert_eq!(read(&tree, &path), value, "{path}");
        }
    }

    /// Words of `drivers/infiniband/core/sysfs.c`.
    #[test]
    fn a_port_says_what_it_is_in_the_kernels_words() {
        for (layer, down, state, physical) in [
            (LinkLayer::Ib, false, "4: ACTIVE\n", "5: LinkUp\n"),
            (LinkLayer::Roce, false, "4: ACTIVE\n", "5: LinkUp\n"),
            (LinkLayer::Ib, true, "1: DOWN\n", "2: Polling\n"),
            (LinkLayer::Roce, true, "1: DOWN\n", "3: Disabled\n"),
        ] {
            let files = [PortFile::State, PortFile::PhysicalState].map(|file| port_file(file, layer, down));
            assert_eq!(files, [state, physical], "{layer:?}, down: {down}");
            let numbers = port_state(layer, down);
            let said = |text: &str| text.split(':').next().and_then(|number| number.parse().ok());
            assert_eq!([said(state), said(physical)], numbers.map(|(number, _)| Some(number)));
        }
    }

    #[test]
    fn a_roce_port_has_interfaces_and_types_for_its_gids() {
        let config = Config { link_layer: LinkLayer::Roce, devices: 2, ..Config::default() };
        let tree = build(&config, &machine());
        let port = "/sys/class/infiniband/mlx5_1/ports/1";
        assert_eq!(read(&tree, &format!("{port}/link_layer")), "Ethernet");
        assert_eq!(read(&tree, &format!("{port}/gid_attrs/types/0")), "IB/RoCE v1");
        assert_eq!(read(&tree, &format!("{port}/gid_attrs/types/3")), "RoCE v2");
        assert_eq!(read(&tree, &format!("{port}/gid_attrs/ndevs/3")), "lo");
        assert_eq!(read(&tree, &format!("{port}/gids/3")), "0000:0000:0000:0000:0000:ffff:7f00:0002");
        assert_eq!(tree.lookup(&format!("{port}/gid_attrs/types/4"), true), Lookup::Missing(libc::ENOENT));
    }

    #[test]
    fn a_device_has_the_network_interface_of_its_addresses() {
        for link_layer in [LinkLayer::Ib, LinkLayer::Roce] {
            let tree = build(&Config { link_layer, devices: 2, ..Config::default() }, &machine());
            let net = "/sys/class/infiniband/mlx5_1/device/net";
            assert_eq!(tree.lookup(&format!("{net}/lo"), true), Lookup::Outside("/sys/class/net/lo".into()));
            assert_eq!(tree.children("/sys/devices/pci5074:00/5074:00:01.0/net").count(), 1);
        }
    }

    #[test]
    fn there_are_as_many_devices_as_configured() {
        for devices in [1, 8] {
            let tree = build(&Config { devices, ..Config::default() }, &machine());
            assert_eq!(tree.children("/sys/class/infiniband").count(), usize::from(devices));
            assert_eq!(tree.children("/dev/infiniband").count(), usize::from(devices) + 1);
        }
    }

    #[test]
    fn every_path_of_the_tree_holds_a_mark_that_hooks_look_for() {
        let tree =
            build(&Config { devices: 2, link_layer: LinkLayer::Roce, ..Config::default() }, &machine());
        for path in tree.paths() {
            let marks = [PCI_MARK, CLASS_MARK, MANAGER_MARK];
            assert!(marks.into_iter().any(|mark| path.contains(mark)), "{path}");
        }
    }

    #[test]
    fn cpu_masks_are_comma_separated_words() {
        for (processors, mask) in
            [(0, "00000001"), (1, "00000001"), (2, "00000003"), (32, "ffffffff"), (40, "000000ff,ffffffff")]
        {
            assert_eq!(cpu_mask(processors), mask, "{processors}");
        }
    }
}
