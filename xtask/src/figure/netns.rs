//! `--where netns`: a transfer between the two nodes of a testbed, which is brought up for the run and removed after it.
//!
//! `ansible/site.yml` sets the nodes up; then each point's sender runs on the first node by ssh, its receiver on the second.
//! Posters of a GPU are left out, and the sender's busy threads are not counted.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use experiment::{Experiment, Spec};
use measure::Others;

use super::nic::{PORT, Receiver};
use super::{Nic, Options, Programs};
use crate::process::{Speaking, WAIT};
use crate::refused::refused;
use crate::testbed::{self, Node, Testbed, playbook};
use crate::{stop, workspace};

/// Port of sshd on the nodes.
const SSH_PORT: u16 = 2222;
/// Where the doorbell role of the playbook puts programs and the NIC's configuration.
const PREFIX: &str = "/opt/doorbell";

/// Both nodes, as a figure uses them.
#[derive(Clone, Debug)]
pub struct Nodes(Testbed);

impl Nodes {
    /// The generator on the software NIC of the first node; options follow.
    pub fn sender(&self) -> Command {
        let [sender, _] = self.0.nodes();
        self.generator(&sender)
    }

    fn generator(&self, Node { name, address, .. }: &Node) -> Command {
        let mut command = Command::new(self.0.ssh());
        command.arg(name).arg(format!("{PREFIX}/bin/softnic")).args(["run", "--config"]);
        command.arg(format!("{PREFIX}/nic.toml")).args(["--ipv4", address, "--"]);
        command.arg(format!("{PREFIX}/bin/generator"));
        command
    }

    /// Starts the receiver on the second node, which serves every point.
    pub fn receiver(&self, logs: &Path) -> Result<Receiver> {
        let [_, receiver] = self.0.nodes();
        let address = format!("{}:{PORT}", receiver.address);
        let mut command = self.generator(&receiver);
        command.args(["--listen", &address, "--nic", "mlx5_0", "--sessions", "0", "--json", "-"]);
        let mut session = Speaking::start(&mut command, &logs.join("receiver.log"))?;
        let listening = session.json("listening", WAIT);
        listening.with_context(|| format!("starting the receiver on {}", receiver.name))?;
        Ok(Receiver::standing(address, session))
    }

    /// Begins to count what programs beside the nodes' take; the answer is in cores. No process of a node is waited for here.
    pub fn others(&self) -> impl Fn() -> Option<f64> {
        let (others, testbed, before) = (Others::watch(), self.0.clone(), testbed::seconds(&self.0));
        move || others.as_ref()?.cores_beside(testbed::seconds(&testbed) - before)
    }
}

/// What a run on nodes changes in the spec. Error: an option that means a card or the committed results.
pub fn prepare(spec: &mut Spec, options: &Options) -> Result<()> {
    for (given, option) in [(options.nic.is_some(), "--nic"), (options.record, "--record")] {
        if given {
            return Err(refused(format!(
                "--where netns: the nodes have the software NIC; leave {option} out"
            )));
        }
    }
    spec.nic.insert("path".into(), "wire".into());
    spec.nic.insert("link_layer".into(), "roce".into());
    spec.keep(|series| !experiment::point::needs_gpu(series));
    Ok(())
}

/// Refuses what cannot be made, before minutes of building; returns the testbed of a run.
pub fn testbed(out: &Path) -> Result<Testbed> {
    testbed::allowed()?;
    Testbed::at(&out.join("testbed"))
}

/// Brings a testbed up, sets it up by the playbook, measures on it, and removes it, however that ended.
pub fn execute(experiment: &Experiment, options: &Options, out: &Path) -> Result<()> {
    let testbed = testbed(out)?;
    // Of a run that was killed: the lock of `out` says that nothing uses it.
    testbed::clear(&testbed)?;
    testbed::up(&testbed, SSH_PORT)?;
    let measured = measure(&testbed, experiment, options, out);
    let removed = testbed::down(&testbed);
    stop::removes_nothing();
    match (measured, removed) {
        (Err(error), Err(left)) => Err(error.context(format!("{left:#}"))),
        (measured, removed) => measured.and(removed),
    }
}

fn measure(testbed: &Testbed, experiment: &Experiment, options: &Options, out: &Path) -> Result<()> {
    // Written into `out` as a run on this host writes it, and copied from there.
    let _ = Nic::configured(&experiment.spec.nic, out)?;
    let programs = Programs::release();
    let of = |path: &Path| std::path::absolute(path).map(|path| path.display().to_string());
    let variables = [
        format!("doorbell_programs={}", of(&workspace::programs())?),
        format!("doorbell_nic_config={}", of(&out.join("nic.toml"))?),
    ];
    say!("setting both nodes up by ansible/site.yml");
    playbook::run(testbed, "site.yml", &variables, &out.join("logs/site.log"))?;
    let nic = Nic::Nodes(Nodes(testbed.clone()));
    super::execute_on(&nic, None, experiment, options, out, &programs)
}
