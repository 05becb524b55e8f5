//! Fuzzes `messages`.
#![no_main]

dcqcn_fuzz::program!(MESSAGES);
