//! The device under a mock driver: every operation, every error, every way to ring a doorbell wrongly.

mod answers;
mod capture;
mod datagrams;
mod delay;
mod dma_bufs;
mod duplex;
mod full_ring;
mod hostile;
mod hostile_network;
mod icrc;
mod lagging;
mod operations;
mod order;
#[path = "../../../roce/tests/it/pcap.rs"]
#[allow(dead_code, reason = "the packets alone are used here")]
mod pcap;
mod pieces;
mod rate;
mod read_once;
mod silence;
mod two;
mod windows_in_flight;
mod withdrawn;
