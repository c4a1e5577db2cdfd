//! `cargo xtask doctor --hardware`: what emulation could not confirm, each with the command that tries it, the line to expect, and
//! whether it can be tried on this machine. Runs none of them: the owner of a card does.
//!
//! The reasons are those of `docs/store-order.md` («What hardware still has to confirm»), `docs/gpu.md` and `docs/gpu-memory.md`.
//! `docs/hardware.md` holds the list as it is printed without a card, and says what a different line means.

use std::path::Path;

use crate::workspace::names_in;

/// One thing to confirm.
#[derive(Debug)]
pub struct Check {
    /// A word to speak of it by.
    pub name: &'static str,
    /// What is not known yet.
    pub unknown: &'static str,
    pub needs: &'static [Part],
    /// A line for a shell.
    pub run: &'static str,
    /// A line that it prints, where all is well; … stands for what differs from machine to machine.
    pub expect: &'static str,
}

/// What a check needs of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Card,
    Gpu,
    /// Another host, which this machine cannot see.
    SecondHost,
    Arm,
}

/// A receiver and a sender of the generator, both on this host: a card sends to itself.
macro_rules! transfer {
    ($receiver:literal, $sender:literal) => {
        concat!(
            "generator --listen 127.0.0.1:18515",
            $receiver,
            " & sleep 1; generator --connect 127.0.0.1:18515 ",
            $sender,
            "; wait"
        )
    };
}

/// A million messages, each compared.
const MILLION: &str = "received 1000000  verified 1000000 of 1000000  torn 0  lost 0";
/// A hundred thousand, so that indices of 16 bits wrap.
const WRAPPED: &str = "received 100000  verified 100000 of 100000  torn 0  lost 0";
/// A hundred thousand into GPU memory, of which the last ones are compared when all is over.
const AT_THE_END: &str = "received 100000  verified … of …  torn 0  lost 0";

pub const CHECKS: [Check; 18] = [
    Check {
        name: "card",
        unknown: "whether libibverbs opens the card and its port is active",
        needs: &[Part::Card],
        run: "generator probe",
        expect: "port 1  active  …",
    },
    Check {
        name: "strict",
        unknown: "whether a card takes the shim's WQEs, record and 8-byte doorbell as libmlx5's",
        needs: &[Part::Card],
        run: transfer!("", "--poster cpu-shim --verify all --count 1000000"),
        expect: MILLION,
    },
    Check {
        name: "early",
        unknown: "order early: whether a card is content when record and register arrive in either order",
        needs: &[Part::Card],
        run: transfer!("", "--poster cpu-shim --order early --verify all --count 1000000"),
        expect: MILLION,
    },
    Check {
        name: "blueflame",
        unknown: "whether a card takes a WQE that the shim writes through the register",
        needs: &[Part::Card],
        run: transfer!("", "--poster cpu-shim --doorbell blueflame --verify all --count 1000000"),
        expect: MILLION,
    },
    Check {
        name: "shared-ring",
        unknown: "whether a card takes a ring without the first 8 bytes of a WQE, as a queue of many posters gives it",
        needs: &[Part::Card],
        run: transfer!("", "--poster host-twin --kernel shared --op write-imm --verify all --count 100000"),
        expect: WRAPPED,
    },
    Check {
        name: "scatter-to-cqe",
        unknown: "whether a short message lies in its buffer and not in the CQE, for a poller that is not libmlx5",
        needs: &[Part::Card],
        run: transfer!(" --receiver host-twin", "--op send --payload 8 --verify all --count 100000"),
        expect: WRAPPED,
    },
    Check {
        name: "receive-index",
        unknown: "whether every receive completion names the oldest receive by its 16-bit index",
        needs: &[Part::Card],
        run: transfer!(" --receiver host-twin", "--op write-imm --payload 8 --verify all --count 100000"),
        expect: WRAPPED,
    },
    Check {
        name: "doorbell-page",
        unknown: "whether CUDA registers a card's doorbell page (CU_MEMHOSTREGISTER_IOMEMORY), so that a GPU may ring",
        needs: &[Part::Card, Part::Gpu],
        run: "cargo xtask doctor",
        expect: "GPU 0 mlx5_0 … registered as a card's registers: the GPU rings it",
    },
    Check {
        name: "gpu-strict",
        unknown: "whether a GPU's fence of system scope holds before a card, and its 8-byte store arrives as one write",
        needs: &[Part::Card, Part::Gpu],
        run: transfer!("", "--poster gpu-thread --verify all --count 1000000"),
        expect: MILLION,
    },
    Check {
        name: "gpu-early",
        unknown: "order early from a GPU: whether an older record never takes back what a register write said",
        needs: &[Part::Card, Part::Gpu],
        run: transfer!("", "--poster gpu-thread --order early --verify all --count 1000000"),
        expect: MILLION,
    },
    Check {
        name: "gpu-blueflame",
        unknown: "whether a card takes eight stores of 8 bytes as one WQE, or as a torn doorbell",
        needs: &[Part::Card, Part::Gpu],
        run: transfer!("", "--poster gpu-thread --doorbell blueflame --verify all --count 1000000"),
        expect: MILLION,
    },
    Check {
        name: "gpu-shared",
        unknown: "whether a card takes the rings of many warps on one queue",
        needs: &[Part::Card, Part::Gpu],
        run: transfer!("", "--poster gpu-shared --op write-imm --verify all --count 1000000"),
        expect: MILLION,
    },
    Check {
        name: "peer-memory",
        unknown: "whether a card reads and writes GPU memory that is registered by its address (nvidia_peermem)",
        needs: &[Part::Card, Part::Gpu],
        run: transfer!(" --payload-memory gpu", "--poster gpu-thread --payload-memory gpu --count 100000"),
        expect: AT_THE_END,
    },
    Check {
        name: "dma-buf",
        unknown: "the same for GPU memory that is registered as a dma-buf",
        needs: &[Part::Card, Part::Gpu],
        run: transfer!(
            " --payload-memory gpu-dma-buf",
            "--poster gpu-thread --payload-memory gpu-dma-buf --count 100000"
        ),
        expect: AT_THE_END,
    },
    Check {
        name: "payload-before-cqe",
        unknown: "whether a payload in GPU memory is there before its CQE in host memory, for a kernel that polls",
        needs: &[Part::Card, Part::Gpu],
        run: transfer!(
            " --receiver gpu --payload-memory gpu",
            "--op write-imm --payload 4096 --verify all --count 100000"
        ),
        expect: WRAPPED,
    },
    Check {
        name: "wire",
        unknown: "whether a card understands the software NIC's packets, and it the card's (HOST: a host with the card, ib_write_bw -x 3)",
        needs: &[Part::SecondHost],
        run: "softnic run --link-layer roce --path wire -- ib_write_bw -x 3 HOST",
        expect: "65536 …",
    },
    Check {
        name: "link-rate",
        unknown: "whether posters fill a link (HOST: a second host with a card)",
        needs: &[Part::Card, Part::Gpu, Part::SecondHost],
        run: "cargo xtask figure 4 --quick --nic mlx5_0 --peer HOST --out results/my-card",
        expect: "all-four-saturate … reproduced …",
    },
    Check {
        name: "arm64",
        unknown: "whether the barriers of order_host.h for arm64 compile and hold (written after rdma-core, not run)",
        needs: &[Part::Arm],
        run: "cargo test -p rdma-shim",
        expect: "test result: ok. …",
    },
];

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
    /// Looks below the root of a file system.
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
        let lacks: Vec<&str> = [
            (Part::Card, self.cards.is_empty(), "no ConnectX device"),
            (Part::Gpu, self.gpus.is_empty(), "no NVIDIA GPU"),
            (Part::Arm, !self.is_arm, "not an arm64 machine"),
        ]
        .into_iter()
        .filter_map(|(part, is_missing, what)| (is_missing && check.needs.contains(&part)).then_some(what))
        .collect();
        let has = |part: Part, names: &[String]| match check.needs.contains(&part) {
            true => names.first().cloned(),
            false => None,
        };
        let with: Vec<String> =
            has(Part::Card, &self.cards).into_iter().chain(has(Part::Gpu, &self.gpus)).collect();
        match (lacks.is_empty(), check.needs.contains(&Part::SecondHost), with.is_empty()) {
            (false, _, _) => format!("n/a: {}", lacks.join(", ")),
            (true, true, _) => "with a second host".into(),
            (true, false, true) => "can be tried".into(),
            (true, false, false) => format!("can be tried: {}", with.join(", ")),
        }
    }
}

/// The list, ready to print.
pub fn list(found: &Found) -> String {
    let mut text = String::from(
        "No card has seen this code. Checks of a card alone were run on the software NIC as they stand. Build the programs first:\n\
         cargo build --release -p softnic -p generator; PATH=$PWD/target/release:$PATH\n",
    );
    for check in &CHECKS {
        let Check { name, unknown, run, expect, .. } = check;
        let here = found.says(check);
        text += &format!("\n{name}\n  {unknown}\n  run     {run}\n  expect  {expect}\n  here    {here}\n");
    }
    let count = CHECKS.iter().filter(|check| !found.says(check).starts_with("n/a")).count();
    text + &format!(
        "\n{count} of {} can be tried here; docs/hardware.md says what another line means\n",
        CHECKS.len()
    )
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;
    use std::time::Duration;

    use measure::need;

    use super::*;
    use crate::commands::Programs;
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
            let run = thousand(check.run).replace("18515", &port.to_string());
            let mut shell = on_the_software_nic(programs.folder());
            let said = output(shell.args(["sh", "-c", &run]), Duration::from_secs(120)).unwrap();
            let expected = thousand(check.expect);
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
        for check in &CHECKS {
            let wrong = programs.wrong(check.run);
            assert!(wrong.is_empty(), "{}: {wrong:?}", check.name);
        }
    }

    #[test]
    fn the_page_about_hardware_holds_the_list_as_it_is_printed_without_a_card() {
        let page = fs::read_to_string(root().join("docs/hardware.md")).unwrap();
        let here = Found { is_arm: false, ..Found::default() };
        let list = list(&here);
        assert!(page.contains(list.trim_end()), "docs/hardware.md lacks this, or has it otherwise:\n{list}");
        for check in &CHECKS {
            let row = format!("| `{}` |", check.name);
            assert!(page.contains(&row), "docs/hardware.md does not say what another line means: {row}");
        }
    }
}
