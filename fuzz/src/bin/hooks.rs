//! Fuzzes `hooks`.
#![no_main]

dcqcn_fuzz::program!(HOOKS);
