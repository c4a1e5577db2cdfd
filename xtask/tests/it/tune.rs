//! `tune.yml` and `restore.yml` on this machine, with a sysfs of files and stand-ins for a GPU's programs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use measure::need;

use crate::bed::ProgramOutput;

/// Two GPUs; one takes no application clocks while `/refuses` is there; each call is a line of `/calls`.
const NVIDIA_SMI: &str = r#"#!/bin/sh
here=$(dirname "$0")
case $1 in
--query*) printf '0000:1%s:00.0, Disabled, 1593, 1095, 2619, 1980\n' 7 8 ;;
*) echo "$*" >> "$here/calls"; case $* in *:17:*-ac*) test ! -e "$here/refuses" ;; esac ;;
esac
"#;

/// A folder with the sysfs, and what the playbooks leave.
struct Host(PathBuf);

impl Host {
    fn new(name: &str) -> Host {
        let host = Host(std::env::temp_dir().join(format!("xtask-tune-{}-{name}", std::process::id())));
        host.write("sys/class/net/eth0/mtu", "1500\n");
        for state in ["state1", "state10"] {
            host.write(&format!("sys/devices/system/cpu/cpu0/cpuidle/{state}/disable"), "0\n");
        }
        let place = host.0.display();
        host.write(
            "hosts.yml",
            &format!(
                "all: {{children: {{nodes: {{hosts: {{a: {{ansible_connection: local, host_interface: eth0, host_sys: {place}/sys, \
                 host_saved: {place}/saved, ansible_python_interpreter: /usr/bin/python3}}}}}}}}}}\n"
            ),
        );
        host
    }

    fn write(&self, file: &str, text: &str) {
        let file = self.0.join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    /// A program before those of the machine.
    fn stand_in(&self, name: &str, text: &str) {
        self.write(name, text);
        assert!(ProgramOutput::of(Command::new("chmod").arg("+x").arg(self.0.join(name))).ok);
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.0.join(file)).unwrap_or_default()
    }

    fn playbook(&self, playbook: &str, variables: &[&str]) -> ProgramOutput {
        let ansible = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("ansible");
        let mut command = Command::new("ansible-playbook");
        command.current_dir(ansible).arg("-i").arg(self.0.join("hosts.yml")).arg(playbook);
        command.args(["-e", &format!("tuned_file={}", self.0.join("tuned").display())]);
        // An option, as `--check`, is no variable.
        let option = |variable: &&&str| (!variable.starts_with("--")).then_some("-e");
        command.args(variables.iter().flat_map(|variable| option(&variable).into_iter().chain([*variable])));
        command.env("PATH", format!("{}:{}", self.0.display(), std::env::var("PATH").unwrap()));
        command
            .envs([("LC_ALL", "C.UTF-8"), ("ANSIBLE_NOCOLOR", "1")])
            .env("ANSIBLE_HOME", self.0.join("home"));
        ProgramOutput::of(&mut command)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn ansible() -> Result<(), String> {
    let said = Command::new("ansible-playbook").arg("--version").output();
    said.map(drop).map_err(|error| error.to_string())
}

#[test]
fn what_an_interrupted_run_left_is_restored_before_a_host_is_tuned_again() {
    need!(ansible(), ansible, "ansible-playbook");
    let host = Host::new("again");
    let mtu = |host: &Host| host.read("sys/class/net/eth0/mtu");
    for mtu_now in ["4200", "4100"] {
        let said = host.playbook("tune.yml", &["host_gpu=false", &format!("host_mtu={mtu_now}")]);
        assert!(said.ok, "{}", said.text);
        assert_eq!(mtu(&host), format!("{mtu_now}\n"));
        // The first idle states and a governor that is not there are not set.
        assert_eq!(host.read("tuned"), format!("a: state[1-9][0-9]/disable 1, eth0/mtu {mtu_now}\n"));
        assert!(host.read("saved").contains("eth0/mtu 1500\n"), "{}", host.read("saved"));
    }
    assert!(host.playbook("restore.yml", &[]).ok);
    assert_eq!((mtu(&host).as_str(), host.0.join("saved").exists()), ("1500\n", false));
    assert_eq!(host.read("sys/devices/system/cpu/cpu0/cpuidle/state10/disable"), "0\n");
}

#[test]
fn an_old_value_that_cannot_be_read_stops_the_tuning() {
    need!(ansible(), ansible, "ansible-playbook");
    let host = Host::new("unread");
    host.stand_in("cat", "#!/bin/sh\ncase $1 in *mtu) exit 1 ;; esac\nexec /bin/cat \"$@\"\n");
    let said = host.playbook("tune.yml", &["host_gpu=false"]);
    assert!(!said.ok, "{}", said.text);
    said.has(&["eth0/mtu cannot be read"]);
    assert!(!host.read("saved").contains("mtu"), "{}", host.read("saved"));
}

#[test]
fn a_gpu_that_takes_no_value_back_keeps_no_other_one_from_it() {
    need!(ansible(), ansible, "ansible-playbook");
    let host = Host::new("gpus");
    host.stand_in("nvidia-smi", NVIDIA_SMI);
    host.stand_in("modprobe", "#!/bin/sh\necho \"modprobe $*\" >> \"$(dirname \"$0\")/calls\"\n");
    let said = host.playbook("tune.yml", &[]);
    assert!(said.ok, "{}", said.text);
    let gpus = ["0000:17:00.0", "0000:18:00.0"];
    let set = gpus.map(|gpu| format!("{gpu}/persistence 1, {gpu}/clocks 2619,1980")).join(", ");
    assert!(host.read("tuned").ends_with(&format!("eth0/mtu 4200, {set}\n")), "{}", host.read("tuned"));
    host.write("refuses", "");
    host.write("calls", "");
    let said = host.playbook("restore.yml", &[]);
    assert!(!said.ok, "{}", said.text);
    said.has(&["not written back: 0000:17:00.0; the old values stay in "]);
    let calls = gpus.map(|gpu| format!("--id={gpu} -ac 1593,1095\n--id={gpu} -pm 0\n")).concat();
    assert_eq!(host.read("calls"), calls + "modprobe -r nvidia-peermem\n");
    fs::remove_file(host.0.join("refuses")).unwrap();
    assert!(host.playbook("restore.yml", &[]).ok);
    let left = ["saved", "saved.gpu", "saved.peermem"].map(|file| host.0.join(file).exists());
    assert_eq!(left, [false; 3]);
}

#[test]
fn a_host_whose_driver_lacks_nvidia_peermem_is_tuned_and_says_so() {
    need!(ansible(), ansible, "ansible-playbook");
    let host = Host::new("peermem");
    host.stand_in("nvidia-smi", NVIDIA_SMI);
    let modprobe = "#!/bin/sh\necho \"modprobe $*\" >> \"$(dirname \"$0\")/modprobes\"\nexit 1\n";
    host.stand_in("modprobe", modprobe);
    let said = host.playbook("tune.yml", &[]);
    assert!(said.ok, "{}", said.text);
    assert!(host.read("tuned").ends_with(", nvidia-peermem not loaded\n"), "{}", host.read("tuned"));
    let said = host.playbook("restore.yml", &[]);
    assert!(said.ok, "{}", said.text);
    assert_eq!(host.read("modprobes"), "modprobe nvidia-peermem\n", "what was not loaded is not unloaded");
}

#[test]
fn a_check_of_the_playbooks_that_measure_tune_and_restore_changes_nothing() {
    need!(ansible(), ansible, "ansible-playbook");
    let host = Host::new("check");
    host.stand_in("nvidia-smi", NVIDIA_SMI);
    host.stand_in("modprobe", "#!/bin/sh\ntouch \"$(dirname \"$0\")/calls\"\n");
    // Values that a restore without --check would write.
    host.write("saved", &format!("{}/sys/class/net/eth0/mtu 9000\n", host.0.display()));
    host.write("home/made", "");
    let out = format!("experiment_out={}", host.0.join("out").display());
    let prefix = format!("doorbell_prefix={}", host.0.join("opt").display());
    for book in ["figure4.yml", "tune.yml", "restore.yml"] {
        let said =
            host.playbook(book, &["--check", "tune=true", "experiment_address=192.0.2.1", &out, &prefix]);
        assert!(said.ok, "{book}: {}", said.text);
        let mut find = Command::new("find");
        find.arg(&host.0).args(["-newer"]).arg(host.0.join("home/made"));
        let written = ProgramOutput::of(find.args(["-type", "f", "-not", "-path", "*/home/*"])).text;
        assert_eq!(written, "", "{book}: {}", said.text);
    }
    assert_eq!(host.read("sys/class/net/eth0/mtu"), "1500\n");
}
