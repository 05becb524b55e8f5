//! Fuzzes `capture`.
#![no_main]

dcqcn_fuzz::program!(CAPTURE);
