//! The image of `packaging/container`, and two containers of it on one bridge.
//!
//! Built by buildah without a registry, started by `unshare(1)` and `setpriv(1)`: each container has its own
//! network, process and mount namespaces, no capability, and only the image's variables. Everything is in a
//! network namespace of the trial, and is gone with it. Left out: cgroups, seccomp, a runtime.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::trial::shows_rate;
use crate::files;
use crate::process::{output, said};
use crate::workspace::root;

const RECIPE: &str = "packaging/container";
/// What the recipe's folder gives the build.
const FILES: [&str; 2] = ["Containerfile", "nic.toml"];
const IMAGE: &str = "softnic";
/// Longer than a build and a trial take on a busy machine.
const LIMIT: Duration = Duration::from_secs(300);

/// Builds the image: the root and the package of the arguments, both containers' roots on the last lines.
const BUILD: &str = r#"set -e
tar -C "$1" --exclude='./proc/*' --exclude='./sys/*' --exclude='./dev/*' --exclude='./tmp/*' -cf root.tar .
buildah="buildah --storage-driver vfs --root $PWD/storage --runroot $PWD/run"
$buildah build --isolation chroot --quiet -t IMAGE . >&2
$buildah inspect --format '{{range .OCIv1.Config.Env}}{{println .}}{{end}}' --type image IMAGE > environment
for n in 1 2; do $buildah mount "$($buildah from IMAGE)"; done"#;

/// Two hosts on a bridge, as an engine of containers joins them; the arguments are their roots.
const TRIAL: &str = r#"set -e
mount -t tmpfs tmpfs /run
ip link add bridge0 type bridge && ip link set bridge0 up
for n in 1 2; do
    ip netns add c$n
    ip link add port$n type veth peer name eth0 netns c$n
    ip link set port$n master bridge0 up
    ip -n c$n addr add 10.88.0.$n/24 dev eth0
    ip -n c$n link set lo up && ip -n c$n link set eth0 up
done
container() {
    n=$1 root=$2; shift 2
    ip netns exec c$n unshare --mount --pid --fork --kill-child sh -c '
        root=$1; shift
        mount -t proc proc "$root/proc" && mount --rbind /dev "$root/dev"
        exec env -i $(cat environment) chroot "$root" setpriv --reuid 65534 --regid 65534 --clear-groups \
            --inh-caps=-all --bounding-set=-all --no-new-privs "$@"' sh "$root" "$@"
}
container 1 "$1" sh -c 'echo capabilities $(grep CapEff /proc/self/status)'
container 1 "$1" softnic run --link-layer roce -- ib_write_bw > server.txt 2>&1 & server=$!
for try in $(seq 50); do container 2 "$2" softnic run --link-layer roce -- ib_write_bw 10.88.0.1 && break; sleep 0.2; done
wait $server && echo BOTH ENDED"#;

/// Builds the image of that root and package, and lets two containers of it write to each other.
pub(super) fn trial(rootfs: &Path, package: &Path, out: &Path) -> Result<()> {
    let folder = out.join("softnic-container");
    files::remove(&folder)?;
    for name in FILES {
        files::copy(&root().join(RECIPE).join(name), &folder.join(name))?;
    }
    files::copy(package, &folder.join("softnic.deb"))?;
    let mut build = Command::new("sh");
    build.current_dir(&folder).args(["-c", &BUILD.replace("IMAGE", IMAGE), "sh"]).arg(rootfs.canonicalize()?);
    let mounted = output(&mut build, LIMIT).context("building the image")?;
    let roots: Vec<&str> = mounted.lines().filter(|line| line.starts_with('/')).collect();
    ensure!(roots.len() == 2, "buildah mounted {mounted:?}");
    let mut run = Command::new("unshare");
    run.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    run.args(["sh", "-c", TRIAL, "sh"]);
    let said = output(run.args(roots).current_dir(&folder), LIMIT).context("two containers")?;
    said.lines().for_each(|line| say!("  {line}"));
    let problems = missing(&said);
    let server = fs::read_to_string(folder.join("server.txt")).unwrap_or_default();
    ensure!(problems.is_empty(), "containers: {}\n{server}", problems.join("; "));
    files::remove(&folder)?;
    say!("containers: two without a capability, on one bridge, wrote to each other");
    Ok(())
}

/// Whether images can be built and namespaces made here. Error: which program or right lacks.
pub(super) fn can() -> Result<(), String> {
    for (words, what) in [
        (&["buildah", "--version"][..], "buildah (package buildah)"),
        (&["setpriv", "--version"], "setpriv (package util-linux)"),
        (
            &["unshare", "--net", "--mount", "--pid", "--fork", "true"],
            "the right to make namespaces (CAP_SYS_ADMIN, as root has)",
        ),
        (
            &["unshare", "--net", "ip", "link", "add", "name", "bridge0", "type", "bridge"],
            "the right to make a bridge (CAP_NET_ADMIN, and the kernel's module)",
        ),
    ] {
        let tried = said(Command::new(words[0]).args(&words[1..]));
        tried.map_err(|error| format!("{what} lacks: {error:#}"))?;
    }
    Ok(())
}

/// What the containers did not show.
fn missing(said: &str) -> Vec<&'static str> {
    let all = [
        (said.contains("capabilities CapEff: 0000000000000000"), "a container has capabilities"),
        (
            said.contains("GID: 00:00:00:00:00:00:00:00:00:00:255:255:10:88:00:02"),
            "the client's GID is not its address",
        ),
        (shows_rate(said), "ib_write_bw shows no rate"),
        (said.lines().any(|line| line == "BOTH ENDED"), "the server did not end well"),
    ];
    all.into_iter().filter_map(|(is_there, what)| (!is_there).then_some(what)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_that_do_not_show_what_they_should_are_named() {
        let said = "capabilities CapEff: 0000000000000000\n GID: 00:00:00:00:00:00:00:00:00:00:255:255:10:88:00:02\n \
                    65536      5000             300.00            290.50		   0.046\nBOTH ENDED\n";
        assert_eq!(missing(said), [""; 0]);
        assert_eq!(missing(&said.replace("CapEff: 0", "CapEff: f")), ["a container has capabilities"]);
        assert_eq!(missing(&said.replace("88:00:02", "00:00:01")), ["the client's GID is not its address"]);
        assert_eq!(missing(&said.replace("290.50", "0.00")), ["ib_write_bw shows no rate"]);
        assert_eq!(missing(&said.replace("BOTH", "NEITHER")), ["the server did not end well"]);
    }

    #[test]
    fn the_recipe_takes_no_file_that_the_trial_does_not_give_it() {
        let recipe = fs::read_to_string(root().join(RECIPE).join("Containerfile")).unwrap();
        let taken = recipe.lines().filter_map(|line| {
            let mut words = line.split_whitespace();
            matches!(words.next(), Some("ADD" | "COPY")).then(|| words.next().unwrap_or_default())
        });
        let given = ["root.tar", "softnic.deb", "nic.toml"];
        assert_eq!(taken.collect::<Vec<_>>(), given);
        assert!(
            FILES.iter().all(|name| root().join(RECIPE).join(name).is_file())
                && recipe.contains("\nFROM scratch\n")
        );
    }
}
