//! Words that flags take, and what they mean.

use crate::network::{Balance, Marking, WindowEnd};
use dcqcn_common::params::Unit;
use dcqcn_params::quantity;

/// A share, from percent.
pub(super) fn share(text: &str) -> Result<f64, String> {
    quantity::parse(text, Unit::PartsPerMillion)
        .map(|ppm| ppm as f64 / 1e6)
        .map_err(|error| error.to_string())
}

pub(super) fn on_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("`{text}` is neither `on` nor `off`")),
    }
}

pub(super) fn balance(text: &str) -> Result<Balance, String> {
    match text {
        "ecmp" => Ok(Balance::Ecmp),
        "spray" => Ok(Balance::Spray),
        _ => Err(format!("`{text}` is neither `ecmp` nor `spray`")),
    }
}

pub(super) fn marking(text: &str) -> Result<Marking, String> {
    match text {
        "ingress" => Ok(Marking::Enqueue),
        "egress" => Ok(Marking::Dequeue),
        _ => Err(format!("`{text}` is neither `ingress` nor `egress`")),
    }
}

/// What senders do about congestion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Nothing.
    Off,
    /// DCQCN.
    Dcqcn,
    /// UEC's NSCC.
    Nscc,
}

pub(super) fn control(text: &str) -> Result<Choice, String> {
    match text {
        "dcqcn" | "on" => Ok(Choice::Dcqcn),
        "nscc" => Ok(Choice::Nscc),
        "off" => Ok(Choice::Off),
        _ => Err(format!("`{text}` is none of `dcqcn` (or `on`), `nscc` and `off`")),
    }
}

pub(super) fn window_end(text: &str) -> Result<WindowEnd, String> {
    match text {
        "timer" => Ok(WindowEnd::Timer),
        "flow" => Ok(WindowEnd::NextOfFlow),
        "port" => Ok(WindowEnd::NextOfPort),
        _ => Err(format!("`{text}` is none of `timer`, `flow` and `port`")),
    }
}

/// Whether recovery is selective.
pub(super) fn recovery(text: &str) -> Result<bool, String> {
    match text {
        "go-back-n" => Ok(false),
        "selective" => Ok(true),
        _ => Err(format!("`{text}` is neither `go-back-n` nor `selective`")),
    }
}

/// Whether ranks are on hosts by chance.
pub(super) fn placement(text: &str) -> Result<bool, String> {
    match text {
        "in-order" => Ok(false),
        "random" => Ok(true),
        _ => Err(format!("`{text}` is neither `in-order` nor `random`")),
    }
}
