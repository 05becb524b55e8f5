//! Helpers for the tests.

pub mod both;
pub mod packets;
