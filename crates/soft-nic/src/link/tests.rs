//! Tests of the link.
