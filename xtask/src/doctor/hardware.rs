//! `cargo xtask doctor --hardware`: what emulation could not confirm, each with a command, the expected line,
//! and whether this machine can try it. Runs none of them: the owner of a card does.
//!
//! Why: `docs/store-order.md` («What hardware still has to confirm»), `docs/gpu.md`, `docs/gpu-memory.md`.
//! `docs/hardware.md` has `xtask/hardware.toml` as printed without a card; it explains different lines.

use std::path::Path;
use std::sync::LazyLock;

use serde::Deserialize;

use crate::workspace::names_in;

/// One thing to confirm; the file says what each field is.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Check {
    name: String,
    unknown: String,
    needs: Vec<Part>,
    run: String,
    expect: String,
}

/// What a check needs of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Part {
    Card,
    Gpu,
    /// Another host, which this machine cannot see.
    SecondHost,
    Arm,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    check: Vec<Check>,
}

static CHECKS: LazyLock<Vec<Check>> = LazyLock::new(|| {
    let list: List = toml::from_str(include_str!("../../hardware.toml")).expect("tests read it");
    list.check
});

/// What this machine has of it.
#[derive(Debug, Default)]
pub struct Found {
    /// Names of ConnectX devices.
    pub cards: Vec<String>,
    /// Bus addresses of NVIDIA GPUs.
    pub gpus: Vec<String>,
    pub is_arm: bool,
}

impl Found {
    pub fn below(root: &Path) -> Found {
        let devices = root.join("sys/class/infiniband");
        let is_connectx = |name: &String| {
            let vendor = std::fs::read_to_string(devices.join(name).join("device/vendor"));
            // Mellanox's number of PCI.
            vendor.is_ok_and(|vendor| vendor.trim() == "0x15b3")
        };
        let cards = names_in(&devices).into_iter().filter(is_connectx).collect();
        let gpus = names_in(&root.join("proc/driver/nvidia/gpus"));
        Found { cards, gpus, is_arm: cfg!(target_arch = "aarch64") }
    }

    /// Whether a check can be tried here, in words.
    fn says(&self, check: &Check) -> String {
        let parts = [
            (Part::Card, !self.cards.is_empty(), self.cards.first(), "no ConnectX device"),
            (Part::Gpu, !self.gpus.is_empty(), self.gpus.first(), "no NVIDIA GPU"),
            (Part::Arm, self.is_arm, None, "not an arm64 machine"),
        ];
        let needed = parts.iter().filter(|(part, ..)| check.needs.contains(part));
        let lacks: Vec<&str> =
            needed.clone().filter_map(|(_, is_here, _, what)| (!is_here).then_some(*what)).collect();
        let with: Vec<&str> = needed.filter_map(|(_, _, name, _)| Some(name.as_ref()?.as_str())).collect();
        match (lacks.is_empty(), check.needs.contains(&Part::SecondHost), with.is_empty()) {
            (false, _, _) => format!("n/a: {}", lacks.join(", ")),
            (true, true, _) => "with a second host".into(),
            (true, false, true) => "can be tried".into(),
            (true, false, false) => format!("can be tried: {}", with.join(", ")),
        }
    }
}

/// `bundle`: the folder of the programs, where they were carried; there is no cargo then.
pub fn list(found: &Found, bundle: Option<&Path>) -> String {
    let mut text = String::from(
        "No card has seen this code. Checks of a card alone were run on the software NIC as they stand. ",
    );
    text += &match bundle {
        Some(folder) => format!("The programs lie in the bundle:\nPATH={}:$PATH\n", folder.display()),
        None => "Build the programs first:\n\
                 cargo build --release -p softnic -p generator; PATH=$PWD/target/release:$PATH\n"
            .to_owned(),
    };
    for check in CHECKS.iter() {
        let Check { name, unknown, run, expect, .. } = check;
        let (run, here) = match bundle {
            Some(_) if run.starts_with("cargo test") => (run.clone(), "n/a: it needs a checkout".to_owned()),
            Some(_) => (run.replace("cargo xtask", "xtask"), found.says(check)),
            None => (run.clone(), found.says(check)),
        };
        text += &format!("\n{name}\n  {unknown}\n  run     {run}\n  expect  {expect}\n  here    {here}\n");
    }
    let (all, count) =
        (CHECKS.len(), CHECKS.iter().filter(|check| !found.says(check).starts_with("n/a")).count());
    text + &format!("\n{count} of {all} can be tried here; docs/hardware.md says what another line means\n")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;
    use std::time::Duration;

    use measure::need;

    use super::*;
    use crate::commands_tests::Programs;
    use crate::process::output;
    use crate::workspace::root;

    fn check(name: &str) -> &'static Check {
        CHECKS.iter().find(|check| check.name == name).unwrap()
    }

    #[test]
    fn a_check_says_what_this_machine_lacks_for_it() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let found =
            |cards: &[&str], gpus: &[&str]| Found { cards: names(cards), gpus: names(gpus), is_arm: false };
        for (found, name, says) in [
            (found(&[], &[]), "early", "n/a: no ConnectX device"),
            (found(&[], &[]), "doorbell-page", "n/a: no ConnectX device, no NVIDIA GPU"),
            (found(&["mlx5_0"], &[]), "early", "can be tried: mlx5_0"),
            (found(&["mlx5_0"], &[]), "gpu-early", "n/a: no NVIDIA GPU"),
            (
                found(&["mlx5_0", "mlx5_1"], &["0000:17:00.0"]),
                "peer-memory",
                "can be tried: mlx5_0, 0000:17:00.0",
            ),
            (found(&[], &[]), "wire", "with a second host"),
            (found(&[], &[]), "link-rate", "n/a: no ConnectX device, no NVIDIA GPU"),
            (found(&["mlx5_0"], &[]), "link-rate", "n/a: no NVIDIA GPU"),
            (found(&["mlx5_0"], &["0000:17:00.0"]), "link-rate", "with a second host"),
            (found(&[], &[]), "arm64", "n/a: not an arm64 machine"),
            (Found { is_arm: true, ..Found::default() }, "arm64", "can be tried"),
        ] {
            assert_eq!(found.says(check(name)), says, "{found:?} {name}");
        }
    }

    #[test]
    fn a_card_is_a_device_of_mellanox_and_a_gpu_one_of_nvidias_driver() {
        let root = std::env::temp_dir().join(format!("xtask-hardware-{}", std::process::id()));
        for (name, vendor) in [("mlx5_0", "0x15b3\n"), ("irdma0", "0x8086\n")] {
            let folder = root.join("sys/class/infiniband").join(name).join("device");
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("vendor"), vendor).unwrap();
        }
        // rxe has no device of PCI.
        fs::create_dir_all(root.join("sys/class/infiniband/rxe0")).unwrap();
        fs::create_dir_all(root.join("proc/driver/nvidia/gpus/0000:17:00.0")).unwrap();
        let found = Found::below(&root);
        fs::remove_dir_all(&root).unwrap();
        assert_eq!((found.cards, found.gpus), (vec!["mlx5_0".to_owned()], vec!["0000:17:00.0".to_owned()]));
        assert!(Found::below(Path::new("/nonexistent")).cards.is_empty());
    }

    /// Checks of a card alone that move messages, on the software NIC; with a thousand messages.
    #[test]
    fn the_lines_to_expect_are_those_that_the_programs_print() {
        let programs = need!(Programs::find(), softnic, "release builds of the programs");
        need!(softnic_runs(programs.folder()), softnic, "the software NIC");
        let mut ran = 0;
        for check in
            CHECKS.iter().filter(|check| check.needs == [Part::Card] && check.run.contains("--verify all"))
        {
            let thousand = |text: &str| text.replace("1000000", "1000").replace("100000", "1000");
            let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let run = thousand(&check.run).replace("18515", &port.to_string());
            let mut shell = on_the_software_nic(programs.folder());
            let said = output(shell.args(["sh", "-c", &run]), Duration::from_secs(120)).unwrap();
            let expected = thousand(&check.expect);
            assert!(
                said.lines().any(|line| line.trim() == expected),
                "{run}\nexpects {expected}, says\n{said}"
            );
            ran += 1;
        }
        assert_eq!(ran, 6);
    }

    fn on_the_software_nic(folder: &Path) -> Command {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new(folder.join("softnic"));
        command.args(["run", "--model", "cx7", "--"]).env("PATH", format!("{}:{path}", folder.display()));
        command
    }

    fn softnic_runs(folder: &Path) -> Result<String, String> {
        output(on_the_software_nic(folder).args(["generator", "probe"]), Duration::from_secs(60))
            .map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn every_command_of_the_list_exists_with_its_options() {
        let programs = need!(Programs::find(), softnic, "release builds of the programs");
        for check in CHECKS.iter() {
            let wrong = programs.wrong(&check.run);
            assert!(wrong.is_empty(), "{}: {wrong:?}", check.name);
        }
    }

    #[test]
    fn the_page_about_hardware_holds_the_list_as_it_is_printed_without_a_card() {
        let page = fs::read_to_string(root().join("docs/hardware.md")).unwrap();
        let here = Found { is_arm: false, ..Found::default() };
        let list = list(&here, None);
        assert!(page.contains(list.trim_end()), "docs/hardware.md lacks this, or has it otherwise:\n{list}");
        for check in CHECKS.iter() {
            let row = format!("| `{}` |", check.name);
            assert!(page.contains(&row), "docs/hardware.md does not say what another line means: {row}");
        }
    }

    #[test]
    fn a_bundle_has_no_cargo() {
        let list = list(&Found { is_arm: true, ..Found::default() }, Some(Path::new("/b")));
        assert!(list.contains("\nPATH=/b:$PATH\n") && list.contains("\n  run     xtask doctor\n"), "{list}");
        let by_cargo: Vec<&str> = list.split("\n\n").filter(|check| check.contains("cargo")).collect();
        assert!(
            by_cargo.iter().all(|check| check.ends_with("here    n/a: it needs a checkout")),
            "{by_cargo:?}"
        );
    }
}
