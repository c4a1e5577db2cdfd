//! What waits for a client's requests: this thread ([`OnCpu`]), or kernels ([`OnGpu`]).

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use echo::kernel::add::{self, Buffer, add_on_cpu};
use pipeline::cpu::{self, Memory};
use pipeline::gpu::by_cpu::{self, Turns};
use pipeline::gpu::{self, Pool, Repeat};
use pipeline::{End, Mode};
use serde::de::IgnoredAny;
use serving::{Arrival, Grant};
use slots::{Geometry, Server};
use verbs::connect::{ConnectError, Path, Session, Wait};
use verbs::{Context, QpType};

use crate::end::{LOOK, PATIENCE, SETUP, ServiceEnd};
use crate::options::Options;

/// How messages arrive: with the completion that their timer ends with.
pub const ARRIVAL: Arrival = Arrival::Completion;

/// Looks for requests between two looks at the client's connection.
const ROUNDS: u32 = 256;
/// Time between two looks for what kernels do when they look at it.
const PAUSE: Duration = Duration::from_micros(50);

/// Answers one client at a time, in the order of these calls.
pub trait Waits {
    /// Gives the next client slots, and makes its end.
    fn grant(&mut self, wanted: u16) -> Result<Grant>;
    /// Connects it, and serves it from now on.
    fn join(&mut self, session: &mut Session, path: &Path, wait: Wait<'_>) -> Result<()>;
    /// Serves it for a short time: false when it has gone. Errors: its queue pair's, and a kernel's.
    fn turn(&mut self, session: &mut Session) -> Result<bool>;
    /// Clears it away, however far it had come. Error: this serves no client any more.
    fn leave(&mut self) -> Result<ServiceEnd>;
}

fn grant(geometry: &Geometry, client: u32, granted: &[(u32, u32)]) -> Grant {
    Grant {
        client,
        model_id: geometry.model_id,
        first: granted.first().map_or(0, |slot| slot.0),
        sequences: granted.iter().map(|slot| slot.1).collect(),
        credits: granted.len() as u16,
    }
}

fn answered(answered: u64, refused: u64, failure: Option<String>) -> ServiceEnd {
    let refusals = (refused > 0).then(|| format!("{refused} requests were refused"));
    ServiceEnd { answered, error: failure.or(refusals) }
}

/// A thread waits, and a machine computes and posts where the mode says so.
pub struct OnCpu {
    context: Context,
    mode: Mode,
    served: cpu::Served,
    client: Option<u32>,
    end: Option<cpu::Endpoint>,
}

impl OnCpu {
    pub fn new(
        options: &Options,
        mode: Mode,
        context: &Context,
        geometry: &Geometry,
        slots: u32,
    ) -> Result<OnCpu> {
        let mut memory = Memory::new(geometry.clone(), slots)?;
        let mut offload: Option<Box<dyn cpu::Offload>> = None;
        if let Some(machine) = options.machine()? {
            memory = memory.shown_to(&machine)?;
            let buffer = Buffer::new(&machine, geometry.request.entries()[0].length)?;
            let at = [buffer.address()];
            let setting = by_cpu::Setting {
                slots: &memory,
                slot_count: slots,
                clients: 1,
                inputs: &at,
                outputs: &at,
                copying: copying(machine.is_gpu()),
            };
            let turns = Turns::new(&machine, &setting, buffer.model()?)?;
            offload = Some(Box::new(turns));
        }
        let served = cpu::Served::with(memory, slots, offload)?;
        Ok(OnCpu { context: context.clone(), mode, served, client: None, end: None })
    }
}

impl Waits for OnCpu {
    fn grant(&mut self, wanted: u16) -> Result<Grant> {
        let (client, granted) = self.served.grant(wanted)?;
        self.client = Some(client);
        let setting = cpu::Setting {
            mode: self.mode,
            kind: QpType::Rc,
            arrival: ARRIVAL,
            granted: &granted,
            is_traced: false,
        };
        self.end = Some(cpu::Endpoint::new(&self.context, self.served.memory(), &setting)?);
        Ok(grant(&self.served.memory().geometry, client, &granted))
    }

    fn join(&mut self, session: &mut Session, path: &Path, wait: Wait<'_>) -> Result<()> {
        let (client, mut end) = self.client.zip(self.end.take()).context("no slots are granted")?;
        end.connect(session, path, QpType::Rc, wait)?;
        self.served.admit(client, end);
        Ok(())
    }

    fn turn(&mut self, session: &mut Session) -> Result<bool> {
        for _ in 0..ROUNDS {
            let has_come = self.served.look();
            let mut model = |inputs: &[Vec<f32>], outputs: &mut Vec<Vec<f32>>| {
                add_on_cpu(inputs, outputs);
                Ok(())
            };
            if !(self.served.serve(Some(&mut model))? | has_come) {
                std::thread::yield_now();
            }
        }
        if let Some((_, why)) = self.served.failed().next() {
            bail!("{why}");
        }
        Ok(session.is_alive())
    }

    fn leave(&mut self) -> Result<ServiceEnd> {
        self.end = None;
        let Some(client) = self.client.take() else { return Ok(ServiceEnd::default()) };
        let endpoint = self.served.remove(client)?;
        let left = endpoint.map_or_else(ServiceEnd::default, |endpoint| {
            answered(endpoint.counts.answered, endpoint.counts.refused, endpoint.failure.clone())
        });
        self.served.withdraw(client)?;
        Ok(left)
    }
}

/// Kernels wait and compute, and a thread posts where the mode says so.
pub struct OnGpu {
    served: gpu::Served,
    /// Gives slots; no request passes it.
    slots: Server,
    pool: Arc<Pool>,
    client: Option<u32>,
    end: Option<gpu::Endpoint>,
    place: Option<u32>,
}

fn copying(is_gpu: bool) -> [u32; 2] {
    if is_gpu { [8, 256] } else { [1, 32] }
}

impl OnGpu {
    pub fn new(
        options: &Options,
        mode: Mode,
        context: &Context,
        geometry: &Geometry,
        slots: u32,
    ) -> Result<OnGpu> {
        let machine = options.machine()?.context("kernels wait")?;
        let buffer = Buffer::new(&machine, geometry.request.entries()[0].length)?;
        // The kernel that stays works in the slots.
        let at: &[u64] = if mode == Mode::GpuPersistent { &[] } else { &[buffer.address()] };
        let setting = gpu::Setting {
            geometry,
            slots,
            clients: 1,
            arrival: slots::Arrival::Completion,
            place: options.memory.place(),
            inputs: at,
            outputs: at,
            wait: PATIENCE,
            threads: if machine.is_gpu() { 512 } else { 32 },
            copying: copying(machine.is_gpu()),
        };
        let mut served = gpu::Served::posted_by(mode.posts(), &machine, setting)?;
        served.register_early(context).context("registering slots")?;
        match (mode, machine.is_gpu()) {
            (Mode::GpuPersistent, _) => {
                served.prepare_resident(add::resident(&machine, &served.tensors())?)?;
            }
            (Mode::GpuAhead, _) => served.prepare_ahead(buffer.model()?)?,
            (_, false) => served.prepare_by_cpu(move || buffer.add().map_err(|error| error.to_string()))?,
            (Mode::GpuWhile, true) => served.prepare_graph(Repeat::While, Box::new(buffer.recorded()?))?,
            (_, true) => served.prepare_graph(Repeat::Relaunch, Box::new(buffer.recorded()?))?,
        }
        served.start()?;
        let pool = Pool::new(&machine, context, slots, 1).posted_by(mode.posts());
        let slots = Server::new(geometry.clone(), slots);
        Ok(OnGpu { served, slots, pool: Arc::new(pool), client: None, end: None, place: None })
    }

    /// Starts the turns again that a queue has ended, which has failed. Error: of a kernel.
    fn go_on(&mut self) -> Result<()> {
        if !self.served.is_running()? {
            self.served.wait_end(SETUP)?;
            self.served.start()?;
        }
        Ok(())
    }
}

impl Waits for OnGpu {
    fn grant(&mut self, wanted: u16) -> Result<Grant> {
        let (client, granted) = self.slots.grant(wanted)?;
        self.client = Some(client);
        let slots = self.served.slots();
        self.end = Some(gpu::Endpoint::new(&slots, &self.pool, QpType::Rc, &granted)?);
        Ok(grant(slots.geometry(), client, &granted))
    }

    fn join(&mut self, session: &mut Session, path: &Path, wait: Wait<'_>) -> Result<()> {
        let end = self.end.as_mut().context("no slots are granted")?;
        end.connect(session, path, QpType::Rc, wait)?;
        let place = end.admit(&mut self.served)?;
        self.place = Some(place);
        Ok(self.served.wait_done(place, SETUP)?)
    }

    fn turn(&mut self, session: &mut Session) -> Result<bool> {
        match session.receive::<IgnoredAny>("its end", Wait::at_most(LOOK)) {
            Err(ConnectError::Deadline { .. }) => {}
            Err(ConnectError::Closed { .. }) => return Ok(false),
            Err(error) => return Err(error.into()),
            Ok(_) => bail!("it said something where nothing is to be said"),
        }
        self.go_on()?;
        let failure = self.place.map(|place| self.served.failure(place)).transpose()?.flatten();
        failure.map_or(Ok(true), |failure| bail!("{failure}"))
    }

    fn leave(&mut self) -> Result<ServiceEnd> {
        let mut left = ServiceEnd::default();
        if let Some(place) = self.place.take() {
            let since = Instant::now();
            while !self.served.is_gone(place) {
                if since.elapsed() > SETUP {
                    bail!("the kernels have not let the client go for {SETUP:?}");
                }
                self.go_on()?;
                self.served.let_go(place)?;
                std::thread::sleep(PAUSE);
            }
            let failure = self.served.failure(place)?.map(|failure| failure.to_string());
            let end = self.end.as_mut().context("its end is not here")?;
            let [all, refused] = end.leave(&mut self.served, place)?;
            left = answered(all.saturating_sub(refused), refused, failure);
        }
        self.end = None;
        if let Some(client) = self.client.take() {
            self.slots.withdraw(client)?;
        }
        Ok(left)
    }
}
