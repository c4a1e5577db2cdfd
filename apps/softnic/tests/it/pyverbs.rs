//! The verbs life cycle, and memory windows, through the distribution's pyverbs, which loads libibverbs late and privately (`dlopen`).

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::counters::Messages;
use crate::fabric::{Fabric, Layer, distribution_libmlx5};

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
