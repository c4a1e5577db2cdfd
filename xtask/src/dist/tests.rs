//! The tarball: its version, what it asks for, headers, and the same bytes from the same files.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use measure::need;
use nix::unistd::geteuid;

use super::*;

#[test]
fn a_version_of_glibc_that_an_older_system_lacks_is_named() {
    let wanted = "  0x0020:   Name: GLIBC_2.34  Flags: none\n  Name: GLIBC_2.2.5  Flags\n Name: GLIBC_2.34\n Name: GLIBC_PRIVATE\n Name: GLIBC_2.31";
    assert_eq!(newer("softnic", wanted, GLIBC), ["softnic asks for glibc 2.34, newer than 2.31"]);
    assert_eq!(newer("softnic", wanted, (2, 34)), [""; 0]);
}

#[test]
fn the_version_names_the_revision_and_its_changes() {
    let revision = |commit: &str, dirty| Revision { commit: commit.into(), dirty };
    let own = env!("CARGO_PKG_VERSION");
    assert_eq!(version(&revision(&"ab".repeat(20), false)), format!("{own}+abababababab"));
    assert_eq!(version(&revision(&"ab".repeat(20), true)), format!("{own}+abababababab.changed"));
    assert_eq!(version(&revision("", true)), own);
}

#[test]
fn every_program_of_the_tarball_is_one_that_users_start() {
    let known: Vec<&str> = packages::apps().map(|package| package.name).collect();
    assert!(PACKAGES.iter().all(|name| known.contains(name)), "{known:?}");
    for headers in HEADERS {
        assert!(!workspace::names_in(&root().join(headers)).is_empty(), "{headers}");
    }
}

#[test]
fn every_program_of_the_tarball_brings_its_manual() {
    for name in programs() {
        assert!(man::programs().any(|(known, _)| known == name), "{name} has no manual");
    }
    // Stand-ins of all of them, of which one has no manual.
    let folder = std::env::temp_dir().join(format!("xtask-dist-man-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    for name in programs() {
        let writes = format!("#!/bin/sh\nmkdir -p $2/man/man1 && : > $2/man/man1/{name}.1\n");
        crate::process::script(&folder.join(name), if name == "generator" { "#!/bin/sh\n" } else { &writes });
    }
    let error =
        man::write(&folder, &programs().collect::<Vec<_>>(), &folder.join("share")).unwrap_err().to_string();
    assert!(error.starts_with("generator --write-manual wrote no "), "{error}");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_program_compiles_by_what_pkg_config_says_of_the_headers() {
    let found =
        |program: &str| Command::new(program).arg("--version").output().map(drop).map_err(|e| e.to_string());
    need!(found("pkg-config"), pkg_config, "pkg-config");
    need!(found("cc"), cc, "a C compiler");
    let folder = std::env::temp_dir().join(format!("xtask-dist-headers-{}", std::process::id()));
    headers(&folder, "1").unwrap();
    let mut ask = Command::new("pkg-config");
    ask.args(["--cflags", "doorbell"]).env("PKG_CONFIG_PATH", folder.join("lib/pkgconfig"));
    let flags = String::from_utf8(ask.output().unwrap().stdout).unwrap();
    let source = folder.join("user.c");
    fs::write(&source, "#include <doorbell.h>\n#include <slots.h>\nint main(void) { return 0; }\n").unwrap();
    let mut compile = Command::new("cc");
    compile.args(flags.split_whitespace()).args(["-Wall", "-Werror", "-fsyntax-only"]).arg(&source);
    let said = compile.output().unwrap();
    assert!(said.status.success(), "{flags}: {}", String::from_utf8_lossy(&said.stderr));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_crate_is_tested_by_the_attribute_of_the_tarball() {
    let out = std::env::temp_dir().join(format!("xtask-dist-rust-{}", std::process::id()));
    rust_tests(&out).unwrap();
    let (user, softnic, log) = (out.join("user"), out.join("softnic"), out.join("log"));
    fs::create_dir_all(user.join("tests")).unwrap();
    let manifest = "[package]\nname = \"user\"\nedition = \"2024\"\n\n[[test]]\nname = \"nic\"\n\n[dev-dependencies]\n\
                    softnic-test = { path = \"../softnic-test\" }\n";
    fs::write(user.join("Cargo.toml"), manifest).unwrap();
    let tests =
        "#[softnic_test::test(devices = 2)]\nfn holds() {}\n#[softnic_test::test]\nfn fails() { panic!() }\n";
    fs::write(user.join("tests/nic.rs"), tests).unwrap();
    let launcher = "echo \"$@\" >> $(dirname $0)/log; until [ $1 = -- ]; do shift; done; shift; exec \"$@\"";
    crate::process::script(&softnic, &format!("#!/bin/sh\n{launcher}\n"));
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["test", "--offline", "--target-dir"]).arg(out.join("target")).current_dir(&user);
    let said = cargo.env("SOFTNIC_TEST_LAUNCHER", &softnic).output().unwrap();
    let text = String::from_utf8_lossy(&said.stdout);
    assert!(text.contains("1 passed; 1 failed"), "{text}{}", String::from_utf8_lossy(&said.stderr));
    let log = fs::read_to_string(log).unwrap();
    assert!(log.lines().count() == 2 && log.contains("run --devices 2 --fabric test-"), "{log}");
    fs::remove_dir_all(out).unwrap();
}

#[test]
fn the_same_files_give_the_same_tarball_and_each_has_its_sum() {
    let out = std::env::temp_dir().join(format!("xtask-dist-pack-{}", std::process::id()));
    let mut all = Vec::new();
    for _ in 0..2 {
        let folder = out.join("a/include");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("x.h"), "int x;\n").unwrap();
        fs::write(out.join("a/README"), "read\n").unwrap();
        all.push(fs::read(pack(&out, "a").unwrap()).unwrap());
    }
    assert!(all[0] == all[1] && !all[0].is_empty());
    let sums = sums(&out.join("a")).unwrap();
    let paths: Vec<&str> = sums.lines().map(|line| &line[66..]).collect();
    assert_eq!(paths, ["README", "include/x.h"]);
    fs::remove_dir_all(out).unwrap();
}

#[test]
fn the_wheel_installs_its_command_and_the_same_files_give_the_same_wheel() {
    need!(pip(), pip, "pip");
    let out = std::env::temp_dir().join(format!("xtask-dist-wheel-{}", std::process::id()));
    let folder = out.join("files");
    fs::create_dir_all(&folder).unwrap();
    for name in [LIBRARY, "LICENSE", "parts.spdx.json"] {
        fs::write(folder.join(name), name).unwrap();
    }
    fs::write(folder.join("softnic"), "#!/bin/sh\necho \"stand-in $@\"\n").unwrap();
    let made = wheel(&out, &folder, "1.2+ab").unwrap();
    let first = fs::read(&made).unwrap();
    assert!(fs::read(wheel(&out, &folder, "1.2+ab").unwrap()).unwrap() == first);
    let there = installed(&made, &out);
    let mut run = Command::new(there.join("bin/softnic"));
    let said = run.args(["run", "--", "a"]).env("PYTHONPATH", &there).output().unwrap();
    assert_eq!(
        String::from_utf8_lossy(&said.stdout),
        "stand-in run -- a\n",
        "{}",
        String::from_utf8_lossy(&said.stderr)
    );
    fs::remove_dir_all(out).unwrap();
}

/// A Python with this module: the user's, or the system's, for set-up's packages. Error: neither has it.
fn python_with(module: &str) -> Result<&'static str, String> {
    let has = |python: &&str| {
        let said = Command::new(python).args(["-c", &format!("import {module}")]).output();
        said.is_ok_and(|said| said.status.success())
    };
    ["python3", "/usr/bin/python3"].into_iter().find(has).ok_or(format!("no python3 has {module}"))
}

/// Whether the Python that installs the wheel has pip.
fn pip() -> Result<(), String> {
    let said =
        Command::new("python3").args(["-m", "pip", "--version"]).output().map_err(|e| e.to_string())?;
    said.status.success().then_some(()).ok_or("no pip".into())
}

/// The plug-in's own tests, by pytest, over the NIC that users get.
#[test]
fn programs_run_on_a_fabric_under_pytest() {
    let softnic = std::env::var_os("CARGO_BIN_EXE_softnic")
        .map_or_else(|| target_dir().join("release/softnic"), PathBuf::from);
    let library = softnic.with_file_name(LIBRARY);
    let is_built =
        || (softnic.is_file() && library.is_file()).then_some(()).ok_or(softnic.display().to_string());
    need!(is_built(), softnic, "a release build of softnic");
    need!(pip(), pip, "pip");
    let python = need!(python_with("pytest"), pytest, "pytest");
    let perftest =
        || Command::new("ib_write_bw").arg("--version").output().map(drop).map_err(|e| e.to_string());
    need!(perftest(), perftest, "perftest");
    let out = std::env::temp_dir().join(format!("xtask-dist-pytest-{}", std::process::id()));
    let folder = out.join("files");
    fs::create_dir_all(&folder).unwrap();
    for (from, name) in [(&softnic, "softnic"), (&library, LIBRARY)] {
        fs::copy(from, folder.join(name)).unwrap();
    }
    for name in ["LICENSE", "parts.spdx.json"] {
        fs::write(folder.join(name), name).unwrap();
    }
    let there = installed(&wheel(&out, &folder, "1").unwrap(), &out);
    let tests = root().join("packaging/python/test_softnic.py");
    let mut pytest = Command::new(python);
    pytest
        .args(["-B", "-m", "pytest", "-q", "-p", "no:cacheprovider"])
        .arg(tests)
        .current_dir(&out)
        .env("PYTHONPATH", there);
    let said = pytest.output().unwrap();
    let text = String::from_utf8_lossy(&said.stdout);
    assert!(
        said.status.success() && text.contains("6 passed"),
        "{text}{}",
        String::from_utf8_lossy(&said.stderr)
    );
    let venv = Command::new("/usr/bin/python3").args(["-c", "import ensurepip, pytest"]).output();
    need!(venv.is_ok_and(|said| said.status.success()), venv, "python3-venv and python3-pytest");
    need!(Path::new("/usr/include/infiniband/verbs.h").is_file(), verbs, "libibverbs-dev");
    the_workflow_of_the_tutorial(&folder, &out);
    fs::remove_dir_all(out).unwrap();
}

/// Runs the steps of the tutorial's workflow as they stand, in a folder with the wheel, on another's NIC.
fn the_workflow_of_the_tutorial(nic: &Path, folder: &Path) {
    let page = fs::read_to_string(root().join("docs/tutorials/rdma-developer.md")).unwrap();
    let block = |behind: &str, language: &str| {
        let (_, rest) = page.split_once(behind).unwrap();
        let (_, shown) = rest.split_once(&format!("```{language}\n")).unwrap();
        shown.split_once("```").unwrap().0.to_owned()
    };
    fs::write(folder.join("hello.c"), block("Save this as `hello.c`", "c")).unwrap();
    fs::write(folder.join("test_hello.py"), block("Save this as `test_hello.py`", "python")).unwrap();
    let workflow = block("This workflow runs", "yaml");
    let mut steps: Vec<String> =
        workflow.lines().filter_map(|line| line.trim().strip_prefix("- run: ")).map(str::to_owned).collect();
    // A runner's packages are this machine's already.
    assert!(steps.remove(0).starts_with("sudo apt-get update && "));
    assert_eq!(steps.pop().unwrap(), "|");
    let last = workflow.split_once("- run: |\n").unwrap().1;
    steps.extend(last.lines().map(|line| line.trim().to_owned()));
    assert_eq!(steps.len(), 5, "{steps:?}");
    let path = format!("{}:{}", nic.display(), std::env::var("PATH").unwrap());
    for step in steps {
        let run = || {
            let mut bash = Command::new("bash");
            bash.args(["-ec", &step]).current_dir(folder).env("PATH", &path).output().unwrap()
        };
        // The page's test gives its program a second to begin, too little on a busy machine: it is run again.
        let is_right = |said: &std::process::Output| said.status.success();
        let said = (0..4).map(|_| run()).find(is_right).unwrap_or_else(run);
        let text = String::from_utf8_lossy(&said.stdout);
        assert!(is_right(&said), "{step}: {text}{}", String::from_utf8_lossy(&said.stderr));
        assert!(!step.ends_with("test_hello.py") || text.contains("3 passed"), "{text}");
    }
}

/// Where pip installs a wheel.
fn installed(wheel: &Path, out: &Path) -> PathBuf {
    let there = out.join("there");
    let mut install = Command::new("python3");
    install.args([
        "-m",
        "pip",
        "install",
        "--no-index",
        "--no-deps",
        "--quiet",
        "--disable-pip-version-check",
        "--target",
    ]);
    let said = install.arg(&there).arg(wheel).output().unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    there
}

/// The scripts of the CI action, as they stand there.
fn steps(action: &str) -> Vec<String> {
    let blocks = action.split("      run: |\n").skip(1);
    let lines = |block: &str| {
        block
            .lines()
            .map_while(|line| line.strip_prefix("        "))
            .fold(String::new(), |all, line| all + line + "\n")
    };
    blocks.map(lines).collect()
}

/// The tarball that `dist` made of this revision. That of a changed tree may be older than the last change:
/// it counts only if just made. Error: why there is none.
fn of_this_revision(revision: &Revision, folder: &Path, is_just_made: bool) -> Result<PathBuf, String> {
    let wanted = folder.join(name(&version(revision)) + ".tar.gz");
    let others = workspace::names_in(folder).into_iter().filter(|name| name.ends_with(".tar.gz"));
    match (wanted.is_file(), revision.dirty && !is_just_made) {
        (true, false) => Ok(wanted),
        (true, true) => Err(format!("{} may be older than the tree's changes", wanted.display())),
        (false, _) => Err(format!(
            "`cargo xtask dist` did not make {}; there are: {}",
            wanted.display(),
            others.reduce(|all, name| format!("{all}, {name}")).unwrap_or_else(|| "none".into())
        )),
    }
}

/// Whether `cargo xtask test --full` runs and has made the tarball.
fn is_just_made() -> bool {
    std::env::var_os("SOFTNIC_TEST_DIST").is_some()
}

fn packed() -> Result<PathBuf, String> {
    of_this_revision(&workspace::revision(), &target_dir().join("dist"), is_just_made())
}

/// A root of Debian 11, which is made once and kept, for one test at a time. Error: why it cannot be.
fn old_root() -> Result<(MutexGuard<'static, ()>, PathBuf), String> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let taken = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let root = target_dir().join("dist-root");
    let found = Command::new("debootstrap").arg("--version").output();
    found.map_err(|error| format!("debootstrap: {error}"))?;
    let own = Command::new("unshare").args(["--mount", "--pid", "--fork", "true"]).output();
    match own {
        Ok(own) if own.status.success() => {}
        own => return Err(format!("no right to make namespaces: {own:?}")),
    }
    if !root.exists() {
        trial::make(&root).unwrap();
    }
    Ok((taken, root))
}

#[test]
fn the_tarball_runs_in_a_bare_root_of_an_old_system_and_the_package_leaves_no_trace() {
    need!(is_just_made(), full, "`cargo xtask test --full`");
    let tarball = need!(packed(), dist, "the tarball of this revision");
    let (_taken, root) = need!(old_root(), debootstrap, "root and debootstrap");
    let version = version(&workspace::revision());
    let package = deb::file(tarball.parent().unwrap(), &version);
    trial::run(&root, &tarball, &name(&version), package.is_file().then_some(&*package)).unwrap();
}

#[test]
fn two_containers_of_the_image_write_to_each_other() {
    need!(is_just_made(), full, "`cargo xtask test --full`");
    let tarball = need!(packed(), dist, "the tarball of this revision");
    let (_taken, root) = need!(old_root(), debootstrap, "root and debootstrap");
    need!(container::can(), containers, "buildah and namespaces");
    let package = deb::file(tarball.parent().unwrap(), &version(&workspace::revision()));
    need!(package.is_file().then_some(()).ok_or("no dpkg-deb"), package, "the Debian package");
    let out = std::env::temp_dir().join(format!("xtask-dist-containers-{}", std::process::id()));
    container::trial(&root, &package, &out).unwrap();
    fs::remove_dir_all(out).unwrap();
}

#[test]
fn the_tarball_of_another_revision_is_not_taken_for_this_ones() {
    let folder = std::env::temp_dir().join(format!("xtask-dist-which-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let revision = |digit: &str, dirty| Revision { commit: digit.repeat(40), dirty };
    let made = |revision: &Revision| folder.join(format!("{}.tar.gz", name(&version(revision))));
    for (of, dirty) in [("a", false), ("b", false), ("b", true)] {
        fs::write(made(&revision(of, dirty)), "").unwrap();
    }
    let asked = |digit, dirty, is_just_made| of_this_revision(&revision(digit, dirty), &folder, is_just_made);
    assert_eq!(asked("a", false, false), Ok(made(&revision("a", false))));
    assert_eq!(asked("b", true, true), Ok(made(&revision("b", true))));
    assert!(
        asked("b", true, false)
            .unwrap_err()
            .ends_with(".changed-x86_64-linux.tar.gz may be older than the tree's changes")
    );
    let why = asked("c", false, true).unwrap_err();
    assert!(
        why.contains("+cccccccccccc-x86_64") && why.contains("there are: ") && why.contains("+aaaaaaaaaaaa-"),
        "{why}"
    );
    fs::remove_dir_all(&folder).unwrap();
    assert!(asked("a", false, true).unwrap_err().ends_with("there are: none"));
}

/// Aim for the set-up of the CI action on a quiet machine, and the factor allowed on a shared one.
const SET_UP_S: f64 = 30.0;
const SLOWER: f64 = 4.0;
/// The user `nobody`.
const NOBODY: u32 = 65534;

/// Bash without root's rights.
fn bash_of_nobody() -> Command {
    if !geteuid().is_root() {
        return Command::new("bash");
    }
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")]);
    command.args(["--clear-groups", "--no-new-privs", "bash"]);
    command
}

/// A folder that this user may write to.
fn of_nobody(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    if geteuid().is_root() {
        std::os::unix::fs::chown(folder, Some(NOBODY), Some(NOBODY)).unwrap();
    }
}

/// Runs a script of the action.
fn run_step(step: &str, tarball: &Path, out: &Path) -> std::process::Output {
    let mut bash = bash_of_nobody();
    bash.args(["-c", step]).env("RUNNER_TEMP", out).env("GITHUB_PATH", out.join("paths"));
    // That of the suite may lie in a folder of root's alone.
    bash.env("PATH", "/usr/bin:/bin");
    bash.env("TARBALL", tarball).output().unwrap()
}

/// Sets up from that tarball by these steps, and asks the program then on the path for its version.
fn set_up_from(tarball: &Path, steps: &[String], out: &Path) -> String {
    let since = Instant::now();
    for step in steps {
        let said = run_step(step, tarball, out);
        assert!(said.status.success(), "{}: {}", tarball.display(), String::from_utf8_lossy(&said.stderr));
    }
    let (steps, name) = (steps.len(), tarball.file_name().unwrap().to_string_lossy());
    let took = since.elapsed().as_secs_f64();
    let said = format!("{took:.2} s, at most {SET_UP_S} s are the aim");
    say!("set-up by {steps} steps of the CI action from {name}: {said}");
    assert!(took < SLOWER * SET_UP_S, "{said}");
    let folder = fs::read_to_string(out.join("paths")).unwrap();
    assert_eq!(folder, format!("{}\n", out.join("softnic").display()));
    let mut program = bash_of_nobody();
    program.args(["-c", "softnic --version"]).env("PATH", format!("{}:/usr/bin:/bin", folder.trim_end()));
    String::from_utf8_lossy(&program.output().unwrap().stdout).into_owned()
}

fn action() -> Vec<String> {
    let steps = steps(&fs::read_to_string(root().join("packaging/action/action.yml")).unwrap());
    assert_eq!(steps.len(), 2);
    steps
}

#[test]
fn the_steps_of_the_ci_action_unpack_the_tarball_of_this_revision() {
    let tarball = need!(packed(), dist, "the tarball of this revision");
    let listed = Command::new("ldconfig").arg("-p").output().map_err(|error| error.to_string());
    let listed = listed.map(|said| String::from_utf8_lossy(&said.stdout).into_owned()).unwrap_or_default();
    need!(
        listed.contains("libibverbs.so.1") && listed.contains("libmlx5.so.1"),
        mlx5,
        "libibverbs and libmlx5"
    );
    let out = std::env::temp_dir().join(format!("xtask-dist-packed-{}", std::process::id()));
    of_nobody(&out);
    // Where that user may read it.
    let copy = out.join(tarball.file_name().unwrap());
    fs::copy(&tarball, &copy).unwrap();
    let said = set_up_from(&copy, &action(), &out);
    assert!(said.starts_with("softnic "), "{}: {said}", tarball.display());
    fs::remove_dir_all(out).unwrap();
}

#[test]
fn the_steps_of_the_ci_action_unpack_a_tarball_and_refuse_a_damaged_one() {
    let out = std::env::temp_dir().join(format!("xtask-dist-action-{}", std::process::id()));
    let (folder, temp) = (out.join("doorbell-1"), out.join("temp"));
    fs::create_dir_all(&folder).unwrap();
    of_nobody(&temp);
    crate::process::script(&folder.join("softnic"), "#!/bin/sh\necho \"stand-in $@ of $(id -u)\"\n");
    fs::write(folder.join("SHA256SUMS"), sums(&folder).unwrap()).unwrap();
    let steps = action();
    let stand_in = pack(&out, "doorbell-1").unwrap();
    let user = if geteuid().is_root() { NOBODY } else { geteuid().as_raw() };
    assert_eq!(set_up_from(&stand_in, &steps[..1], &temp), format!("stand-in --version of {user}\n"));
    fs::remove_dir_all(temp.join("softnic")).unwrap();
    // A program of that name, as a hosted runner's long list and as one without the driver.
    let bin = out.join("bin");
    fs::create_dir_all(&bin).unwrap();
    let needed = ["libibverbs.so.1", "libmlx5.so.1"];
    for (lists, is_there) in [(&needed[..], true), (&needed[..1], false), (&[], false)] {
        let lines: Vec<String> = lists.iter().map(|name| format!("echo '\t{name} (libc6,x86-64)'")).collect();
        let text = format!("#!/bin/sh\n{}\nseq 100000\n", lines.join("\n"));
        crate::process::script(&bin.join("ldconfig"), &text);
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        let said = Command::new("bash").args(["-c", &steps[1]]).env("PATH", path).output().unwrap();
        assert_eq!(said.status.success(), is_there, "{lists:?} {said:?}");
    }
    // Its sums stay those of before.
    fs::write(folder.join("softnic"), "damaged\n").unwrap();
    pack(&out, "doorbell-1").unwrap();
    assert!(!run_step(&steps[0], &stand_in, &temp).status.success());
    fs::remove_dir_all(out).unwrap();
}
