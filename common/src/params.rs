//! Parameters: the operator's values ([`Config`]), their only validation ([`Config::validate`]), and the form the data
//! plane reads ([`Params`]).

mod bands;
mod config;
mod derived;
mod hot;
mod invalid;
mod pfc;
mod spec;

pub use bands::*;
pub use config::*;
pub use derived::*;
pub use hot::{Hot, Switch};
pub use invalid::{Allowed, Invalid, Name, Quantity, Table};
pub use pfc::*;
pub use spec::{MAX_RATE_BPS, MIN_RATE_BPS, Spec, Unit};
