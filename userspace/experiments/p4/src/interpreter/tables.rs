//! Table entries: written by a controller, matched by packets.

use super::super::control::TableDump;
use super::super::entry::{Entry, Match, Value};
use super::super::error::{Error, Result};
use super::integer::{Int, ones};
use super::model::{Bound, Model, Next, Node, Table};
use super::packet::Packet;

pub(super) struct Tables(Vec<Entries>);

struct Entries {
    /// The default action for a controller, and for execution.
    default: (Entry, Bound),
    entries: Vec<(u64, Entry, Bound)>,
    next_handle: u64,
}

impl Tables {
    /// The default actions and constant entries of the program.
    pub(super) fn new(model: &Model) -> Self {
        let entries = |table: &Table| {
            let named = table.actions.iter().find(|(_, action)| **action == table.default.action);
            let name = named.map_or("", |(name, _)| name.as_str());
            let parameters =
                table.default.parameters.iter().map(|value| Value::Number(value.bits())).collect();
            let default = (Entry::default_action(&table.name, name, parameters), table.default.clone());
            let constant = table.entries.iter().zip(0..);
            let entries: Vec<_> =
                constant.map(|((entry, bound), handle)| (handle, entry.clone(), bound.clone())).collect();
            Entries { default, next_handle: entries.len() as u64, entries }
        };
        Self(model.tables.iter().map(entries).collect())
    }

    /// The action for a packet, and the next node; `None` if there is no such table.
    pub(super) fn look_up<'a>(
        &'a self,
        model: &'a Model,
        index: usize,
        packet: &Packet,
    ) -> Option<(&'a Bound, Option<Node>)> {
        let (entries, table) = (self.0.get(index)?, model.tables.get(index)?);
        let found = entries
            .entries
            .iter()
            .filter_map(|(_, entry, bound)| Some((match_len(model, table, entry, packet)?, bound)))
            .max_by_key(|(prefix, _)| *prefix);
        let bound = found.map_or(&entries.default.1, |(_, bound)| bound);
        let next = match &table.next {
            Next::ByHit([miss, hit]) => {
                if found.is_some() {
                    *hit
                } else {
                    *miss
                }
            }
            Next::ByAction(next) => next.get(&bound.action).copied().flatten(),
        };
        Some((bound, next))
    }

    pub(super) fn write(&mut self, model: &Model, entry: &Entry) -> Result<()> {
        let (table, entries) = self.of(model, &entry.table)?;
        let bound = bind_action(table, entry)?;
        if entry.key.is_none() {
            if table.is_default_constant {
                return Err(entry_error(entry, "its default action is constant"));
            }
            entries.default = (entry.clone(), bound);
            return Ok(());
        }
        if !table.entries.is_empty() {
            return Err(entry_error(entry, "its entries are constant"));
        }
        if entries.entries.len() >= table.size {
            return Err(entry_error(entry, "it is full"));
        }
        if entries.entries.iter().any(|(_, there, _)| there.is_about_same(entry)) {
            return Err(entry_error(entry, "it has an entry with this key"));
        }
        entries.entries.push((entries.next_handle, entry.clone(), bound));
        entries.next_handle += 1;
        Ok(())
    }

    pub(super) fn modify(&mut self, model: &Model, handle: u64, entry: &Entry) -> Result<()> {
        let (table, entries) = self.of(model, &entry.table)?;
        let bound = bind_action(table, entry)?;
        let there = entries.entries.iter_mut().find(|(there, ..)| *there == handle);
        let (_, there, bound_there) =
            there.ok_or_else(|| entry_error(entry, "it has no entry with this handle"))?;
        (there.action, there.params) = (entry.action.clone(), entry.params.clone());
        *bound_there = bound;
        Ok(())
    }

    pub(super) fn delete(&mut self, model: &Model, handle: u64, entry: &Entry) -> Result<()> {
        let (_, entries) = self.of(model, &entry.table)?;
        let at = entries.entries.iter().position(|(there, ..)| *there == handle);
        entries.entries.remove(at.ok_or_else(|| entry_error(entry, "it has no entry with this handle"))?);
        Ok(())
    }

    pub(super) fn dump(&mut self, model: &Model, name: &str) -> Result<TableDump> {
        let (_, entries) = self.of(model, name)?;
        let copied = entries.entries.iter().map(|(handle, entry, _)| (*handle, entry.clone())).collect();
        Ok(TableDump { entries: copied, default_action: Some(entries.default.0.clone()) })
    }

    fn of<'m>(&mut self, model: &'m Model, name: &str) -> Result<(&'m Table, &mut Entries)> {
        let tables = model.tables.iter().zip(&mut self.0);
        let found = tables.into_iter().find(|(table, _)| table.name == name);
        found.ok_or_else(|| Error::Interpreter { reason: format!("no table `{name}`") })
    }
}

fn entry_error(entry: &Entry, reason: &str) -> Error {
    Error::Interpreter { reason: format!("table `{}` rejects an entry: {reason}", entry.table) }
}

/// The action of an entry, whose parameters the program's own check has validated.
fn bind_action(table: &Table, entry: &Entry) -> Result<Bound> {
    let action = table.actions.get(&entry.action).copied();
    let action = action.ok_or_else(|| entry_error(entry, "it has no such action"))?;
    Ok(Bound { action, parameters: entry.params.iter().map(|value| Int::from(value.bits())).collect() })
}

/// Length of the prefix by which an entry matches a packet: 0 with exact keys. `None` if it does not match.
fn match_len(model: &Model, table: &Table, entry: &Entry, packet: &Packet) -> Option<u32> {
    let mut prefix = 0;
    for (field, wanted) in table.key.iter().zip(entry.key.as_deref().unwrap_or_default()) {
        let (wanted, mask) = match wanted {
            Match::Exact(wanted) => (wanted, u128::MAX),
            Match::Lpm(wanted, len) => {
                prefix = *len;
                let bits = model.fields.get(*field)?.bits;
                (wanted, ones(bits) & !ones(bits.saturating_sub(*len)))
            }
        };
        if (packet.get(*field).bits() ^ wanted.bits()) & mask != 0 {
            return None;
        }
    }
    Some(prefix)
}
