//! Applying a plan to a running switch: only differences are written, then all of it is read back.
//!
//! BMv2 changes one entry at a time, so packets may see part of a change, but each entry whole. A change that the
//! switch rejects half way is reverted.

use std::collections::BTreeMap;

use super::control::{Control, TableDump};
use super::entry::{Command, Entry};
use super::error::{Error, Result};
use super::plan::Plan;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Pushed {
    /// Entries and default actions added.
    pub written: usize,
    /// Entries with changed action or parameters.
    pub modified: usize,
    pub deleted: usize,
    pub unchanged: usize,
    pub cells: usize,
}

impl Pushed {
    pub const fn commands(&self) -> usize {
        self.written + self.modified + self.deleted + self.cells
    }
}

/// Current contents of the tables and registers of a plan.
#[derive(Clone, Debug, Default)]
pub(crate) struct CurrentEntries {
    tables: BTreeMap<String, TableDump>,
    registers: BTreeMap<String, Vec<u64>>,
}

/// Applies the plan to the switch.
///
/// # Errors
/// The switch has exited, or rejects a command; the tables are then restored as far as possible.
pub fn push(session: &mut dyn Control, plan: &Plan) -> Result<Pushed> {
    let before = read(session, plan)?;
    let (commands, pushed) = difference(plan, &before);
    let done = commands.iter().chain(&plan.blind).try_for_each(|command| session.run(command));
    if let Err(error) = done.and_then(|()| verify(session, plan)) {
        revert(session, plan, &before);
        return Err(error);
    }
    Ok(pushed)
}

/// Checks that the switch matches the plan exactly.
pub fn verify(session: &mut dyn Control, plan: &Plan) -> Result<()> {
    let (commands, _) = difference(plan, &read(session, plan)?);
    let Some(command) = commands.first() else { return Ok(()) };
    let (table, difference) = match command {
        Command::Write(entry) => (&entry.table, format!("`{command}` is missing")),
        Command::Modify(_, entry) => (&entry.table, format!("it needs `{command}`")),
        Command::Delete(_, entry) => {
            (&entry.table, format!("unexpected `{}`", Command::Write(entry.clone())))
        }
        Command::Register { name, .. } => (name, format!("it needs `{command}`")),
        _ => return Ok(()),
    };
    Err(Error::NotTaken { table: table.clone(), difference })
}

pub(crate) fn read(session: &mut dyn Control, plan: &Plan) -> Result<CurrentEntries> {
    let of_defaults = plan.entries.iter().filter(|entry| entry.key.is_none()).map(|entry| &entry.table);
    let names = plan.tables.iter().chain(of_defaults);
    let tables = names.map(|name| Ok((name.clone(), session.table(name)?))).collect::<Result<_>>()?;
    let registers = plan.registers.keys().map(|name| Ok((name.clone(), session.register(name)?)));
    Ok(CurrentEntries { tables, registers: registers.collect::<Result<_>>()? })
}

/// The commands that apply the plan: registers before their users, and additions and changes before removals, so that
/// no entry is missing in between.
fn difference(plan: &Plan, found: &CurrentEntries) -> (Vec<Command>, Pushed) {
    let CurrentEntries { tables, registers } = found;
    let mut commands = Vec::new();
    let mut pushed = Pushed::default();
    for (name, wanted) in &plan.registers {
        let there = registers.get(name).map_or(&[][..], Vec::as_slice);
        for (index, &value) in (0..).zip(wanted) {
            if there.get(index as usize) != Some(&value) {
                pushed.cells += 1;
                commands.push(Command::Register { name: name.clone(), index, value });
            }
        }
    }
    for wanted in &plan.entries {
        let Some(table) = tables.get(&wanted.table) else { continue };
        let is_there = |there: &Entry| (&there.action, &there.params) == (&wanted.action, &wanted.params);
        if wanted.key.is_none() {
            if table.default_action.as_ref().is_some_and(is_there) {
                pushed.unchanged += 1;
            } else {
                pushed.written += 1;
                commands.push(Command::Write(wanted.clone()));
            }
            continue;
        }
        match table.entries.iter().find(|(_, there)| there.is_about_same(wanted)) {
            Some((_, there)) if is_there(there) => pushed.unchanged += 1,
            Some((handle, _)) => {
                pushed.modified += 1;
                commands.push(Command::Modify(*handle, wanted.clone()));
            }
            None => {
                pushed.written += 1;
                commands.push(Command::Write(wanted.clone()));
            }
        }
    }
    for name in &plan.tables {
        let entries = tables.get(name).map_or(&[][..], |table| &table.entries);
        for (handle, there) in entries {
            if !plan.entries.iter().any(|wanted| wanted.is_about_same(there)) {
                pushed.deleted += 1;
                commands.push(Command::Delete(*handle, there.clone()));
            }
        }
    }
    (commands, pushed)
}

/// Restores the previous tables, as far as the switch accepts it.
fn revert(session: &mut dyn Control, plan: &Plan, before: &CurrentEntries) {
    let entries = before.tables.values().flat_map(|table| {
        table.entries.iter().map(|(_, entry)| entry.clone()).chain(table.default_action.clone())
    });
    let before = Plan {
        entries: entries.collect(),
        tables: plan.tables.clone(),
        registers: before.registers.clone(),
        blind: Vec::new(),
        not_in_p4: Vec::new(),
    };
    let Ok(now) = read(session, &before) else { return };
    let (commands, _) = difference(&before, &now);
    for command in commands {
        if let Err(error) = session.run(&command) {
            tracing::warn!("cannot revert a change: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::Match;
    use super::*;

    fn entry(key: u64, param: u64) -> Entry {
        Entry::new("T", vec![Match::exact(key)], "A", vec![param.into()])
    }

    fn plan(entries: Vec<Entry>) -> Plan {
        let tables = ["T".to_owned()].into();
        Plan { entries, tables, registers: BTreeMap::new(), blind: Vec::new(), not_in_p4: Vec::new() }
    }

    fn found(entries: Vec<(u64, Entry)>) -> CurrentEntries {
        let default_action = Some(Entry::default_action("D", "A", vec![]));
        let dump = TableDump { entries, default_action: None };
        let tables =
            [("T".to_owned(), dump), ("D".to_owned(), TableDump { entries: vec![], default_action })];
        CurrentEntries { tables: tables.into(), registers: BTreeMap::new() }
    }

    #[test]
    fn push_writes_only_differences() {
        let there = found(vec![(0, entry(1, 10)), (1, entry(2, 20)), (2, entry(3, 30))]);
        let wanted =
            plan(vec![entry(1, 10), entry(2, 21), entry(4, 40), Entry::default_action("D", "B", vec![])]);
        let (commands, pushed) = difference(&wanted, &there);
        let expected = [
            Command::Modify(1, entry(2, 21)),
            Command::Write(entry(4, 40)),
            Command::Write(Entry::default_action("D", "B", vec![])),
            Command::Delete(2, entry(3, 30)),
        ];
        assert_eq!(commands, expected);
        assert_eq!(pushed, Pushed { written: 2, modified: 1, deleted: 1, unchanged: 1, cells: 0 });
        assert_eq!(pushed.commands(), expected.len());
        let same =
            plan(vec![entry(1, 10), entry(2, 20), entry(3, 30), Entry::default_action("D", "A", vec![])]);
        assert_eq!(difference(&same, &there).0, []);
    }

    #[test]
    fn register_differences_written_first() {
        let name = || "R".to_owned();
        let registers = [(name(), vec![5, 6, 7])];
        let wanted = Plan { registers: registers.clone().into(), ..plan(vec![entry(1, 10)]) };
        let there = CurrentEntries { registers: [(name(), vec![5, 0, 7])].into(), ..found(vec![]) };
        let (commands, pushed) = difference(&wanted, &there);
        let cell = Command::Register { name: name(), index: 1, value: 6 };
        assert_eq!(commands, [cell, Command::Write(entry(1, 10))]);
        assert_eq!(pushed, Pushed { written: 1, cells: 1, ..Pushed::default() });
        let same = CurrentEntries { registers: registers.into(), ..found(vec![(0, entry(1, 10))]) };
        assert_eq!(difference(&wanted, &same).0, []);
    }
}
