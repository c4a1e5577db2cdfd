//! Two `softnic` builds with different fabric layouts: the second is refused at once, naming both.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use soft_nic::link::VERSION;

use crate::c_program::verbs_program;
use crate::ctl::{SOON, ctl_refuses};
use crate::fabric::{Fabric, Layer};
use crate::program::within;

/// A process with the sealed memfd of another version's NIC, named by that version and its layout.
struct OtherVersion(Child);

impl OtherVersion {
    fn start(name: &str) -> OtherVersion {
        // memfd_create(2) with sealing, F_ADD_SEALS of shrink and grow (fcntl(2)); Debian has perl-base.
        let script = "my $fd = syscall(319, my $name = $ARGV[0], 2); open(my $it, '+<&=', $fd) or die; truncate($it, 4096) or die; \
                      fcntl($it, 1033, 6) or die; $| = 1; print \"ready\\n\"; sleep 600";
        let mut perl = Command::new("perl");
        let mut child = perl.args(["-e", script, name]).stdout(Stdio::piped()).spawn().expect("perl starts");
        let mut line = String::new();
        let out = child.stdout.take().expect("a pipe");
        BufReader::new(out).read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n");
        OtherVersion(child)
    }
}

impl Drop for OtherVersion {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Name of the memfd that a process has its fabric in.
fn directory_of(pid: u32) -> Option<String> {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten();
    let names = descriptors.filter_map(|it| {
        let target = std::fs::read_link(it.path()).ok()?;
        Some(target.to_str()?.strip_prefix("/memfd:")?.strip_suffix(" (deleted)")?.to_owned())
    });
    names.into_iter().find(|name| name.starts_with("softnic-fabric-"))
}

#[test]
fn a_program_of_another_version_is_refused_and_both_versions_are_named() {
    let program = measure::need!(verbs_program("open_device"), "C compiler and libibverbs-dev");
    let waits = measure::need!(verbs_program("leave_open"), "C compiler and libibverbs-dev");
    for layer in [&[][..], &["--path", "wire"]] {
        let fabric = Fabric::new(Layer::Roce).with_options(layer);
        let name = {
            let first = fabric.start(&[&waits, "3", "polling"]);
            let mut name = None;
            within(SOON, || {
                name = directory_of(first.program.pid());
                name.is_some()
            });
            name.unwrap_or_else(|| panic!("{}", first.program.tail()))
        };
        let theirs = name.replacen(&format!("-v{VERSION}-"), &format!("-v{}-", VERSION + 1), 1);
        assert_ne!(name, theirs);
        let other = OtherVersion::start(&theirs);
        let mut refused = fabric.start(&[&program]);
        let ended = refused.program.wait(SOON).unwrap_or_else(|why| panic!("{why}"));
        let said = refused.program.output();
        let pid = other.0.id();
        assert_eq!(ended.code(), Some(1), "{said}");
        let (newer, both) =
            (VERSION + 1, format!("in version {}, this softnic in version {VERSION} ", VERSION + 1));
        assert!(said.contains(&format!("process {pid} has fabric ")) && said.contains(&both), "{said}");
        ctl_refuses(
            &["counters", &pid.to_string()],
            &[&format!("version {newer}, this softnic has version {VERSION}")],
        );
        drop(other);
        assert!(fabric.run(&[&program]).0.contains("opened 1"));
    }
}
