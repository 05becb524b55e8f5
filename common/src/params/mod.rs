//! Parameters: what an operator sets ([`Config`]), the one place that decides whether it is valid
//! ([`Config::validate`]), and the form the data plane reads ([`Params`]).

mod config;
mod derived;
mod invalid;
mod spec;

pub use config::*;
pub use derived::*;
pub use invalid::{Invalid, Quantity};
pub use spec::{Spec, Unit};
