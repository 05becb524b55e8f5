//! Fuzzes `config`.
#![no_main]

dcqcn_fuzz::program!(CONFIG);
