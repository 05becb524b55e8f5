//! Fuzzes `sonic`.
#![no_main]

dcqcn_fuzz::program!(SONIC);
