//! `dcqcn run` as an operator has it: a file, interfaces that come and go, reloads, and a process that may die at any time.

mod control;
mod flows;
mod serving;
mod traffic;
