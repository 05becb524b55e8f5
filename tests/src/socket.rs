//! Raw sockets: whole frames out of, and in from, one interface.

pub use dcqcn_replay::frames::{PATIENCE, RawSocket, SILENCE};
