//! Library and kernel agree: packets run through the library in this process and the eBPF object in the running kernel.
//!
//! Bytes, verdicts, departure times and the whole state of the tables must be equal to the last bit.

mod agreement;
mod mutation;
mod replay;
