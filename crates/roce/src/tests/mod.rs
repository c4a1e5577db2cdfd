//! Tests of the engine as a whole; those of one table or type lie beside it.

mod described;
mod fuzz;
mod goodput;
mod hostile;
mod model;
mod packet_hostile;
mod packet_matrix;
mod packet_requester;
mod packet_responder;
mod packet_services;
mod pair;
mod qp_state;
mod requester;
mod responder;
mod services;
