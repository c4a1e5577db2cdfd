//! Tests of the engine as a whole; those of one table or type lie beside it.

mod described;
mod fuzz;
mod goodput;
mod hostile;
mod hostile_packets;
mod model;
mod pair;
mod qp_state;
mod requester;
mod responder;
mod services;
mod wire_matrix;
mod wire_requester;
mod wire_responder;
mod wire_services;
