//! Helpers for the tests.
