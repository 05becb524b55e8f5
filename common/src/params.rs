//! Parameters: the operator's values ([`Config`]), their only validation ([`Config::validate`]), and the form the data
//! plane reads ([`Params`]).

mod bands;
mod class;
mod config;
mod derived;
mod hot;
mod invalid;
mod parts;
mod pfc;
mod queue;
mod spec;

pub use bands::Band;
pub use class::DscpClass;
pub use config::*;
pub use derived::*;
pub use hot::{Hot, Switch};
pub use invalid::{Invalid, Name, Quantity, Table};
pub use pfc::*;
pub use queue::*;
pub use spec::{MAX_RATE_BPS, MIN_RATE_BPS, Spec, Unit};
