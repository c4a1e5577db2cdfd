//! Tests of the engine as a whole; those of one table or type lie beside it.

mod hostile;
mod model;
mod packet_matrix;
mod packet_pair;
mod packet_requester;
mod packet_responder;
mod pair;
mod qp_state;
mod requester;
mod responder;
mod subject;
mod throughput;
