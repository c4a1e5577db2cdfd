//! Two programs as in two containers: network, process and mount namespaces of their own, no capability, and
//! the configuration that `packaging/container` gives its image.

use std::process::{Command, Stdio};
use std::time::Duration;

use measure::Hosts;

use crate::fabric::{launcher, scratch};
use crate::program::{Program, find};

/// What one end may take on a busy machine, each try of the client included.
const LIMIT: Duration = Duration::from_secs(60);

/// Starts `script` in a container on a side, with the launcher as its first argument.
fn start(hosts: &Hosts, side: usize, script: &str) -> Program {
    let mut words = hosts.enter(side);
    words.extend(
        [
            &["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"][..],
            &[
                "setpriv",
                "--inh-caps=-all",
                "--bounding-set=-all",
                "--no-new-privs",
                "sh",
                "-c",
                script,
                "sh",
            ],
        ]
        .concat()
        .into_iter()
        .map(str::to_owned),
    );
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).arg(launcher());
    let nic = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/container/nic.toml");
    command.env("SOFTNIC_NIC_TOML", nic);
    let output = scratch("containers").join(format!("{side}.txt"));
    Program::start(command, Stdio::null(), &format!("container {side}"), &output)
}

#[test]
fn two_containers_without_a_capability_write_to_each_other_with_no_option_but_the_link_layer() {
    measure::need!(find("ib_write_bw"), "perftest");
    let hosts = measure::need!(Hosts::new(1500), "network namespaces");
    let allowed = || {
        let mut empty = start(&hosts, 0, "true");
        empty.wait(LIMIT).and_then(|ended| ended.success().then_some(()).ok_or_else(|| empty.tail()))
    };
    measure::need!(allowed(), "process and mount namespaces");
    let server = "grep CapEff /proc/self/status; exec \"$1\" run --link-layer roce -- ib_write_bw";
    let [to, from] = Hosts::ADDRESSES;
    let client = format!(
        "for try in $(seq 100); do \"$1\" run --link-layer roce -- ib_write_bw {to} && exit; sleep 0.1; done; exit 1"
    );
    let mut server = start(&hosts, 0, server);
    let mut client = start(&hosts, 1, &client);
    for program in [&mut client, &mut server] {
        let ended = program.wait(LIMIT).unwrap_or_else(|why| panic!("{why}"));
        assert!(ended.success(), "{}\n{}", program.ending(), program.tail());
    }
    assert!(server.output().contains("CapEff:\t0000000000000000"), "{}", server.tail());
    let gid = from.split('.').map(|part| format!("{:0>2}", part)).collect::<Vec<_>>().join(":");
    assert!(client.output().contains(&format!("255:255:{gid}")), "{gid}: {}", client.tail());
}
