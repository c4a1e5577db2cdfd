//! `ibv_devices` and `ibv_devinfo -v`: discovery, limits and GIDs for programs, and the libmlx5 used.

use std::process::Command;
use std::time::Duration;

use crate::counters::Messages;
use crate::fabric::{Fabric, Layer, distribution_libmlx5};
use crate::program::find;

/// `name: value` of one line of `ibv_devinfo`.
fn value<'a>(output: &'a str, name: &str) -> &'a str {
    let lines = output.lines().filter_map(|line| line.trim().split_once(':'));
    let mut values = lines.filter(|(key, _)| *key == name).map(|(_, value)| value.trim());
    values.next().unwrap_or_else(|| panic!("no `{name}:` in\n{output}"))
}

#[test]
fn ibv_devices_lists_as_many_devices_as_asked_for() {
    measure::need!(find("ibv_devices"), "ibverbs-utils");
    for devices in [1, 2, 8] {
        let fabric = Fabric::new(Layer::InfiniBand).with_options(&["--devices", &devices.to_string()]);
        let mut started = fabric.start(&["ibv_devices"]);
        let output = started.program.succeed();
        // Two lines of heading, then a name and a GUID each.
        let listed: Vec<(&str, &str)> = output
            .lines()
            .skip(2)
            .filter_map(|line| Some((line.split_whitespace().next()?, line.split_whitespace().nth(1)?)))
            .collect();
        let names: Vec<&str> = listed.iter().map(|(name, _)| *name).collect();
        let expected: Vec<String> = (0..devices).map(|n| format!("mlx5_{n}")).collect();
        assert_eq!(names, expected, "{output}");
        let mut guids: Vec<&str> = listed.iter().map(|(_, guid)| *guid).collect();
        guids.sort_unstable();
        guids.dedup();
        assert_eq!(guids.len(), devices, "each device has a GUID of its own:\n{output}");
    }
}

#[test]
fn each_port_of_a_device_has_an_address_of_its_own_and_a_third_is_not_there() {
    measure::need!(find("ibv_devinfo"), "ibverbs-utils");
    for layer in Layer::BOTH {
        let fabric = Fabric::new(layer).with_options(&["--ports", "2", "--devices", "2"]);
        let (output, _) = fabric.run(&["ibv_devinfo", "-v"]);
        let of = |name: &str| -> Vec<&str> {
            let lines = output.lines().filter_map(|line| line.trim().split_once(':'));
            lines.filter(|(key, _)| *key == name).map(|(_, value)| value.trim()).collect()
        };
        assert_eq!(of("phys_port_cnt"), ["2", "2"], "{output}");
        assert_eq!(of("port"), ["1", "2", "1", "2"], "{output}");
        assert_eq!(of("state"), ["PORT_ACTIVE (4)"; 4], "{output}");
        let lids = if layer == Layer::Roce { ["0"; 4] } else { ["1", "2", "3", "4"] };
        assert_eq!(of("port_lid"), lids, "{output}");
        let mut gids: Vec<&str> = output.lines().filter(|line| line.contains("GID[")).collect();
        let listed = gids.len();
        assert_eq!(listed, if layer == Layer::Roce { 16 } else { 4 }, "{output}");
        gids.iter_mut().for_each(|line| *line = line.split_once(':').map_or("", |(_, gid)| gid.trim()));
        gids.sort_unstable();
        gids.dedup();
        // On Ethernet version 1 and version 2 show the same.
        assert!(gids.len() >= if layer == Layer::Roce { 8 } else { 4 }, "{output}");
        let mut refused = fabric.start(&["ibv_devinfo", "-i", "3"]);
        let status = refused.program.wait(Duration::from_secs(60)).expect("an end");
        assert!(!status.success(), "port 3");
    }
}

/// What every model shows as its limits; 0 stands for what this NIC has not.
const LIMITS: [(&str, &str); 22] = [
    ("max_mr_size", "0xffffffffffffffff"),
    ("max_qp", "16320"),
    ("max_qp_wr", "32768"),
    ("max_sge", "30"),
    ("max_sge_rd", "30"),
    ("max_cq", "16777216"),
    ("max_cqe", "4194303"),
    ("max_mr", "16777200"),
    ("max_qp_rd_atom", "16"),
    ("max_qp_init_rd_atom", "16"),
    ("max_res_rd_atom", "261120"),
    ("max_ah", "2147483647"),
    ("max_pkeys", "1"),
    ("max_mw", "16777200"),
    ("max_srq", "8388608"),
    ("max_mcast_grp", "0"),
    ("max_fmr", "0"),
    ("max_ee", "0"),
    ("phys_port_cnt", "1"),
    ("max_mtu", "4096 (5)"),
    ("max_msg_sz", "0x40000000"),
    ("active_width", "4X (2)"),
];

#[test]
fn ibv_devinfo_tells_model_and_link_layer() {
    measure::need!(find("ibv_devinfo"), "ibverbs-utils");
    let installed = measure::need!(distribution_libmlx5(), "ibverbs-providers");
    // PCI device ids: `mlx5_hca_table` in rdma-core's `providers/mlx5/mlx5.c`. Speeds (IBTA): EDR, HDR, NDR.
    for (model, device_id, firmware, board, speed, max_pd) in [
        ("cx5", 0x1017, "16.35.1012", "MT_0000000008", "25.0 Gbps (32)", "16777216"),
        ("cx6", 0x101b, "20.35.1012", "MT_0000000223", "50.0 Gbps (64)", "8388608"),
        ("cx6dx", 0x101d, "22.35.1012", "MT_0000000359", "50.0 Gbps (64)", "8388608"),
        ("cx7", 0x1021, "28.35.1012", "MT_0000000838", "100.0 Gbps (128)", "8388608"),
    ] {
        for layer in Layer::BOTH {
            let fabric = Fabric::new(layer).with_config(&format!("model = \"{model}\"\n"));
            let (output, counters) = fabric.run(&["ibv_devinfo", "-v"]);
            assert_eq!(value(&output, "hca_id"), "mlx5_0");
            assert_eq!(value(&output, "vendor_id"), "0x02c9", "Mellanox's, as a card says");
            assert_eq!(value(&output, "vendor_part_id"), device_id.to_string(), "{model}");
            for (name, shown) in
                [("fw_ver", firmware), ("board_id", board), ("active_speed", speed), ("max_pd", max_pd)]
            {
                assert_eq!(value(&output, name), shown, "{model}: {name}");
            }
            // The same for all; that each is enforced is in mlx5-device's `tests/it/limits.rs`.
            for (name, shown) in LIMITS {
                assert_eq!(value(&output, name), shown, "{model}: {name}");
            }
            assert_eq!(counters.libmlx5(), installed, "{model}");
            assert_eq!(value(&output, "state"), "PORT_ACTIVE (4)");
            assert_eq!(value(&output, "link_layer"), layer.printed());
            assert_eq!(value(&output, "active_mtu"), "4096 (5)");
            let roce_v2 = output.lines().any(|line| line.contains("GID[") && line.contains("RoCE v2"));
            assert_eq!(roce_v2, layer == Layer::Roce, "GIDs of {layer:?} in\n{output}");
            let lid: u32 = value(&output, "port_lid").parse().unwrap();
            assert_eq!(lid != 0, layer == Layer::InfiniBand, "LID {lid} on {layer:?}");
            assert_eq!(counters.posted(), Messages::new(), "a query sends nothing");
        }
    }
}

#[test]
fn a_smaller_mtu_is_announced() {
    measure::need!(find("ibv_devinfo"), "ibverbs-utils");
    let fabric = Fabric::new(Layer::Roce).with_config("mtu = 1024\n");
    let (output, _) = fabric.run(&["ibv_devinfo"]);
    assert_eq!(value(&output, "active_mtu"), "1024 (3)");
}

#[test]
fn the_distributions_libmlx5_answers_unmodified() {
    measure::need!(find("ibv_devinfo"), "ibverbs-utils");
    let installed = measure::need!(distribution_libmlx5(), "ibverbs-providers");
    let (_, counters) = Fabric::new(Layer::InfiniBand).run(&["ibv_devinfo"]);
    assert_eq!(counters.libmlx5(), installed);
    // dpkg compares the files of a package with the checksums it came with; it prints what differs.
    let verified = Command::new("dpkg").args(["--verify", "ibverbs-providers", "libibverbs1"]).output();
    let verified = measure::need!(verified, "dpkg");
    let differing = String::from_utf8_lossy(&verified.stdout);
    assert!(
        !differing.contains("libmlx5") && !differing.contains("libibverbs"),
        "changed files: {differing}"
    );
}
