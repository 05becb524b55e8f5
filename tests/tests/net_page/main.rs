//! The page of `dcqcn-fleet serve`, in a real browser.

mod fleet;
mod host;
mod seen;
mod site;
