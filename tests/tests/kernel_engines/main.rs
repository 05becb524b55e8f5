//! The same packets through the library in this process and through the eBPF object in the running kernel: bytes,
//! verdicts, departure times and the whole state of the tables must be the same to the last bit.

mod agreement;
mod events;
mod golden;
mod mutation;
mod pairing;
mod replay;
