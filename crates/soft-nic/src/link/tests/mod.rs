//! Tests of the link between processes and within one.

mod absent;
mod crowded;
mod dma_bufs;
mod hostile;
mod layout;
mod lifecycle;
mod messages;
mod ports;
mod processes;
mod speed;
mod turns;
mod visibility;
