//! `ibv_devices` and `ibv_devinfo -v`: discovery, the limits and GIDs that a program sees, and which libmlx5 answered.

use std::process::Command;

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
fn ibv_devinfo_tells_model_and_link_layer() {
    measure::need!(find("ibv_devinfo"), "ibverbs-utils");
    // PCI device ids of the models: `libibverbs/../providers/mlx5/mlx5.c`, `mlx5_hca_table`.
    for (model, device_id) in [("cx5", 0x1017), ("cx6", 0x101b), ("cx6dx", 0x101d), ("cx7", 0x1021)] {
        for layer in Layer::BOTH {
            let fabric = Fabric::new(layer).with_config(&format!("model = \"{model}\"\n"));
            let (output, counters) = fabric.run(&["ibv_devinfo", "-v"]);
            assert_eq!(value(&output, "hca_id"), "mlx5_0");
            assert_eq!(value(&output, "vendor_id"), "0x02c9", "Mellanox's, as a card says");
            assert_eq!(value(&output, "vendor_part_id"), device_id.to_string(), "{model}");
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
