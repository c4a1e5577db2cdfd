//! Explorer of the orders in which WQE, doorbell record and register are written: tries every interleaving of a small program.
//!
//! `cargo run -p order-explorer` prints the tables of `docs/orders.md`; with part of a row's name behind it
//! (`-- DeepEP`), the failing interleavings of those rows, step by step.
//! What is modelled: threads whose operations overtake each other as their machine allows, fences and scopes, stores on their
//! way to host memory, GPU memory and BAR, each by itself, and a NIC that fetches on the register or on the record, which it
//! may read again at any time. What is assumed: [`program::Assumptions`]. Left out: BlueFlame, payload of a send, indices
//! that wrap.

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
