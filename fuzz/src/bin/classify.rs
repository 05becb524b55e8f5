//! Fuzzes `classify`.
#![no_main]

dcqcn_fuzz::program!(CLASSIFY);
