//! `cargo xtask`: every project command, one file each; this one is the list.

#![forbid(unsafe_code)]
// A closed stream is no panic: `say!` and `tell!` are the only ways to print.
#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use experiment::{measured, refused};

#[macro_use]
extern crate experiment;

mod bench_models;
mod bench_nic;
mod bundle;
mod carried;
#[cfg(test)]
mod commands_tests;
mod compat;
mod demo;
mod descendants;
mod dist;
mod docs;
mod doctor;
mod figure;
mod files;
mod gpu_machine;
mod headers;
mod import;
mod man;
mod onnx_runtime;
mod packages;
mod process;
mod progress;
mod report;
mod setup;
mod shell;
mod stop;
mod test;
mod testbed;
mod tidy;
mod wheels;
mod workspace;
mod zoo;

/// Every project command.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = workspace::us(), disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// What this machine has and lacks, which tests and figures it runs, and what a card has yet to confirm.
    Doctor(doctor::Options),
    /// Install what a command needs.
    Setup(setup::Options),
    /// Set-up, tidy, fmt, clippy, all tests, dry runs of the figures.
    Test(test::Options),
    /// Textual checks of the tree.
    Tidy(tidy::Options),
    /// Regenerate the generated files, or check them.
    Headers(headers::Options),
    /// Build the book of docs/ with mdBook, or regenerate its measured tables.
    Docs(docs::Options),
    /// Measure and draw a figure of the paper, and judge its claims; or run another experiment.
    Figure {
        /// The number in the paper: 1 (models' bandwidth), 2 (their run times), 3 (path of a request), 4
        /// (throughput), 5 (post time), 6 (service time), 7 (serving's CPU); `all`; a folder of experiments/.
        #[arg(value_name = "FIGURE")]
        name: String,
        #[command(flatten)]
        options: figure::Options,
    },
    /// Figure 4: throughput against payload size.
    BenchThroughput(figure::Options),
    /// Figure 5: time to post one request; with --gpu what a GPU spends on it, without a NIC.
    BenchPost {
        /// What a GPU spends on posting, by style, order and number of producers.
        #[arg(long, conflicts_with_all = ["full", "resume", "dry_run", "nic", "rate_gbps", "counters_hook"])]
        gpu: bool,
        /// With --gpu: gpunetio's device headers, measured in the same run (of pip's nvidia-nvshmem-cu13).
        #[arg(long, value_name = "DIR", requires = "gpu")]
        peer_headers: Option<PathBuf>,
        #[command(flatten)]
        options: figure::Options,
    },
    /// How fast the software NIC is, compared with what two processes can do without a NIC.
    BenchNic(bench_nic::Options),
    /// What a GPU sends and answers over the software NIC; needs a GPU and a CUDA toolkit.
    BenchGpu(bench_nic::Options),
    /// How fast models run, beside PyTorch on a GPU or ONNX Runtime from Python on the processor.
    BenchModels(bench_models::Options),
    /// Run programs of others on the software NIC, and record which of them work.
    Compat(compat::Options),
    /// A folder of programs for a machine without cargo, git and network.
    Bundle(bundle::Options),
    /// Put results of a machine that ran a bundle into the committed measured.json.
    Import(import::Options),
    /// One page of all figures and of all claims of the paper, and each figure as SVG, PNG, PDF and CSV.
    Report(report::Options),
    /// Serve SqueezeNet to a client over the software NIC, and check every answer.
    Demo(demo::Options),
    /// Make a tarball for any x86-64 Linux with glibc 2.31 or newer, and a Debian package of softnic.
    Dist(dist::Options),
    /// Man pages and shell completions of the programs and of these commands, in folders as in /usr/share.
    Man(man::Options),
    /// Two nodes on this machine, with networks, host names and files of their own, reached by ssh.
    Testbed(testbed::Options),
    /// The models: list, build with seeded weights, fetch trained ones, verify.
    Zoo(zoo::Options),
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) if !error.use_stderr() => {
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            tell!("xtask: {}", one_line(&error, std::env::args().nth(1).as_deref()));
            return ExitCode::from(2);
        }
    };
    let result = stop::watch().and_then(|()| run(arguments.command));
    stop::hold();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            stop::hold_if_soon();
            tell!("xtask: {error:#}");
            // What the user can mend is told apart from what went wrong.
            let refused = error.downcast_ref::<refused::Refused>();
            refused.map_or(ExitCode::FAILURE, |refused| ExitCode::from(refused.status))
        }
    }
}

/// What is wrong with the command line, whose first word is `first`; clap's text has tip and usage lines too.
fn one_line(error: &clap::Error, first: Option<&str>) -> String {
    let whole = Arguments::command();
    let first = first.and_then(|first| whole.find_subcommand(first));
    let command = first.filter(|command| command.has_subcommands()).unwrap_or(&whole);
    let listed = command.get_subcommands().filter(|command| !command.is_hide_set());
    let names = listed.map(|command| command.get_name()).collect::<Vec<_>>().join(", ");
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return format!("no command was given; there are: {names} (--help tells more)");
    }
    let text = error.to_string();
    let reason = text.split("\n\n").next().unwrap_or_default();
    let words: Vec<&str> = reason.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let reason = words.join(" ");
    let tips = text.lines().filter_map(|line| line.trim().strip_prefix("tip: "));
    let mut tip: String = tips.filter(|tip| tip.contains("similar")).map(|tip| format!("; {tip}")).collect();
    if error.kind() == ErrorKind::InvalidSubcommand {
        tip += &format!("; there are: {names}");
    }
    format!("{}{tip} (--help tells more)", reason.trim_start_matches("error: "))
}

impl Command {
    /// What of it needs the source tree, and so cannot be had in a bundle.
    fn needs_tree(&self) -> Option<&'static str> {
        match self {
            Command::Setup(_) => Some("setup"),
            Command::Tidy(_) => Some("tidy"),
            Command::Headers(_) => Some("headers"),
            Command::Docs(_) => Some("docs"),
            Command::Bundle(_) => Some("bundle"),
            Command::Dist(_) => Some("dist"),
            Command::Import(_) => Some("import"),
            Command::Report(_) => Some("report"),
            Command::Testbed(_) => Some("testbed"),
            Command::Compat(options) => (!options.gpu).then_some("compat without --gpu"),
            Command::Test(options) => (!options.gpu).then_some("test without --gpu"),
            Command::Figure { options, .. }
            | Command::BenchThroughput(options)
            | Command::BenchPost { options, .. } => options.needs_tree(),
            Command::BenchNic(options) | Command::BenchGpu(options) => options.record.then_some("--record"),
            Command::BenchModels(options) => options.record.then_some("--record"),
            Command::Doctor(_) | Command::Demo(_) | Command::Man(_) | Command::Zoo(_) => None,
        }
    }
}

fn run(command: Command) -> Result<()> {
    if let (Some(what), Some(bundle)) = (command.needs_tree(), carried::folder()) {
        let bundle = bundle.display();
        return Err(refused::refused(format!(
            "{what}: needs a checkout of the source, {bundle} is a bundle; here there are: doctor, test --gpu, compat --gpu, figure, \
             bench-throughput, bench-post, bench-nic, bench-gpu, \
             bench-models, demo, man, zoo"
        )));
    }
    match command {
        Command::Doctor(options) => doctor::run(&options),
        Command::Setup(options) => setup::run(&options),
        Command::Test(options) => test::run(&options),
        Command::Tidy(options) => tidy::run(&options),
        Command::Headers(options) => headers::run(&options),
        Command::Docs(options) => docs::run(&options),
        Command::Figure { name, options } => {
            let name = if name.parse::<u32>().is_ok() { format!("fig{name}") } else { name };
            figure::run(&name, &options)
        }
        Command::BenchThroughput(options) => figure::run("fig4", &options),
        Command::BenchPost { gpu: false, options, .. } => figure::run("fig5", &options),
        Command::BenchPost { peer_headers, options, .. } => {
            figure::posts::run(&options, peer_headers.as_deref())
        }
        Command::BenchNic(options) => bench_nic::run("bench-nic", &options),
        Command::BenchGpu(options) => bench_nic::run("bench-gpu", &options),
        Command::BenchModels(options) => bench_models::run(&options),
        Command::Compat(options) => compat::run(&options),
        Command::Bundle(options) => bundle::run(&options),
        Command::Import(options) => import::run(&options),
        Command::Report(options) => report::run(&options),
        Command::Demo(options) => demo::run(&options),
        Command::Dist(options) => dist::run(&options),
        Command::Man(options) => man::run(&options, Arguments::command()),
        Command::Testbed(options) => testbed::run(&options),
        Command::Zoo(options) => zoo::run(&options),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without cargo's own lines the first command would be silent while cargo builds or waits for its lock.
    #[test]
    fn the_alias_lets_cargo_say_what_it_builds() {
        let text = std::fs::read_to_string(workspace::root().join(".cargo/config.toml")).unwrap();
        let config: toml::Table = toml::from_str(&text).unwrap();
        assert_eq!(config["alias"]["xtask"].as_str(), Some("run --package xtask --"));
        assert!(!config.contains_key("term"), "{text}");
    }

    #[test]
    fn what_is_wrong_with_the_command_line_is_one_line() {
        for (arguments, words) in [
            ("", &["no command", "figure", "bench-nic"][..]),
            ("frobnicate", &["frobnicate", "there are: doctor", "figure"]),
            ("figre 4", &["figre", "a similar subcommand exists: 'figure'"]),
            ("bench", &["some similar subcommands exist: 'bench-throughput', ", "'bench-gpu'; there are: "]),
            ("tidy arows", &["arows", "a similar value exists: 'arrows'"]),
            ("figure", &["<FIGURE>"]),
            ("figure 4 --frobnicate", &["--frobnicate"]),
            ("figure 4 --quik", &["--quik", "a similar argument exists: '--quick'"]),
            ("figure 4 --quick --full", &["--quick", "--full"]),
            ("figure 4 --smoke --record", &["--smoke", "--record"]),
            ("figure 4 --where mars", &["mars", "local, netns"]),
            ("figure 4 --out", &["--out", "value"]),
            ("figure 4 --rate-gbps 0", &["--rate-gbps", "0.001 to 1000"]),
            ("figure 4 --rate-gbps fast", &["--rate-gbps", "no number"]),
            ("figure 4 --rate-gbps 100 --nic mlx5_0", &["--rate-gbps", "--nic"]),
            ("bench-throughput --peer host", &["--nic"]),
            ("bench-post 5", &["'5'"]),
            ("bench-post --peer-headers DIR", &["--gpu"]),
            ("bench-post --gpu --resume", &["--gpu", "--resume"]),
            ("bench-post --gpu --counters-hook x", &["--gpu", "--counters-hook"]),
            ("test --resume", &["--gpu"]),
            ("import", &["<RESULTS>"]),
            (
                "demo --answers 0",
                &["'0'", "--answers", "16 or more are needed, one to each of the 16 inputs"],
            ),
            ("setup everything", &["everything", "figure, bench, testbed, test"]),
            ("test --quick", &["--quick"]),
            ("compat --kernel --gpu", &["--kernel", "--gpu"]),
            ("compat --kernel --import x", &["--kernel", "--import"]),
            ("testbed", &["no command", "there are: up, status, down (--help"]),
            ("testbed bogus", &["bogus", "there are: up, status, down (--help"]),
            ("testbed up --port 0", &["--port", "0"]),
        ] {
            let words_given = ["xtask"].into_iter().chain(arguments.split_whitespace());
            let error = Arguments::try_parse_from(words_given).err().unwrap();
            assert!(error.use_stderr(), "{arguments}");
            let line = one_line(&error, arguments.split_whitespace().next());
            assert_eq!(line.lines().count(), 1, "{arguments}: {line}");
            assert!(words.iter().all(|word| line.contains(word)), "{arguments}: {line}");
            assert!(
                line.ends_with("(--help tells more)") && !line.starts_with("error"),
                "{arguments}: {line}"
            );
        }
    }

    #[test]
    fn what_a_bundle_cannot_do_is_known_before_it_is_tried() {
        for (arguments, what) in [
            ("tidy", Some("tidy")),
            ("bundle DIR", Some("bundle")),
            ("docs", Some("docs")),
            ("test", Some("test without --gpu")),
            ("test --gpu", None),
            ("figure 4 --quick", None),
            ("figure 4 --record", Some("--record")),
            ("figure 4 --where local", None),
            ("figure 4 --where netns", Some("--where netns")),
            ("figure 4 --where my/hosts.yml", Some("--where INVENTORY")),
            ("bench-nic --record", Some("--record")),
            ("bench-nic", None),
            ("bench-gpu", None),
            ("bench-models --gpu", None),
            ("bench-models --gpu --record", Some("--record")),
            ("bench-gpu --record", Some("--record")),
            ("bench-post --gpu", None),
            ("bench-post --gpu --record", Some("--record")),
            ("import DIR", Some("import")),
            ("report", Some("report")),
            ("testbed status", Some("testbed")),
            ("compat --only perftest", Some("compat without --gpu")),
            ("compat --gpu", None),
            ("doctor", None),
            ("demo", None),
            ("man DIR", None),
            ("zoo build --small", None),
        ] {
            let words = ["xtask"].into_iter().chain(arguments.split_whitespace());
            let arguments_given = Arguments::try_parse_from(words).ok().unwrap();
            assert_eq!(arguments_given.command.needs_tree(), what, "{arguments}");
        }
    }

    #[test]
    fn help_is_no_error() {
        let error = Arguments::try_parse_from(["target/debug/xtask", "figure", "--help"]).err().unwrap();
        assert!(!error.use_stderr());
        assert!(error.to_string().contains("Usage: cargo xtask figure [OPTIONS]"), "{error}");
    }
}
