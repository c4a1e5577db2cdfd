//! The echo through the pipeline's slots in each mode. Both ends name the mode; questions have one length.
//!
//! Left out: UC, concurrent clients, arrival other than by receive completion. The inference server has them.

pub mod client;
mod waits;

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, bail};
use cli::sentence;
use pipeline::{Mode, Processor};
use serving::{Reply, SetupRequest, Transport};
use slots::{Geometry, Tensor, TensorKind};
use verbs::Context;
use verbs::connect::{Path, Session, Wait};

use crate::answers::Answers;
use crate::end::{SETUP, ServiceEnd};
use crate::options::Options;

use waits::{ARRIVAL, OnCpu, OnGpu, Waits};

/// A message of so many bytes, a multiple of 8, in its slot; the same each way.
fn geometry(bytes: u32) -> Result<Geometry> {
    let tensor = Tensor { kind: TensorKind::F32, count: bytes as usize / TensorKind::F32.bytes() };
    Ok(Geometry::new(0, &[tensor], &[tensor])?)
}

/// What a client of this mode wants.
fn setup_request(mode: Mode, geometry: &Geometry, slots: u32) -> SetupRequest {
    SetupRequest::new(mode.name(), geometry, slots as u16, ARRIVAL, Transport::Rc)
}

/// The service of a mode.
pub struct Service<'a> {
    options: &'a Options,
    mode: Mode,
    context: &'a Context,
    path: &'a Path,
    geometry: Geometry,
    /// None before the first client, and after a fault of what waits.
    waits: Option<Box<dyn Waits>>,
}

impl<'a> Service<'a> {
    pub fn new(
        options: &'a Options,
        mode: Mode,
        (context, path): (&'a Context, &'a Path),
        bytes: u32,
    ) -> Result<Service<'a>> {
        Ok(Service { options, mode, context, path, geometry: geometry(bytes)?, waits: None })
    }

    fn waits(&mut self) -> Result<&mut dyn Waits> {
        Ok(&mut **self.waits.as_mut().context("nothing waits for requests")?)
    }

    /// Gives a client its slots.
    fn grant(&mut self, setup_request: &SetupRequest) -> Result<Reply> {
        if setup_request.model != self.mode.name() {
            bail!("the mode {:?} is wanted, {} is served", setup_request.model, self.mode);
        }
        setup_request.check(&self.geometry)?;
        if (setup_request.arrival, setup_request.transport) != (ARRIVAL, Transport::Rc) {
            bail!("RC and {ARRIVAL:?} alone are served");
        }
        Ok(Reply::Granted(self.waits()?.grant(setup_request.slots)?))
    }

    fn try_join(&mut self, session: &mut Session, stop: &AtomicBool) -> Result<()> {
        let (path, setup) = (self.path, || Wait::at_most(SETUP).unless(stop));
        let setup_request: SetupRequest = session.receive("a set-up request", setup())?;
        let granted = self.grant(&setup_request);
        let reply = granted.as_ref().map_or_else(|error| Reply::Refused(sentence(error)), Reply::clone);
        session.send(&reply)?;
        granted?;
        self.waits()?.join(session, path, setup())?;
        Ok(session.barrier(setup())?)
    }

    /// Clears the client away: what came of it.
    fn leave(&mut self) -> Result<ServiceEnd> {
        let left = self.waits()?.leave();
        if left.is_err() {
            // Whatever has happened to it, the next client gets another one.
            self.waits = None;
        }
        left
    }
}

impl Answers for Service<'_> {
    fn prepare(&mut self) -> Result<()> {
        if self.waits.is_none() {
            let slots = self.options.window();
            self.waits = Some(match self.mode.waits() {
                Processor::Cpu => {
                    Box::new(OnCpu::new(self.options, self.mode, self.context, &self.geometry, slots)?)
                }
                Processor::Gpu => {
                    Box::new(OnGpu::new(self.options, self.mode, self.context, &self.geometry, slots)?)
                }
            });
        }
        Ok(())
    }

    fn join(&mut self, session: &mut Session, stop: &AtomicBool) -> Result<()> {
        let joined = self.try_join(session, stop);
        if joined.is_err() {
            self.leave()?;
        }
        joined
    }

    fn serve(&mut self, session: &mut Session, stop: &AtomicBool) -> Result<ServiceEnd> {
        let waits = self.waits()?;
        let ended = loop {
            match waits.turn(session) {
                Ok(true) if stop.load(Ordering::Relaxed) => break Ok(()),
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        let left = self.leave()?;
        // What a queue says of its end comes before what the end looked like.
        let error = left.error.or_else(|| ended.err().map(|error| sentence(&error)));
        Ok(ServiceEnd { error, ..left })
    }
}
