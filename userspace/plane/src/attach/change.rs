//! Changing the parameters of what is attached: one interface or several, whole or not at all.

use dcqcn_common::params::{Config, Params};

use super::find::open_at;
use super::lock::Lock;
use super::place::Place;
use super::{Attachment, Error, Info};
use crate::failpoint;
use crate::queues::{self, Revised};

/// A change of one or several interfaces that is validated for all of them and not yet in force. Nobody else changes
/// anything while it is open; dropped, it changes nothing.
pub struct Transaction {
    /// Released when the transaction ends.
    _lock: Lock,
    attachments: Vec<Attachment>,
    changes: Vec<Change>,
}

/// What a transaction does to one interface.
#[derive(Clone, Debug)]
pub struct Change {
    /// The interface.
    pub iface: String,
    /// The parameters in force before.
    pub old: Config,
    /// Those after.
    pub new: Config,
}

impl Transaction {
    /// Runs `edit` on a copy of the parameters of each interface, and validates what results.
    ///
    /// # Errors
    /// An interface is not attached, `edit` fails, or its result is refused. The error is that of the interface named
    /// beside it.
    pub fn prepare<E: From<Error>>(
        ifaces: &[impl AsRef<str>],
        mut edit: impl FnMut(&Info, &mut Config) -> Result<(), E>,
    ) -> Result<Self, Refused<E>> {
        let refused = |iface: &str| {
            let iface = iface.to_owned();
            move |error| Refused { iface, error }
        };
        let first = ifaces.first().map_or("", AsRef::as_ref);
        let place = Place::here().map_err(|error| refused(first)(error.into()))?;
        let _lock = place.lock().map_err(|error| refused(first)(error.into()))?;
        let (mut attachments, mut changes) = (Vec::new(), Vec::new());
        for iface in ifaces.iter().map(AsRef::as_ref) {
            let (attachment, change) = prepare_one(&place, iface, &mut edit).map_err(refused(iface))?;
            attachments.push(attachment);
            changes.push(change);
        }
        Ok(Self { _lock, attachments, changes })
    }

    /// What it is going to do, an entry for each interface in the order they were named.
    #[must_use]
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// Puts the new parameters in force: on each interface at once for every packet, one interface after the other.
    ///
    /// # Errors
    /// The kernel refuses a write; the interfaces done so far are put back.
    pub fn commit(self) -> Result<Vec<Change>, Refused<Error>> {
        let Self { _lock, mut attachments, changes } = self;
        for done in 0..attachments.len() {
            let (before, rest) = attachments.split_at_mut(done);
            let Some((attachment, change)) = rest.first_mut().zip(changes.get(done)) else {
                break;
            };
            if let Err(error) = put(attachment, &change.new) {
                for (attachment, change) in before.iter_mut().zip(&changes) {
                    if let Err(error) = put(attachment, &change.old) {
                        tracing::error!(iface = change.iface, %error, "cannot put the old parameters back");
                    }
                }
                return Err(Refused { iface: change.iface.clone(), error });
            }
        }
        Ok(changes)
    }
}

/// A change that is refused, and on which interface.
#[derive(Debug)]
pub struct Refused<E> {
    /// The interface.
    pub iface: String,
    /// Why.
    pub error: E,
}

fn prepare_one<E: From<Error>>(
    place: &Place,
    iface: &str,
    edit: &mut impl FnMut(&Info, &mut Config) -> Result<(), E>,
) -> Result<(Attachment, Change), E> {
    let attachment = open_at(place, iface)?;
    let params = attachment.maps.params().map_err(Error::from)?;
    let mut new = params.config;
    edit(&attachment.info, &mut new)?;
    attachment.info.check(&new)?;
    Params::new(&new, params.port).map_err(Error::from)?;
    Ok((attachment, Change { iface: iface.to_owned(), old: params.config, new }))
}

fn put(attachment: &mut Attachment, config: &Config) -> Result<(), Error> {
    let Params { port, config: running, .. } = attachment.maps.params()?;
    let params = Params::new(config, port)?;
    // The queues first: what they refuse changes nothing.
    let queues = queues::revise(attachment.info.ifindex, &running, config)?;
    if let Err(error) = attachment.maps.set_params(&params) {
        if queues == Revised::Yes {
            queues::revise(attachment.info.ifindex, config, &running)?;
        }
        return Err(error.into());
    }
    failpoint::step("parameters are in force");
    Ok(())
}

/// Changes parameters: `change` edits a copy of those in force; if what results is valid it replaces them at once, for
/// every packet. Returns the old and the new.
///
/// # Errors
/// Refused, and everything stays as it was.
pub fn change<E: From<Error>>(
    iface: &str,
    mut change: impl FnMut(&mut Config) -> Result<(), E>,
) -> Result<(Config, Config), E> {
    let transaction =
        Transaction::prepare(&[iface], |_, config| change(config)).map_err(|refused| refused.error)?;
    let changes = transaction.commit().map_err(|refused| refused.error)?;
    let both = changes.first().map(|change| (change.old, change.new));
    both.ok_or_else(|| Error::NotAttached { iface: iface.to_owned() }.into())
}
