//! The launcher's options, and the environment that it gives the program.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use anyhow::{Context, Result, bail};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use soft_nic::config::{CONFIG_VARIABLE, Config, KEYS, Key, LinkLayer, LinkPath};
use soft_nic::os::{Interface, interfaces};

use crate::{ctl, program, replay};

/// File name of the interposing library.
const LIBRARY: &str = "libsoftnic_preload.so";

/// By it programs know that their NIC is emulated.
const FABRIC_VARIABLE: &str = "SOFTNIC_FABRIC";

/// Names a configuration file where no `--config` does: for images of containers.
const FILE_VARIABLE: &str = "SOFTNIC_NIC_TOML";

/// A software mlx5 NIC for unmodified programs.
#[derive(Debug, Parser)]
#[command(
    name = "softnic",
    version = VERSION.as_str(),
    after_help = "More: softnic run --help, softnic ctl --help"
)]
struct Cli {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Run a program on a software ConnectX, mlx5_0, which it finds through its own libibverbs and libmlx5.
    Run(Box<Run>),
    /// Watch or change the NIC of a running program: list, counters, explain, link, set, inject, capture.
    Ctl(ctl::Ctl),
    /// Run a recording again, without its program: the same packets and completions must come.
    Replay(replay::Replay),
    /// Write the WQEs, doorbells, packets and completions of a recording as a trace for Perfetto.
    Trace(replay::Trace),
}

#[derive(Debug, Args)]
#[command(override_usage = "softnic run [OPTIONS] -- COMMAND…", after_long_help = after_help())]
struct Run {
    /// Configuration file; command-line options override it [default: what SOFTNIC_NIC_TOML names, if set].
    #[arg(long, value_name = "NIC.TOML")]
    config: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(value_name = "COMMAND", required = true, last = true)]
    command: Vec<OsString>,
}

/// The command line, with an option for each key of the configuration file that has one.
fn command() -> clap::Command {
    let options = options().map(|(key, option, value)| {
        // What is wrong with a negative number is for its key to say.
        let is_number = value.is_some_and(|value| ["N", "X", "P", "TIME", "BYTES"].contains(&value));
        let option = Arg::new(key.name).long(option).help(explained(key)).allow_hyphen_values(is_number);
        match value {
            Some(value) => option.value_name(value),
            None => option.num_args(0).action(ArgAction::Set).default_missing_value("true"),
        }
    });
    Cli::command().mut_subcommand("run", |run| run.args(options))
}

/// Keys with the option for each, and the name of its value.
fn options() -> impl Iterator<Item = (&'static Key, &'static str, Option<&'static str>)> {
    KEYS.iter().filter(|key| !key.option.is_empty()).map(|key| match key.option.split_once(' ') {
        Some((option, value)) => (key, option, Some(value)),
        None => (key, key.option, None),
    })
}

/// What a key sets, what its value may be, and its default, if it has one.
fn explained(Key { name, meaning, allowed, option, .. }: &Key) -> String {
    static DEFAULTS: LazyLock<String> = LazyLock::new(|| Config::default().to_toml());
    let default = DEFAULTS.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "));
    let default = default.map_or_else(String::new, |value| format!("; default {value}"));
    let takes_value = option.is_empty() || option.contains(' ');
    let place = if takes_value { "" } else { "in the file " };
    format!("{meaning} ({place}{allowed}{default})")
}

/// Its own, and that of what processes of a fabric share.
static VERSION: LazyLock<String> =
    LazyLock::new(|| format!("{} (fabric version {})", env!("CARGO_PKG_VERSION"), soft_nic::link::VERSION));

/// Keys of the configuration file that are no options, and what must be true of the program.
fn after_help() -> String {
    let keys = KEYS.iter().filter(|key| key.option.is_empty());
    let keys = keys.map(|key| format!("  {:<17} {}", key.name, explained(key)));
    format!(
        "Keys of the configuration file are the options above but --config and --help, with _ in the place of -, and:\n{}\n\n\
         The program must be dynamically linked with glibc, 64-bit and not set-uid: the library reaches it by LD_PRELOAD.\n\
         SOFTNIC_LOG=1 in the environment prints every command of the program's driver to stderr.\n\n\
         Examples:\n  softnic run -- ibv_devinfo -v\n  \
         softnic run --link-layer roce -- ib_write_bw -x 3 & sleep 2; softnic run --link-layer roce -- ib_write_bw -x 3 127.0.0.1",
        keys.collect::<Vec<_>>().join("\n")
    )
}

/// Parses, checks and becomes the program. Returns only for `--help`, or with what was wrong.
pub fn run(arguments: impl Iterator<Item = OsString>) -> Result<()> {
    let arguments: Vec<OsString> = arguments.collect();
    if let Some(written) = manual::asked(command(), arguments.clone()) {
        return Ok(written.map(drop)?);
    }
    let is_ctl = arguments.get(1).is_some_and(|action| action == "ctl");
    let (cli, given) = match parse(&arguments) {
        Ok(parsed) => parsed,
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            // A reader as `head` may close stdout early.
            let _ = error.print();
            return Ok(());
        }
        Err(error) => {
            bail!("{}; see `{} --help`", first_paragraph(&error, is_ctl), named_command(&arguments))
        }
    };
    match cli.action {
        Action::Run(run) => start(&run, &given),
        Action::Ctl(ctl) => ctl::run(&ctl),
        Action::Replay(asked) => replay::run_replay(&asked),
        Action::Trace(asked) => replay::run_trace(&asked),
    }
}

/// The command, and the options that were given.
fn parse(
    words: impl IntoIterator<Item = impl Into<OsString> + Clone>,
) -> clap::error::Result<(Cli, ArgMatches)> {
    let given = command().try_get_matches_from(words)?;
    let cli = Cli::from_arg_matches(&given)?;
    Ok((cli, given.subcommand_matches("run").cloned().unwrap_or_default()))
}

/// The command that these words name, down to its subcommand; `softnic run` where they name none.
fn named_command(words: &[OsString]) -> String {
    let (mut command, mut path) = (&command(), "softnic".to_owned());
    for word in words.iter().skip(1) {
        let Some(next) = command.find_subcommand(word) else { continue };
        path += &format!(" {}", next.get_name());
        command = next;
    }
    if path == "softnic" { path + " run" } else { path }
}

/// What clap says, without its usage and tips.
fn first_paragraph(error: &clap::Error, is_ctl: bool) -> String {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let usage = if is_ctl { "ctl COMMAND" } else { "run [OPTIONS] -- COMMAND…" };
        return format!("no command given, the usage is softnic {usage}");
    }
    let text = error.render().to_string();
    let paragraph = text.split("\n\n").next().unwrap_or_default();
    let words = paragraph.trim_start_matches("error: ").split_whitespace();
    let reason = words.collect::<Vec<_>>().join(" ");
    let tips = text.lines().filter_map(|line| line.trim().strip_prefix("tip: "));
    let tip: String = tips.filter(|tip| tip.contains("similar")).map(|tip| format!("; {tip}")).collect();
    if error.kind() == ErrorKind::UnknownArgument && !is_ctl {
        let key = match error.get(ContextKind::InvalidArg) {
            Some(ContextValue::String(option)) => option.trim_start_matches('-').replace('-', "_"),
            _ => String::new(),
        };
        if KEYS.iter().any(|known| known.name == key) {
            return format!(
                "{reason}; `{key}` is a key of the configuration file (--config FILE) and no option"
            );
        }
        let usage = match std::env::args().any(|word| word == "--") {
            true => "",
            false => "; -- goes before the program: softnic run [OPTIONS] -- COMMAND…",
        };
        return format!("{reason}{tip}{usage}");
    }
    format!("{reason}{tip}")
}

fn start(run: &Run, given: &ArgMatches) -> Result<()> {
    let config = configuration(run, given)?;
    let library = library()?;
    let (name, arguments) = run.command.split_first().context("no COMMAND given")?;
    let path = program::find(name)?;
    let first = program::check(&path)?;

    let mut command = Command::new(&path);
    command.arg0(name).args(arguments);
    command.env("LD_PRELOAD", preload(&library, first, std::env::var_os("LD_PRELOAD"))?);
    command.env(CONFIG_VARIABLE, config.to_toml()).env(FABRIC_VARIABLE, &config.fabric);
    let error = command.exec();
    Err(error)
        .with_context(|| format!("{}: cannot be started; give a program that runs by itself", path.display()))
}

/// The file's settings, with the options on top.
fn configuration(run: &Run, given: &ArgMatches) -> Result<Config> {
    let named = std::env::var_os(FILE_VARIABLE).filter(|named| !named.is_empty());
    let asked = run.config.clone().map(|file| (file, "--config"));
    let file = asked.or_else(|| named.map(|named| (PathBuf::from(named), FILE_VARIABLE)));
    let mut config = Config::default();
    if let Some((file, origin)) = file {
        let name = file.display().to_string();
        let text = std::fs::read_to_string(&file)
            .with_context(|| format!("{origin} {name}: cannot be read; give a readable TOML file"))?;
        config = Config::parse(&text, &name)?;
    }
    for (Key { name, .. }, option, _) in options() {
        if let Some(value) = given.get_one::<String>(name) {
            config.set_text(name, value, &format!("--{option}"))?;
        }
    }
    prepare_wire(&mut config)?;
    if config.reorder > 0.0 && config.path != LinkPath::Wire {
        eprintln!(
            "softnic: reorder does nothing between NICs of this host's fabric: shared memory keeps its order; take path wire"
        );
    }
    if let Some(file) = &mut config.stats {
        (*file, _) = appendable("stats file", file, 0o666)?;
    }
    if let Some(file) = &mut config.record {
        // It holds keys of regions and inline data.
        let (whole, opened) = appendable("recording", file, 0o600)?;
        if opened.metadata().is_ok_and(|held| held.len() > 0) {
            bail!("recording {file}: is there already; remove it, or name another file");
        }
        *file = whole;
    }
    Ok(config)
}

/// Opens a file that the NIC appends to. Returns its absolute path: the program may change its directory.
fn appendable(what: &str, file: &str, mode: u32) -> Result<(String, File)> {
    let whole = std::path::absolute(file).with_context(|| format!("{what} {file}"))?;
    let opened = OpenOptions::new().append(true).create(true).mode(mode).open(&whole);
    let opened = opened
        .with_context(|| format!("{what} {file}: cannot be written; give a file that can be appended to"))?;
    let whole = whole.to_str().with_context(|| format!("{what}: its folder's name is not UTF-8"))?;
    Ok((whole.to_owned(), opened))
}

/// A wire needs Ethernet ports with addresses of this host, whose interfaces bound the MTU, as a card's does.
fn prepare_wire(config: &mut Config) -> Result<()> {
    if config.path == LinkPath::Wire && config.link_layer != LinkLayer::Roce {
        bail!("path wire: packets are RoCEv2, and the ports are InfiniBand; add --link-layer roce");
    }
    let known = interfaces().context("listing the network interfaces")?;
    if config.path == LinkPath::Wire && config.ipv4.is_none() {
        let usable = |i: &&Interface| i.up && !i.address.is_loopback();
        config.ipv4 = known.iter().filter(usable).find_map(|i| match i.address {
            IpAddr::V4(v4) => Some(v4),
            IpAddr::V6(_) => None,
        });
    }
    for address in config.wire_addresses() {
        let Some(interface) = known.iter().find(|interface| has(interface.address, address)) else {
            let have = known.iter().map(|i| i.address.to_string()).collect::<Vec<_>>().join(", ");
            let several = config.nic().all_ports() > 1;
            let each = if several { ", with the next ones free for the other ports" } else { "" };
            bail!(
                "{address} is no address of this host, which has {have}; name one of these (--ipv4, --ipv6){each}"
            );
        };
        config.mtu = config.mtu.min(transport_mtu(interface.mtu));
    }
    Ok(())
}

/// Whether an interface that names one address has the other.
fn has(named: IpAddr, address: IpAddr) -> bool {
    // All of 127.0.0.0/8 is here, though the interface names one; of IPv6's there is one.
    let both_v4 = named.is_ipv4() && address.is_ipv4();
    named == address || both_v4 && named.is_loopback() && address.is_loopback()
}

/// The largest transport MTU whose packets, with every header, fit an interface's MTU. The drivers of RoCE
/// devices choose their port's MTU so: 1024 for Ethernet's 1500.
fn transport_mtu(interface: u32) -> u16 {
    // IPv6, UDP, BTH, the longest extended header, ICRC, padding.
    const HEADERS: u32 = 40 + 8 + 12 + 28 + 4 + 3;
    let fits = |mtu: &u16| u32::from(*mtu) + HEADERS <= interface;
    [4096, 2048, 1024, 512].into_iter().find(fits).unwrap_or(256)
}

/// The interposing library: beside this executable, in `../lib`, `../lib/softnic`, or in cargo's `deps`.
fn library() -> Result<PathBuf> {
    let executable = std::env::current_exe().context("finding out where softnic itself lies")?;
    let executable = executable.canonicalize().unwrap_or(executable);
    let folder = executable.parent().unwrap_or(Path::new("/"));
    let places = [".", "../lib", "../lib/softnic", "deps"].map(|place| folder.join(place).join(LIBRARY));
    match places.iter().find(|place| place.is_file()) {
        Some(found) => Ok(found.clone()),
        None => bail!(
            "{LIBRARY} is neither in {} nor in its ../lib or ../lib/softnic; put it beside softnic (cargo build -p softnic makes both)",
            folder.display()
        ),
    }
}

/// LD_PRELOAD: `first`, a library that must come before all others, then ours, then the libraries set
/// earlier. The loader splits the value at spaces and colons.
fn preload(library: &Path, first: Option<String>, earlier: Option<OsString>) -> Result<OsString> {
    if library.as_os_str().as_bytes().iter().any(|byte| b" :\n\t".contains(byte)) {
        bail!(
            "{}: LD_PRELOAD takes no path with a space or colon; move softnic to another folder",
            library.display()
        );
    }
    let mut value = OsString::from(first.map_or_else(String::new, |first| first + ":"));
    value.push(library);
    if let Some(earlier) = earlier.filter(|earlier| !earlier.is_empty()) {
        let ours = library.as_os_str().as_bytes();
        let others = earlier.as_bytes().split(|byte| b" :".contains(byte)).filter(|&other| other != ours);
        for other in others.filter(|other| !other.is_empty()) {
            value.push(":");
            value.push(std::ffi::OsStr::from_bytes(other));
        }
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(arguments: &[&str]) -> String {
        let arguments = ["softnic"].iter().chain(arguments).map(OsString::from);
        format!("{:#}", run(arguments).unwrap_err())
    }

    #[test]
    fn misuse_says_what_and_what_to_do() {
        for (arguments, words) in [
            (&["run", "--bogus", "--", "true"][..], "unexpected argument '--bogus' found"),
            (&["run"], "COMMAND"),
            (&["run", "--"], "COMMAND"),
            (&["run", "true"], "'true'"),
            (&[], "softnic run [OPTIONS] -- COMMAND"),
            (&["walk"], "unrecognized subcommand 'walk'"),
            (&["run", "--devices", "0", "--", "true"], "--devices: devices = 0 is not allowed"),
            (&["run", "--devices", "two", "--", "true"], "--devices: devices = \"two\" is not allowed"),
            (&["run", "--rate-gbps", "-1", "--", "true"], "--rate-gbps: rate_gbps = -1 is not allowed"),
            (&["run", "--config", "/nonexistent", "--", "true"], "--config /nonexistent: cannot be read"),
            (
                &["run", "--stats", "/nonexistent/s", "--", "true"],
                "stats file /nonexistent/s: cannot be written",
            ),
            (
                &["run", "--record", "/nonexistent/r", "--", "true"],
                "recording /nonexistent/r: cannot be written",
            ),
            (&["run", "--record", "Cargo.toml", "--", "true"], "recording Cargo.toml: is there already"),
            (&["replay", "/nonexistent"], "/nonexistent: cannot be read"),
            (&["replay", "/proc/self/cmdline"], "/proc/self/cmdline: is no recording"),
            (
                &["trace", "/proc/self/cmdline", "--perfetto", "/dev/null"],
                "/proc/self/cmdline: is no recording",
            ),
        ] {
            let message = message(arguments);
            assert!(message.contains(words), "{arguments:?}: {message}");
            assert!(!message.contains('\n'), "{arguments:?}: {message}");
        }
    }

    #[test]
    fn help_shows_the_default_of_every_key_that_has_one() {
        let help = command().find_subcommand_mut("run").unwrap().render_long_help().to_string();
        let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
        for line in Config::default().to_toml().lines() {
            let (key, value) = line.split_once(" = ").unwrap();
            let known = KEYS.iter().find(|known| known.name == key).unwrap();
            let said = explained(known);
            assert!(said.ends_with(&format!("; default {value})")), "{said}");
            assert_eq!(words.matches(&said).count(), 1, "{said}");
        }
    }

    #[test]
    fn the_loopback_interface_has_every_ipv4_address_of_its_network_and_one_of_ipv6() {
        for (named, address, wanted) in [
            ("10.0.0.1", "10.0.0.1", true),
            ("10.0.0.1", "10.0.0.2", false),
            ("127.0.0.1", "127.9.9.9", true),
            ("127.0.0.1", "10.0.0.1", false),
            ("127.0.0.1", "::1", false),
            ("::1", "127.0.0.1", false),
            ("::1", "::1", true),
        ] {
            let [named_ip, address_ip] = [named, address].map(|ip| ip.parse().expect("an address"));
            assert_eq!(has(named_ip, address_ip), wanted, "{named} has {address}");
        }
    }

    #[test]
    fn ours_goes_before_an_earlier_preload_and_stands_once() {
        let library = Path::new("/opt/lib.so");
        for (first, earlier, value) in [
            (None, None, "/opt/lib.so"),
            (None, Some(""), "/opt/lib.so"),
            (None, Some("/a.so"), "/opt/lib.so:/a.so"),
            (None, Some("/a.so /b.so"), "/opt/lib.so:/a.so:/b.so"),
            (None, Some("/opt/lib.so:/a.so"), "/opt/lib.so:/a.so"),
            (Some("libasan.so.8"), Some("/a.so"), "libasan.so.8:/opt/lib.so:/a.so"),
        ] {
            let value_of = preload(library, first.map(str::to_owned), earlier.map(OsString::from));
            assert_eq!(value_of.unwrap(), value, "{earlier:?}");
        }
        assert!(preload(Path::new("/my lib/lib.so"), None, None).is_err());
    }

    #[test]
    fn only_its_user_reads_a_recording() {
        let file = std::env::temp_dir().join(format!("softnic-launch-{}.rec", std::process::id()));
        let (cli, given) = parse(["softnic", "run", "--record", file.to_str().unwrap(), "--", "x"]).unwrap();
        let Action::Run(run) = cli.action else { panic!("not run") };
        configuration(&run, &given).unwrap();
        let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&file).unwrap());
        std::fs::remove_file(&file).unwrap();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn options_go_before_the_file() {
        let file = std::env::temp_dir().join(format!("softnic-launch-{}.toml", std::process::id()));
        std::fs::write(&file, "devices = 3\nmodel = \"cx5\"\n").unwrap();
        let name = file.to_str().unwrap();
        let words =
            ["softnic", "run", "--config", name, "--model", "cx7", "--fabric", "7", "--pump", "--", "x"];
        let (cli, given) = parse(words).unwrap();
        let Action::Run(run) = cli.action else { panic!("not run") };
        let config = configuration(&run, &given).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert_eq!((config.devices, config.model.word(), config.fabric.as_str()), (3, "cx7", "7"));
        assert!(config.pump);
    }
}
