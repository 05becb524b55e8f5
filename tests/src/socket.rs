//! Raw sockets: whole frames out of, and in from, one interface.

pub use dcqcn::net::frames::{PATIENCE, RawSocket, SILENCE};
