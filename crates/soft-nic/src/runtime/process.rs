//! The NIC of one process: the device with its link behind the command server, and the threads driving them.
//!
//! These block all signals but those a thread raises itself, so the program's handlers never run there.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mlx5_device::Answer;
use roce::Now;

use super::thread::{DRAINING, PATIENCE, Report, Shared, leaving};
use crate::Nic;
use crate::abi::events::Events;
use crate::abi::server::Server;
use crate::config::Config;
use crate::control::ControlServer;
use crate::dma::{Copiers, Host};
use crate::link::fabric::Fabric;
use crate::link::{Link, LinkConfig};
use crate::os::signals::{NIC_THREAD, faults_recoverable, spawn, unblock_faults};
use crate::os::{locked, log, system};
use crate::rdma_cm::{CmTimeouts, Manager};
use crate::sysfs::Machine;

/// Why a process got no NIC.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Config(#[from] mlx5_device::config::NicConfigError),
    #[error(transparent)]
    Link(#[from] crate::link::LinkError),
    #[error("starting the NIC: {}", .0.raw_os_error().map_or_else(|| .0.to_string(), system::refusal))]
    Kernel(#[from] std::io::Error),
}

pub struct Process {
    pub server: Arc<Server<Nic>>,
    waker: Arc<Fabric>,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Process {
    /// Takes a fabric slot and starts the thread, which gives `publish` the report for [`Process::leave`].
    ///
    /// Errors: one line for the user.
    pub fn start(
        config: Config,
        machine: Machine,
        publish: impl FnOnce(&Report) + Send + 'static,
    ) -> Result<Self, StartError> {
        let memory = Host::new()?;
        let link_config = LinkConfig {
            fabric: config.fabric.clone(),
            addresses: config.wire_addresses(),
            copiers: Copiers::new(config.copy_helpers(system::allowed_cores())),
            ..LinkConfig::default()
        };
        let link = Link::join(link_config)?;
        let (waker, epoll, router) = (link.waker(), link.epoll(), link.mad_router());
        let events = Events::default();
        let now = Now(system::monotonic_ns());
        let mut nic = Nic::new(&config, memory, link, Box::new(events.clone()), Box::new(log), now)?;
        nic.stamp_by(|| Now(system::monotonic_ns()));
        let server = Arc::new(Server::new(&config, machine, nic, events, Box::new(memory))?);
        let timeouts = CmTimeouts { response_timeout: config.cm_timeout, max_retries: config.cm_retries };
        let reasons = server.events.1.clone();
        let manager = Manager::new(server.ports.clone(), timeouts, router, Box::new(memory), reasons);
        let shared = Arc::new(Shared::new(ControlServer::new(server.clone(), manager)));
        if let Some(epoll) = epoll {
            let (waker, shared) = (waker.clone(), shared.clone());
            spawn(NIC_THREAD, move || shared.watch_ports(&epoll, &waker))?;
        }
        let of_thread = shared.clone();
        let thread = spawn(NIC_THREAD, move || of_thread.run(publish));
        // The thread that waits for packets is not needed for a NIC without a thread.
        let thread = thread.inspect_err(|_| shared.stop.store(true, Ordering::Release))?;
        Ok(Self { server, waker, shared, thread: Mutex::new(Some(thread)) })
    }

    /// Runs a command. The thread stands back meanwhile, and looks right after it.
    pub fn command<T>(&self, run: impl FnOnce(&Server<Nic>) -> T) -> T {
        let _faults = unblock_faults();
        let announced = self.server.nic.announce();
        let answer = run(&self.server);
        drop(announced);
        self.waker.rouse();
        answer
    }

    /// Opens the connection manager's device: the number of the open file, and the program's descriptor.
    pub fn open_manager(&self) -> Answer<(u32, RawFd)> {
        self.shared.control.manager.open()
    }

    /// Runs something of the connection manager.
    pub fn manage<T>(&self, run: impl FnOnce(&Manager) -> T) -> T {
        let _faults = unblock_faults();
        run(&self.shared.control.manager)
    }

    /// One round of the NIC on the program's time. Returns how long it took, ns: 0 where another thread has
    /// the NIC, or this one blocks fault signals.
    pub fn pump(&self) -> u64 {
        if !faults_recoverable() {
            return 0;
        }
        self.shared.pumped.fetch_add(1, Ordering::Relaxed);
        let mut begun = None;
        let whole = self.server.nic.attempt(|nic| {
            // With the lock: what the thread sent last is delayed from a time that was read after it.
            let now = system::monotonic_ns();
            begun = Some(now);
            nic.poll(Now(now));
        });
        if !whole {
            // The NIC's thread finds the NIC stopped, and logs it.
            self.waker.rouse();
        }
        begun.map_or(0, |begun| system::monotonic_ns().saturating_sub(begun))
    }

    /// The program ends where it may take no lock and allocate no memory (say, a signal handler). The thread
    /// reports; the caller waits for it, at most [`PATIENCE`], and [`DRAINING`] more while something delayed
    /// is in flight. What was interrupted stays so: if it holds what the thread needs, the report is lost.
    pub fn leave(&self) {
        let word = &self.shared.leaving;
        if self.shared.claimed.swap(true, Ordering::AcqRel)
            || word
                .compare_exchange(leaving::NOT, leaving::ASKED, Ordering::AcqRel, Ordering::Acquire)
                .is_err()
        {
            return;
        }
        self.waker.rouse();
        let begun = system::monotonic_ns();
        loop {
            let stands = word.load(Ordering::Acquire);
            let patience = match stands {
                leaving::ASKED => PATIENCE,
                leaving::DRAINS => PATIENCE + DRAINING,
                _ => return,
            };
            let left = (begun + patience.as_nanos() as u64).saturating_sub(system::monotonic_ns());
            if left == 0 {
                return;
            }
            system::futex_wait(word, stands, Duration::from_nanos(left));
        }
    }

    /// The program ends: stops the thread, sends answers that are due, reports. `None`: another thread does.
    pub fn end(&self) -> Option<Report> {
        if self.shared.claimed.swap(true, Ordering::AcqRel) {
            return None;
        }
        let _faults = unblock_faults();
        self.shared.control.manager.end();
        self.shared.stop.store(true, Ordering::Release);
        let deadline = Instant::now() + PATIENCE;
        let thread = locked(&self.thread).take();
        while let Some(thread) = &thread
            && !thread.is_finished()
            && Instant::now() < deadline
        {
            self.waker.rouse();
            std::thread::sleep(Duration::from_micros(50));
        }
        Some(self.shared.report(self.shared.thread_ns.load(Ordering::Acquire), deadline, || ()))
    }
}
