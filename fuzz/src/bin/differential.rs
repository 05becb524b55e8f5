//! Fuzzes `differential`.
#![no_main]

dcqcn_fuzz::program!(DIFFERENTIAL);
