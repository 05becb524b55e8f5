//! Priority flow control: what a neighbour's pauses mean for what is sent to it, and what is done when they never end.

pub mod watchdog;
