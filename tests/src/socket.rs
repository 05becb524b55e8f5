//! Raw sockets: whole frames out of, and in from, one interface.

pub use dcqcn_lab::frames::{PATIENCE, RawSocket, SILENCE};
