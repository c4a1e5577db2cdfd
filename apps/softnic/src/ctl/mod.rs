//! `softnic ctl`: its commands. What a NIC answers comes from `soft_nic::control`.

mod capture;
mod counters;
mod explain;
mod faults;
mod list;
mod nics;

use anyhow::Result;
use clap::{Args, Subcommand};

/// Watch or change the NIC of a running program.
#[derive(Debug, Args)]
#[command(
    override_usage = "softnic ctl COMMAND",
    arg_required_else_help = true,
    after_help = "A NIC is named by the PID of its process; `softnic ctl list` shows the PIDs. Only programs of the same user, \
                  in the same network and process namespace, can be reached. A program has a thread and a socket for \
                  this only while a command runs."
)]
pub struct Ctl {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// The processes that have a NIC: fabric, slot, pid, devices, ports and open QPs.
    List(list::List),
    /// The counters of a NIC since it started, named as in the --stats line, and of each port if several.
    Counters(counters::Show),
    /// Why commands, connections, queues and work requests failed, the last hundred.
    Explain(explain::Explain),
    /// Take a port down, or bring it up again.
    Link(faults::Link),
    /// Change loss, seed, delay and rates while the NIC runs.
    Set(faults::Set),
    /// Inject one fault: a request lost, an error CQE, a wrong ICRC, a late READ.
    Inject(faults::Inject),
    /// Write the packets of a NIC's wire to a pcapng file, for Wireshark and tshark.
    Capture(capture::Capture),
}

/// Does it.
pub fn run(ctl: &Ctl) -> Result<()> {
    match &ctl.action {
        Action::List(list) => list::run(list),
        Action::Counters(show) => counters::run(show),
        Action::Explain(explain) => explain::run(explain),
        Action::Link(link) => faults::link(link),
        Action::Set(set) => faults::set(set),
        Action::Inject(inject) => faults::inject(inject),
        Action::Capture(options) => capture::run(options),
    }
}
