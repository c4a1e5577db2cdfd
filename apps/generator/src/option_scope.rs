//! Which end, poster and baseline reads which option: an option may mean nothing beside others.

use cli::{Memory, OptionScope};

use crate::kernel_options::{KernelName, ReceiverName};
use crate::options::{Baseline, BaselineKind, Cli, Command};
use crate::poster::PosterName;

/// Options that only some commands use.
pub const OPTION_SCOPES: [OptionScope<Cli>; 11] = [
    OptionScope { options: &["receiver", "sessions"], to: "--listen", when: |cli| takes(cli, |_| true) },
    OptionScope {
        options: &[
            "poster",
            "op",
            "service",
            "payload",
            "batch",
            "doorbell-batch",
            "window",
            "qps",
            "idle-qps",
            "count",
            "seconds",
            "warm-up",
            "pause",
            "inline",
            "verify",
        ],
        to: "--connect (the sender decides)",
        when: |cli| posts(cli, |_| true),
    },
    OptionScope {
        options: &["order", "doorbell"],
        to: "--connect and a --poster of the shim's, which cpu-ibverbs is not",
        when: |cli| posts(cli, |poster| poster != PosterName::CpuIbverbs),
    },
    OptionScope {
        options: &["kernel"],
        to: "--poster host-twin",
        when: |cli| posts(cli, |poster| poster == PosterName::HostTwin),
    },
    OptionScope {
        options: &["producers"],
        to: "--poster gpu-shared, or host-twin with --kernel shared",
        when: |cli| {
            let twin_shares = cli.transfer.kernels.kernel == KernelName::Shared;
            posts(cli, |poster| poster == PosterName::GpuShared)
                || twin_shares && posts(cli, |poster| poster == PosterName::HostTwin)
        },
    },
    OptionScope {
        options: &["twin-seed"],
        to: "--poster host-twin, or --receiver host-twin",
        when: |cli| {
            posts(cli, |poster| poster == PosterName::HostTwin)
                || takes(cli, |receiver| receiver == ReceiverName::HostTwin)
        },
    },
    OptionScope {
        options: &["gpu", "cuda"],
        to: "a gpu --poster, --receiver gpu, or --payload-memory of a GPU",
        when: |cli| {
            posts(cli, is_gpu)
                || takes(cli, |receiver| receiver == ReceiverName::Gpu)
                || cli.transfer.kernels.payload_memory != Memory::Host
        },
    },
    OptionScope {
        options: &["listen", "connect"],
        to: "baseline udp-ping-pong",
        when: |cli| is_measured(cli, |baseline| baseline.what == BaselineKind::UdpPingPong),
    },
    OptionScope {
        options: &["seconds"],
        to: "--connect, whose end measures",
        when: |cli| is_measured(cli, |baseline| baseline.listen.is_none()),
    },
    OptionScope {
        options: &["cores"],
        to: "flag-ping-pong, word-ring and process-vm-writev, whose processes are pinned",
        when: |cli| is_measured(cli, |baseline| baseline.what != BaselineKind::UdpPingPong),
    },
    OptionScope {
        options: &["bytes"],
        to: "baseline process-vm-writev",
        when: |cli| is_measured(cli, |baseline| baseline.what == BaselineKind::ProcessVmWritev),
    },
];

fn is_gpu(poster: PosterName) -> bool {
    !matches!(poster, PosterName::CpuIbverbs | PosterName::CpuShim | PosterName::HostTwin)
}

/// Whether this end sends, by such a poster. A command line without an end is asked for one first.
fn posts(cli: &Cli, by: impl Fn(PosterName) -> bool) -> bool {
    let transfer = &cli.transfer;
    transfer.listen.is_none() && (transfer.connect.is_none() || by(transfer.poster))
}

/// Whether this end receives, by such a taker.
fn takes(cli: &Cli, by: impl Fn(ReceiverName) -> bool) -> bool {
    let transfer = &cli.transfer;
    transfer.connect.is_none() && (transfer.listen.is_none() || by(transfer.kernels.receiver))
}

/// Whether it is no baseline, or one that is measured so.
fn is_measured(cli: &Cli, so: impl Fn(&Baseline) -> bool) -> bool {
    if let Some(Command::Baseline(baseline)) = &cli.command { so(baseline) } else { true }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stray(text: &str) -> Option<String> {
        cli::testing::stray(text, &OPTION_SCOPES)
    }

    /// A whole command line in which an option of the table means something, and where it means nothing.
    const CASES: [(&str, &str, &[&str]); 24] = [
        ("--receiver host-twin", "--listen h:1", &["--connect h:1", "--connect h:1 --poster host-twin"]),
        ("--sessions 4", "--listen h:1", &["--connect h:1"]),
        ("--poster host-twin", "--connect h:1", &["--listen h:1"]),
        ("--op send", "--connect h:1", &["--listen h:1"]),
        ("--service rc", "--connect h:1", &["--listen h:1"]),
        ("--payload 64", "--connect h:1", &["--listen h:1"]),
        ("--batch 4", "--connect h:1", &["--listen h:1"]),
        ("--doorbell-batch 4", "--connect h:1", &["--listen h:1"]),
        ("--window 4", "--connect h:1", &["--listen h:1"]),
        ("--qps 2", "--connect h:1", &["--listen h:1"]),
        ("--idle-qps 2", "--connect h:1", &["--listen h:1"]),
        ("--count 2", "--connect h:1", &["--listen h:1"]),
        ("--seconds 2", "--connect h:1", &["--listen h:1"]),
        ("--warm-up 2", "--connect h:1", &["--listen h:1"]),
        ("--pause 2", "--connect h:1 --count 1", &["--listen h:1 --count 1"]),
        ("--inline", "--connect h:1", &["--listen h:1"]),
        ("--verify all", "--connect h:1", &["--listen h:1"]),
        ("--order early", "--connect h:1 --poster gpu-warp", &["--connect h:1", "--listen h:1"]),
        ("--doorbell 8-bytes", "--connect h:1 --poster cpu-shim", &["--connect h:1", "--listen h:1"]),
        (
            "--kernel warp",
            "--connect h:1 --poster host-twin",
            &["--connect h:1 --poster cpu-shim", "--connect h:1 --poster gpu-thread", "--listen h:1"],
        ),
        (
            "--producers 3",
            "--connect h:1 --poster host-twin --kernel shared",
            &[
                "--connect h:1 --poster cpu-shim",
                "--connect h:1 --poster gpu-warp",
                "--connect h:1 --poster host-twin --kernel warp",
                "--listen h:1 --receiver gpu",
            ],
        ),
        (
            "--twin-seed 3",
            "--listen h:1 --receiver host-twin",
            &["--connect h:1 --poster cpu-shim", "--connect h:1 --poster gpu-thread", "--listen h:1"],
        ),
        (
            "--gpu 0",
            "--listen h:1 --payload-memory gpu",
            &[
                "--connect h:1 --poster cpu-shim",
                "--connect h:1",
                "--connect h:1 --poster host-twin",
                "--listen h:1 --receiver host-twin",
            ],
        ),
        (
            "--cuda DIR",
            "--connect h:1 --poster gpu-original",
            &["--connect h:1 --poster cpu-shim", "--listen h:1"],
        ),
    ];

    #[test]
    fn each_option_is_refused_where_nobody_looks_at_it_and_only_there() {
        for (option, heeded, idle) in CASES {
            assert_eq!(stray(&format!("{heeded} {option}")), None, "{heeded} {option}");
            assert_eq!(stray(option.trim_start_matches("--pause 2")), None, "{option}");
            for rest in idle {
                let name = if option.starts_with("--pause") { "--count 1" } else { option };
                let said = stray(&format!("{rest} {option}")).unwrap_or_else(|| panic!("{rest} {option}"));
                assert!(said.starts_with(&format!("{name} would do nothing here: it goes with ")), "{said}");
            }
        }
        for option in OPTION_SCOPES.iter().flat_map(|row| row.options) {
            let mut cases = CASES.iter().map(|case| case.0).chain(BASELINES.iter().map(|case| case.0));
            let is_named = |case: &str| case.split(' ').next() == Some(&format!("--{option}"));
            assert!(cases.any(is_named), "--{option} is in no case");
        }
        for posters in ["gpu-shared", "host-twin --kernel shared"] {
            assert_eq!(stray(&format!("--connect h:1 --poster {posters} --producers 3")), None);
        }
        assert_eq!(stray("--connect h:1 --poster host-twin --twin-seed 3"), None);
        assert_eq!(stray("--listen h:1 --receiver gpu --gpu 1 --cuda DIR --sessions 0"), None);
    }

    const FLAGS: &str = "flag-ping-pong";
    const RING: &str = "word-ring";
    const COPIES: &str = "process-vm-writev";
    const ANSWERS: &str = "udp-ping-pong --listen [::1]:1";
    const ASKS: &str = "udp-ping-pong --connect [::1]:1";

    /// Options of `baseline`; the first words of what they go with; where they apply; where they do not.
    const BASELINES: [(&str, &str, &[&str], &[&str]); 5] = [
        ("--listen [::1]:1", "baseline udp-ping-pong", &["udp-ping-pong"], &[FLAGS, RING, COPIES]),
        ("--connect [::1]:1", "baseline udp-ping-pong", &["udp-ping-pong"], &[FLAGS, RING, COPIES]),
        ("--seconds 0.1", "--connect", &[FLAGS, RING, COPIES, ASKS], &[ANSWERS]),
        ("--cores 0,1", "flag-ping-pong, word-ring", &[FLAGS, RING, COPIES], &[ASKS, ANSWERS]),
        ("--bytes 8", "baseline process-vm-writev", &[COPIES], &[FLAGS, RING, ASKS, ANSWERS]),
    ];

    #[test]
    fn a_baseline_refuses_the_options_of_others() {
        for (option, to, heeded, idle) in BASELINES {
            for rest in heeded {
                assert_eq!(stray(&format!("baseline {rest} {option}")), None, "{rest} {option}");
            }
            for rest in idle {
                let said = stray(&format!("baseline {rest} {option}"));
                let said = said.unwrap_or_else(|| panic!("{rest} {option}"));
                let begin = format!("{option} would do nothing here: it goes with {to}");
                assert!(said.starts_with(&begin) && said.ends_with("; leave it out"), "{said}");
            }
        }
        // The same words where there is no baseline.
        for other in ["--listen h:1", "--connect h:1 --seconds 1", "bench-post --payload 64", "probe --json"]
        {
            assert_eq!(stray(other), None, "{other}");
        }
    }
}
