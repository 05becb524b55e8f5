//! The page of `dcqcn-fleet serve`, in a real browser.

mod fixture;
mod fleet;
mod host;
