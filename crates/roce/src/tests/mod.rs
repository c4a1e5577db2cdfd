//! Tests of the engine as a whole; those of one table or type lie beside it.
