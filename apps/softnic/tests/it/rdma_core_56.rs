//! rdma-core 56: Debian 13's packages, with their own libc, unpacked beside the system and run under the NIC.
//!
//! Nothing is installed. apt gets its own state folders and the machine's Debian mirror with the suite
//! replaced; the programs run through the unpacked loader (`ld.so --library-path`). libmlx5 is loaded from
//! the start, as in programs that link it: libibverbs would load the system's, from its compiled-in folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::counters::messages;
use crate::fabric::{Fabric, Layer, cargo};

/// Debian 13: rdma-core 56.1.
const SUITE: &str = "trixie";
/// Programs to run; apt adds the libraries they need, down to libc and the loader.
const PACKAGES: [&str; 4] = ["ibverbs-utils", "perftest", "ibverbs-providers", "libgcc-s1"];
/// Where Debian's amd64 packages put libraries.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// The unpacked packages.
#[derive(Clone)]
struct Root(PathBuf);

impl Root {
    /// Downloads and unpacks once for a target folder; the error is why that cannot be done here.
    fn unpacked() -> Result<Self, String> {
        // Tests run side by side; the first does it for all.
        static UNPACKED: OnceLock<Result<Root, String>> = OnceLock::new();
        UNPACKED.get_or_init(Self::unpack).clone()
    }

    fn unpack() -> Result<Self, String> {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rdma-core-56-root");
        let done = folder.with_extension("done");
        if !done.exists() {
            // A cut unpacking is begun anew.
            let _ = fs::remove_dir_all(&folder);
            let downloads = folder.with_extension("apt");
            for package in download(&downloads)? {
                run(Command::new("dpkg").arg("-x").args([&package, &folder]))?;
            }
            let _ = fs::remove_dir_all(&downloads);
            fs::write(&done, "").map_err(|error| format!("{}: {error}", done.display()))?;
        }
        Ok(Self(folder))
    }

    fn path(&self, relative: &str) -> String {
        self.0.join(relative).display().to_string()
    }

    /// A command line that runs `usr/bin/PROGRAM` of this root with this root's loader and libraries.
    fn command(&self, program: &str, arguments: &[&str]) -> Vec<String> {
        self.load(&self.path(&format!("usr/bin/{program}")), arguments)
    }

    /// The same for any program. One that was built against an older libc runs on this one too.
    fn load(&self, program: &str, arguments: &[&str]) -> Vec<String> {
        let (loader, library) =
            (format!("{LIBRARIES}/ld-linux-x86-64.so.2"), format!("{LIBRARIES}/libmlx5.so.1"));
        let mut command = vec![self.path(&loader), "--library-path".into(), self.path(LIBRARIES)];
        command.extend(["--preload".into(), self.path(&library), program.into()]);
        command.extend(arguments.iter().map(|&argument| argument.to_owned()));
        command
    }
}

fn borrowed(command: &[String]) -> Vec<&str> {
    command.iter().map(String::as_str).collect()
}

/// Runs a tool to its end; the error holds its last words.
fn run(command: &mut Command) -> Result<String, String> {
    let what = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("{what}: {error}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("{what}: {}", errors.lines().last().unwrap_or("failed without a word")));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Downloads the packages with all that they depend on; returns the files.
fn download(state: &Path) -> Result<Vec<PathBuf>, String> {
    let path = |name: &str| state.join(name).display().to_string();
    let failed = |error: std::io::Error| format!("{}: {error}", state.display());
    for folder in ["lists/partial", "archives/partial"] {
        fs::create_dir_all(state.join(folder)).map_err(failed)?;
    }
    fs::write(state.join("suite.sources"), sources()?).map_err(failed)?;
    // An empty status: nothing counts as installed, so that everything down to libc is fetched.
    fs::write(state.join("status"), "").map_err(failed)?;
    let options = [
        format!("Dir::Etc::sourcelist={}", path("suite.sources")),
        "Dir::Etc::sourceparts=/dev/null".into(),
        "Dir::Etc::preferencesparts=/dev/null".into(),
        format!("Dir::State::lists={}", path("lists")),
        format!("Dir::State::status={}", path("status")),
        format!("Dir::Cache={}", state.display()),
        format!("Dir::Cache::archives={}", path("archives")),
        "APT::Architecture=amd64".into(),
        "APT::Install-Recommends=false".into(),
        // The locks are those of our own folders, which an ordinary user owns too.
        "Debug::NoLocking=true".into(),
        "APT::Sandbox::User=".into(),
        "Acquire::Languages=none".into(),
        "Acquire::http::Timeout=20".into(),
        "Acquire::https::Timeout=20".into(),
        "Acquire::Retries=1".into(),
    ];
    let apt = || {
        let mut apt = Command::new("apt-get");
        apt.env("LC_ALL", "C").arg("-q").args(options.iter().map(|option| format!("-o{option}")));
        apt
    };
    run(apt().args(["--error-on=any", "update"]))?;
    run(apt().args(["install", "--yes", "--download-only"]).args(PACKAGES))?;
    let archives = fs::read_dir(state.join("archives")).map_err(failed)?;
    let files: Vec<PathBuf> = archives.flatten().map(|entry| entry.path()).collect();
    Ok(files
        .into_iter()
        .filter(|file| file.extension().is_some_and(|extension| extension == "deb"))
        .collect())
}

/// The machine's own mirror of the Debian archive, as a source of `SUITE`.
fn sources() -> Result<String, String> {
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    files.extend(
        fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten().flatten().map(|entry| entry.path()),
    );
    files.sort();
    let texts = files.iter().filter_map(|file| fs::read_to_string(file).ok());
    let (uri, signed_by) = texts
        .into_iter()
        .find_map(|text| debian_mirror(&text))
        .ok_or("no Debian mirror in /etc/apt/sources.list*")?;
    let signed_by = signed_by.map_or_else(String::new, |file| format!("Signed-By: {file}\n"));
    Ok(format!("Types: deb\nURIs: {uri}\nSuites: {SUITE}\nComponents: main\n{signed_by}"))
}

/// Address and key file of the first source with a Debian release, in either `sources.list(5)` format.
fn debian_mirror(text: &str) -> Option<(String, Option<String>)> {
    const RELEASES: [&str; 4] = ["bookworm", "trixie", "forky", "sid"];
    let one_line = text.lines().filter_map(|line| line.trim().strip_prefix("deb ")).find_map(|line| {
        let (options, rest) = match line.trim().strip_prefix('[') {
            Some(line) => line.split_once(']')?,
            None => ("", line),
        };
        let mut words = rest.split_whitespace();
        let (uri, suite) = (words.next()?, words.next()?);
        let key = options.split_whitespace().find_map(|option| option.strip_prefix("signed-by="));
        RELEASES.contains(&suite).then(|| (uri.to_owned(), key.map(str::to_owned)))
    });
    one_line.or_else(|| {
        text.split("\n\n").find_map(|stanza| {
            let field = |name: &str| {
                let lines = stanza.lines().filter(|line| !line.starts_with('#'));
                let mut fields = lines.filter_map(|line| line.split_once(':'));
                fields.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
            };
            let binary = field("Types")?.split_whitespace().any(|kind| kind == "deb");
            let release = field("Suites")?.split_whitespace().any(|suite| RELEASES.contains(&suite));
            let uri = field("URIs")?.split_whitespace().next()?;
            (binary && release).then(|| (uri.to_owned(), field("Signed-By").map(str::to_owned)))
        })
    })
}

#[test]
fn both_formats_of_apt_sources_give_their_mirror() {
    for (text, found) in [
        ("deb http://one.example/debian bookworm main contrib\n", Some(("http://one.example/debian", None))),
        ("# deb http://no.example/debian bookworm main\n", None),
        (
            "deb [arch=amd64 signed-by=/k.gpg] http://two.example/d trixie main\n",
            Some(("http://two.example/d", Some("/k.gpg"))),
        ),
        ("deb http://other.example/ubuntu noble main\n", None),
        (
            "Types: deb\nURIs: http://three.example/sec\nSuites: bookworm-security\n\nTypes: deb\n# old\n\
             URIs: http://three.example/debian\nSuites: bookworm bookworm-updates\nSigned-By: /k.gpg\n",
            Some(("http://three.example/debian", Some("/k.gpg"))),
        ),
    ] {
        let expected = found.map(|(uri, key)| (uri.to_owned(), key.map(str::to_owned)));
        assert_eq!(debian_mirror(text), expected, "{text}");
    }
}

#[test]
fn ibv_devinfo_of_rdma_core_56_finds_the_device() {
    let root = measure::need!(Root::unpacked(), "Debian 13's packages from this machine's mirror");
    for layer in Layer::BOTH {
        let fabric = Fabric::new(layer);
        let (output, counters) = fabric.run(&borrowed(&root.command("ibv_devinfo", &["-v"])));
        assert!(output.contains("hca_id:\tmlx5_0"), "{output}");
        assert!(output.contains(layer.printed()), "{output}");
        assert!(output.contains("PORT_ACTIVE (4)"), "{output}");
        assert!(counters.libmlx5().starts_with(&root.path(LIBRARIES)), "{}", counters.libmlx5());
        assert!(counters.libmlx5().ends_with(".56.1"), "{}", counters.libmlx5());
    }
}

#[test]
fn ib_write_bw_of_rdma_core_56_counts_every_message() {
    let root = measure::need!(Root::unpacked(), "Debian 13's packages from this machine's mirror");
    for layer in Layer::BOTH {
        let fabric = Fabric::new(layer);
        let command = root.command("ib_write_bw", &["-F", "-n", "200", "-s", "65536"]);
        let finished = fabric.pair(&borrowed(&command)).finish();
        let (server, client) = (finished.server.counters, finished.client.counters);
        assert_eq!(client.completed(), messages("write", 200), "{layer:?}");
        assert_eq!((server.executed(), server.executed_bytes()), (200, 200 * 65536), "{layer:?}");
        assert!(client.trouble().is_empty() && server.trouble().is_empty(), "{layer:?}");
        assert!(client.libmlx5().starts_with(&root.path(LIBRARIES)), "{}", client.libmlx5());
    }
}

#[test]
fn ibv_rc_pingpong_of_rdma_core_56_sleeps_on_events() {
    let root = measure::need!(Root::unpacked(), "Debian 13's packages from this machine's mirror");
    let fabric = Fabric::new(Layer::InfiniBand);
    let command = root.command("ibv_rc_pingpong", &["-e", "-c", "-n", "200"]);
    let finished = fabric.pair(&borrowed(&command)).finish();
    for side in [finished.server, finished.client] {
        assert!(!side.output.contains("invalid data"), "{}", side.output);
        assert_eq!(side.counters.completed(), messages("send", 200));
        assert_eq!(side.counters.executed(), 200);
    }
}

/// The shim's own test program, which finds rdma-core at run time: `SOFTNIC_TEST_SHIM` or a new build.
fn shim_tests() -> String {
    if let Ok(built) = std::env::var("SOFTNIC_TEST_SHIM") {
        return built;
    }
    let built =
        cargo(&["test", "--package", "rdma-shim", "--test", "it", "--no-run", "--message-format", "json"]);
    let messages = built.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let named = |message: serde_json::Value| {
        let is_it = message["target"]["name"] == "it" && message["profile"]["test"] == true;
        message["executable"].as_str().filter(|_| is_it).map(str::to_owned)
    };
    messages.filter_map(named).next_back().expect("cargo names the program it built")
}

#[test]
fn the_shim_leaves_the_same_bytes_as_libmlx5_of_rdma_core_56() {
    let root = measure::need!(Root::unpacked(), "Debian 13's packages from this machine's mirror");
    let tests = shim_tests();
    // Both kinds of doorbell; libmlx5 reads the switch when the device is opened.
    for shut_up in ["0", "1"] {
        let fabric = Fabric::new(Layer::Roce).with_environment("MLX5_SHUT_UP_BF", shut_up);
        // A test that finds no device must fail here.
        let fabric = fabric.with_environment("REQUIRE", "all");
        let (output, counters) = fabric.run(&borrowed(&root.load(&tests, &["parity_of_libmlx5"])));
        assert!(output.contains("test result: ok. 3 passed"), "{output}");
        assert!(counters.libmlx5().starts_with(&root.path(LIBRARIES)), "{}", counters.libmlx5());
        assert!(counters.completed().len() >= 7, "every kind of request: {:?}", counters.completed());
    }
}
