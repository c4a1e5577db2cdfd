//! Explorer of orders of stores to WQE, record and register: tries every interleaving of a small program.
//!
//! `cargo run -p order-explorer` prints the tables of `docs/orders.md`. With part of a row's name as argument
//! (`-- DeepEP`), it prints the failing interleavings of those rows, step by step.
//! Modelled: operations that overtake each other as the thread's machine allows, fences and scopes,
//! independent stores in flight to host memory, GPU memory and BAR, and a NIC that fetches on the register or
//! on the record, which it may reread at any time. Assumed: [`program::Assumptions`]. Left out: BlueFlame,
//! payload of a send, wrapping indices.

#![forbid(unsafe_code)]

mod atomics;
mod device;
mod explore;
mod memory;
mod ours;
mod peers;
mod program;
mod queue;
mod rows;
mod rules;
mod sharing;
mod table;
#[cfg(test)]
mod tests;

use std::process::ExitCode;

fn main() -> ExitCode {
    let wanted = std::env::args().skip(1).collect::<Vec<_>>().join(" ");
    if ["--help", "-h"].contains(&wanted.as_str()) {
        println!(
            "order-explorer [PART OF A NAME]: all tables, or the failing interleavings of the rows with it in their names"
        );
        return ExitCode::SUCCESS;
    }
    if wanted.is_empty() {
        print!("{}", table::all().join("\n"));
        return ExitCode::SUCCESS;
    }
    let traces = table::traces(&wanted);
    if traces.is_empty() {
        eprintln!("order-explorer: no row has {wanted:?} in its name; without an argument all are printed");
        return ExitCode::from(2);
    }
    print!("{traces}");
    ExitCode::SUCCESS
}
