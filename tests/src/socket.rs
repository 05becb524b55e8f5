//! Raw sockets: whole frames out of, and in from, one interface.

pub use dcqcn_engine::frames::{PATIENCE, RawSocket, SILENCE};
