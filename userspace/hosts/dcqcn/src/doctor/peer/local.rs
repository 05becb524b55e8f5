//! This host's part of a check: the listener executes the client's requests, and the client the same ones on its side.

use anyhow::{Context as _, Result, bail};
use dcqcn_support::interrupt::Interrupt;

use super::messages::{Answer, Request};
use super::roce::{Path, Receiver};
use super::side::{Side, Trial};

pub(super) struct Local<'a> {
    path: Path,
    may_attach: bool,
    interrupt: &'a Interrupt,
    trial: Option<Trial>,
    receiver: Option<Receiver>,
}

impl<'a> Local<'a> {
    pub(super) fn new(path: Path, may_attach: bool, interrupt: &'a Interrupt) -> Self {
        Self { path, may_attach, interrupt, trial: None, receiver: None }
    }

    /// Executes a request that does not concern the connection.
    pub(super) fn ask(&mut self, request: Request) -> Result<Answer> {
        Ok(match request {
            Request::Attach { on } => {
                if !on {
                    self.trial.take().map_or(Ok(()), Trial::end)?;
                } else if self.may_attach && self.trial.is_none() {
                    self.trial = Some(Trial::attach(self.path.local.ip())?);
                }
                Answer::Side { side: Side::of(self.path.local.ip())? }
            }
            Request::Receive => {
                self.receiver = Some(Receiver::open(self.path)?);
                Answer::Ready
            }
            Request::Count => {
                let receiver = self.receiver.take().context("unexpected request")?;
                Answer::Arrived { series: receiver.count()? }
            }
            Request::Send { pace } => {
                Answer::Sent { series: self.path.send(pace.limited(), self.interrupt)? }
            }
            Request::Cnps { pace } => {
                Answer::Cnps { cnps: self.path.measure_cnps(pace.limited(), self.interrupt)? }
            }
            Request::Hello { .. } | Request::Bulk { .. } | Request::End => bail!("unexpected request"),
        })
    }
}
