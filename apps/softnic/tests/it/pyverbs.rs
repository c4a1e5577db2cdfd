//! The verbs life cycle and memory windows in pyverbs, which loads libibverbs late and privately (`dlopen`).

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use measure::Loopback;
use serde_json::Value;

use crate::counters::Messages;
use crate::fabric::{Fabric, Layer, distribution_libmlx5, scratch};
use crate::program::{DEADLINE, find};

/// The interpreter that the distribution's pyverbs is built for; others on `PATH` do not find it.
const PYTHON: &str = "/usr/bin/python3";

fn pyverbs() -> Result<(), String> {
    let tried = Command::new(PYTHON).args(["-c", "import pyverbs.device"]).output();
    let tried = tried.map_err(|error| format!("{PYTHON}: {error}"))?;
    let errors = String::from_utf8_lossy(&tried.stderr);
    tried
        .status
        .success()
        .then_some(())
        .ok_or_else(|| errors.lines().last().unwrap_or("no reason given").to_owned())
}

#[test]
fn the_life_cycle_of_verbs_holds() {
    measure::need!(pyverbs(), "python3-pyverbs");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/life_cycle.py");
    let script = script.display().to_string();
    for layer in Layer::BOTH {
        let fabric = Fabric::new(layer);
        let gid_index = match layer {
            Layer::InfiniBand => 0,
            Layer::Roce => fabric.gid_index().expect("a RoCE v2 GID"),
        };
        let (output, counters) = fabric.run(&[PYTHON, "-B", &script, &gid_index.to_string()]);
        let posted: Value = serde_json::from_str(output.lines().last().unwrap()).unwrap();
        let mut posted: Messages = posted
            .as_object()
            .unwrap()
            .iter()
            .map(|(kind, count)| (kind.clone(), count.as_u64().unwrap()))
            .collect();
        // Of the requests posted, one WRITE was refused for its key: sent, but not executed.
        let refused = posted.remove("refused").unwrap();
        assert_eq!(refused, 1);
        assert_eq!(counters.completed(), posted, "{layer:?}");
        assert_eq!(counters.executed(), posted.values().sum::<u64>(), "{layer:?}");
        *posted.get_mut("write").unwrap() += refused;
        assert_eq!(counters.posted(), posted, "{layer:?}");
        assert_eq!(counters.value("error_remote_access"), refused, "the refusal is counted");
        assert_eq!(Ok(counters.libmlx5().to_owned()), distribution_libmlx5(), "{layer:?}");
    }
}

#[test]
fn memory_windows_open_and_close_in_every_way() {
    measure::need!(pyverbs(), "python3-pyverbs");
    let script =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/windows.py").display().to_string();
    for layer in Layer::BOTH {
        let fabric = Fabric::new(layer);
        let gid_index = match layer {
            Layer::InfiniBand => 0,
            Layer::Roce => fabric.gid_index().expect("a RoCE v2 GID"),
        };
        let (output, counters) = fabric.run(&[PYTHON, "-B", &script, &gid_index.to_string()]);
        let asked: Value = serde_json::from_str(output.lines().last().unwrap()).unwrap();
        let asked = |kind: &str| asked[kind].as_u64().unwrap();
        assert_eq!(counters.value("posted_umr"), asked("umr"), "{layer:?}");
        assert_eq!(counters.value("completed_umr"), asked("umr"), "{layer:?}");
        assert_eq!(counters.value("posted_write"), asked("write"), "{layer:?}");
        assert_eq!(counters.value("completed_write"), asked("write") - asked("refused"), "{layer:?}");
        assert_eq!(counters.value("error_remote_access"), asked("refused"), "{layer:?}");
        let closed = (counters.value("completed_send_inval"), counters.value("windows_invalidated"));
        assert_eq!(closed, (asked("send_inval"), asked("send_inval")), "{layer:?}");
        assert_eq!(Ok(counters.libmlx5().to_owned()), distribution_libmlx5(), "{layer:?}");
    }
}

/// Folder of the tests that python3-pyverbs brings, some of them packed.
const OWN_TESTS: &str = "/usr/share/doc/rdma-core/tests";

/// Unpacks the tests of rdma-core 44 into a folder of the test, and returns the program that runs them.
fn own_tests() -> Result<String, String> {
    const UNPACK: &str = "import gzip, os, sys
for name in os.listdir(sys.argv[1]):
    data = open(os.path.join(sys.argv[1], name), 'rb').read()
    if name.endswith('.gz'):
        name, data = name[:-3], gzip.decompress(data)
    open(os.path.join(sys.argv[2], name), 'wb').write(data)";
    pyverbs()?;
    let libmlx5 = distribution_libmlx5()?;
    if !libmlx5.ends_with("1.24.44.0") {
        return Err(format!("the counts are those of rdma-core 44, not of {libmlx5}"));
    }
    let folder = scratch("pyverbs-tests").display().to_string();
    let unpacked = Command::new(PYTHON).args(["-c", UNPACK, OWN_TESTS, &folder]).output();
    let unpacked = unpacked.map_err(|error| format!("{PYTHON}: {error}"))?;
    if !unpacked.status.success() {
        return Err(format!("{OWN_TESTS}: {}", String::from_utf8_lossy(&unpacked.stderr)));
    }
    Ok(format!("{folder}/run_tests.py"))
}

/// Runs them all on one NIC. `floor`: tests that pass; the others skip for what the NIC lacks (ODP, XRC,
/// DEVX, raw packets) or this machine does.
fn own_tests_pass(layer: Layer, options: &[&str], arguments: &[&str], floor: u32) {
    static UNPACKED: OnceLock<Result<String, String>> = OnceLock::new();
    let unpacked = UNPACKED.get_or_init(own_tests).clone();
    let program = measure::need!(unpacked, "python3-pyverbs 44 with its tests");
    measure::need!(find("ip"), "ip (iproute2), which these tests ask for an interface's address");
    let fabric = Fabric::new(layer).with_options(options);
    let mut started = fabric.start(&[&[PYTHON, "-B", &program, "--dev", "mlx5_0"], arguments].concat());
    let output = started.program.succeed();
    let number = |before: &str| {
        let rest = output.rsplit_once(before).map_or("", |(_, rest)| rest);
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<u32>().unwrap_or_else(|_| panic!("no number after «{before}» in\n{output}"))
    };
    let passed = number("\nRan ") - number("OK (skipped=");
    assert!(passed >= floor, "{layer:?} {options:?}: {passed} passed of at least {floor}\n{output}");
}

#[test]
fn pyverbs_own_tests_pass_on_roce() {
    own_tests_pass(Layer::Roce, &[], &[], 114);
}

/// One test less: it is for Ethernet alone.
#[test]
fn pyverbs_own_tests_pass_on_infiniband() {
    own_tests_pass(Layer::InfiniBand, &[], &[], 113);
}

#[test]
fn pyverbs_own_tests_pass_on_the_wire() {
    // The address that `ip` says of the port's interface has to be the NIC's.
    let local = Loopback::certain(Ipv4Addr::LOCALHOST, DEADLINE).expect("other tests end");
    let address = local.address().to_string();
    own_tests_pass(Layer::Roce, &["--path", "wire", "--ipv4", &address], &["--gid", "3"], 114);
}
