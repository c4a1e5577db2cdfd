//! The device under a mock driver: every operation, every error, every way to ring a doorbell wrongly.

mod answers;
mod capture;
mod changed;
mod commands;
mod datagrams;
mod delay;
mod dma_bufs;
mod doorbells;
mod duplex;
mod errors;
mod faults;
mod full_ring;
mod hostile;
mod hostile_network;
mod impairment;
mod lagging;
mod limits;
mod operations;
mod order;
#[path = "../../../roce/tests/it/pcap.rs"]
#[allow(dead_code, reason = "the packets alone are used here")]
mod pcap;
mod pieces;
mod ports;
mod ports_down;
mod queues;
mod rate;
mod read_once;
mod reasons;
mod shared_receive;
mod windows;
mod windows_in_flight;
mod withdrawn;
