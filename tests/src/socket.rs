//! Raw sockets that send and receive whole frames at one interface.

pub use dcqcn_replay::frames::{RawSocket, SILENCE, TIMEOUT};
