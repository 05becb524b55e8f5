//! The compiled program: its tables, registers and counters.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::entry::{Entry, Match};
use super::error::{Error, Result};

/// The program as compiled from this version of `p4/`.
pub const JSON: &str = include_str!("../../../../p4/build/dcqcn.json");

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MatchKind {
    Exact,
    Lpm,
    /// The bits of a mask; only in another program, as the following.
    Ternary,
    /// From one value to another.
    Range,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyField {
    pub name: String,
    pub kind: MatchKind,
    pub bits: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    pub name: String,
    pub bits: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    pub key: Vec<KeyField>,
    /// The actions its entries may have, and their parameters.
    pub actions: BTreeMap<String, Vec<Param>>,
    pub size: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Array {
    pub size: u64,
    /// Width of an element; 0 for counters.
    pub bits: u32,
}

/// Control plane view of a program, by names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    pub tables: BTreeMap<String, Table>,
    pub registers: BTreeMap<String, Array>,
    pub counters: BTreeMap<String, Array>,
}

impl Program {
    pub fn embedded() -> Result<Self> {
        Self::parse("the embedded program", JSON)
    }

    /// Parses the compiler's output, called `what` in errors.
    pub(crate) fn parse(what: &str, json: &str) -> Result<Self> {
        let failed = |reason: String| Error::Json { what: what.to_owned(), reason };
        let raw: RawProgram = serde_json::from_str(json).map_err(|error| failed(error.to_string()))?;
        let mut program = Self::default();
        for pipeline in &raw.pipelines {
            for table in &pipeline.tables {
                let key = table.key.iter().map(|key| {
                    let bits = raw.bits(&key.target);
                    let name = key.name.clone().unwrap_or_else(|| key.target.join("."));
                    let bits =
                        bits.ok_or_else(|| failed(format!("key {name} of {} has no width", table.name)))?;
                    Ok(KeyField { name, kind: key.match_type, bits })
                });
                let key = key.collect::<Result<_>>()?;
                let actions = table.actions.iter().zip(&table.action_ids).map(|(name, id)| {
                    let action = raw.actions.iter().find(|action| action.id == *id);
                    let action = action.ok_or_else(|| failed(format!("no action {id}")))?;
                    let params = action.runtime_data.iter();
                    let params = params.map(|param| Param { name: param.name.clone(), bits: param.bitwidth });
                    Ok((name.clone(), params.collect()))
                });
                let actions = actions.collect::<Result<_>>()?;
                program.tables.insert(table.name.clone(), Table { key, actions, size: table.max_size });
            }
        }
        let array = |array: RawArray| (array.name, Array { size: array.size, bits: array.bitwidth });
        program.registers = raw.register_arrays.into_iter().map(array).collect();
        program.counters = raw.counter_arrays.into_iter().map(array).collect();
        Ok(program)
    }

    /// The full name of the table that ends in `name`.
    pub fn table(&self, name: &str) -> Result<&str> {
        find("table", name, self.tables.keys())
    }

    /// The full names of a table and of one of its actions.
    pub fn names(&self, table: &str, action: &str) -> Result<(&str, &str)> {
        let table = self.table(table)?;
        let actions = self.tables.get(table).into_iter().flat_map(|table| table.actions.keys());
        Ok((table, find("action", action, actions)?))
    }

    /// The full name of the register that ends in `name`, and its size.
    pub fn register(&self, name: &str) -> Result<&str> {
        find("register", name, self.registers.keys())
    }

    /// The full name of the counter that ends in `name`.
    pub fn counter(&self, name: &str) -> Result<&str> {
        find("counter", name, self.counters.keys())
    }

    /// The first difference of `other` that a controller could notice.
    pub(crate) fn difference(&self, other: &Self) -> Option<String> {
        fn first<T: PartialEq + std::fmt::Debug>(
            what: &str,
            own: &BTreeMap<String, T>,
            other: &BTreeMap<String, T>,
        ) -> Option<String> {
            own.iter().find_map(|(name, own)| match other.get(name) {
                None => Some(format!("it has no {what} `{name}`")),
                Some(other) if other != own => Some(format!("its {what} `{name}` differs: {other:?}")),
                Some(_) => None,
            })
        }
        first("table", &self.tables, &other.tables)
            .or_else(|| first("register", &self.registers, &other.registers))
            .or_else(|| first("counter", &self.counters, &other.counters))
    }

    /// Checks an entry against the program: table, keys, action, and the width of every value.
    pub fn check(&self, entry: &Entry) -> Result<()> {
        let stale = |difference: String| Error::Stale { what: "the program".to_owned(), difference };
        let table = self.tables.get(&entry.table);
        let table = table.ok_or_else(|| stale(format!("it has no table `{}`", entry.table)))?;
        let params = table.actions.get(&entry.action);
        let params = params
            .ok_or_else(|| stale(format!("table `{}` has no action `{}`", entry.table, entry.action)))?;
        if let Some(key) = &entry.key {
            if key.len() != table.key.len() {
                return Err(stale(format!("table `{}` has {} keys", entry.table, table.key.len())));
            }
            for (field, value) in table.key.iter().zip(key) {
                let fits = match (field.kind, value) {
                    (MatchKind::Exact, Match::Exact(value)) => vec![value.bits()],
                    (MatchKind::Lpm, Match::Lpm(value, len)) => {
                        vec![value.bits(), (*len > field.bits).into()]
                    }
                    (kind, _) => {
                        let what = format!("key `{}` of `{}` is {kind:?}", field.name, entry.table);
                        return Err(stale(what));
                    }
                };
                for value in fits {
                    fits_in(&format!("{} of {}", field.name, entry.table), value, field.bits)?;
                }
            }
        }
        if params.len() != entry.params.len() {
            return Err(stale(format!("action `{}` has {} parameters", entry.action, params.len())));
        }
        let mut pairs = params.iter().zip(&entry.params);
        pairs.try_for_each(|(param, value)| {
            fits_in(&format!("{} of {}", param.name, entry.action), value.bits(), param.bits)
        })
    }
}

/// The one of `names` that equals `name`, or ends in it after a dot.
fn find<'a>(what: &str, name: &str, names: impl IntoIterator<Item = &'a String>) -> Result<&'a str> {
    let is_it = |full: &&String| {
        full.strip_suffix(name).is_some_and(|scope| scope.is_empty() || scope.ends_with('.'))
    };
    names.into_iter().find(is_it).map(String::as_str).ok_or_else(|| Error::Stale {
        what: "the program".to_owned(),
        difference: format!("it has no {what} `{name}`"),
    })
}

fn fits_in(what: &str, value: u128, bits: u32) -> Result<()> {
    let max = u128::MAX.checked_shr(128_u32.saturating_sub(bits)).unwrap_or(0);
    if value <= max { Ok(()) } else { Err(Error::TooWide { what: what.to_owned(), value, bits, max }) }
}

/// Objects of the compiler's JSON, with the used keys (behavioral-model's `docs/JSON_format.md`).
macro_rules! objects {
    ($($(#[$doc:meta])* $object:ident { $($(#[$attribute:meta])* $key:ident: $type:ty),+ $(,)? })+) => {
        $(
            $(#[$doc])*
            #[derive(Deserialize)]
            struct $object {
                $($(#[$attribute])* $key: $type,)+
            }
        )+
    };
}

objects! {
    RawProgram {
        pipelines: Vec<RawPipeline>,
        actions: Vec<RawAction>,
        #[serde(default)]
        register_arrays: Vec<RawArray>,
        #[serde(default)]
        counter_arrays: Vec<RawArray>,
        header_types: Vec<RawHeaderType>,
        headers: Vec<RawHeader>,
    }
    RawPipeline { tables: Vec<RawTable> }
    RawTable { name: String, key: Vec<RawKey>, actions: Vec<String>, action_ids: Vec<u32>, max_size: u64 }
    RawKey { match_type: MatchKind, name: Option<String>, target: Vec<String> }
    RawAction { id: u32, runtime_data: Vec<RawParam> }
    RawParam { name: String, bitwidth: u32 }
    RawArray { name: String, size: u64, #[serde(default)] bitwidth: u32 }
    /// Name, width and signedness of each field.
    RawHeaderType { name: String, fields: Vec<(String, serde_json::Value, bool)> }
    RawHeader { name: String, header_type: String }
}

impl RawProgram {
    /// Width of a key's field.
    fn bits(&self, target: &[String]) -> Option<u32> {
        let [header, field] = target else { return None };
        if field == "$valid$" {
            return Some(1);
        }
        let header = self.headers.iter().find(|candidate| candidate.name == *header)?;
        let kind = self.header_types.iter().find(|kind| kind.name == header.header_type)?;
        let (_, bits, _) = kind.fields.iter().find(|(name, _, _)| name == field)?;
        bits.as_u64()?.try_into().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::Value;
    use super::*;

    #[test]
    fn committed_program_parses() {
        let program = Program::embedded().unwrap();
        let wred = program.tables.get(program.table("wred").unwrap()).unwrap();
        let key: Vec<_> =
            wred.key.iter().map(|field| (field.name.as_str(), field.kind, field.bits)).collect();
        assert_eq!(key, [("port", MatchKind::Exact, 9), ("tc", MatchKind::Exact, 3)]);
        assert!(program.registers.contains_key(program.register("rp_rate_bps").unwrap()));
        assert!(program.counters.contains_key(program.counter("stats").unwrap()));
        assert_eq!(program.difference(&program), None);
    }

    /// simple_switch_CLI resolves an action by its name, and uses the parameters of the last one that has it.
    #[test]
    fn same_name_actions_have_same_parameters() {
        let json: serde_json::Value = serde_json::from_str(JSON).unwrap();
        let mut params: BTreeMap<&str, &serde_json::Value> = BTreeMap::new();
        for action in json["actions"].as_array().unwrap() {
            let (name, own) = (action["name"].as_str().unwrap(), &action["runtime_data"]);
            assert_eq!(*params.entry(name).or_insert(own), own, "{name}");
        }
    }

    #[test]
    fn other_program_detected() {
        let program = Program::embedded().unwrap();
        let expected = |change: &dyn Fn(&mut Program)| {
            let mut other = program.clone();
            change(&mut other);
            program.difference(&other).unwrap()
        };
        let wred = program.table("wred").unwrap();
        let rate = program.register("rp_rate_bps").unwrap();
        assert!(expected(&|other| _ = other.tables.remove(wred)).contains("no table"));
        let without = expected(&|other| other.tables.get_mut(wred).unwrap().actions.clear());
        assert!(without.contains("its table") && without.contains("wred"), "{without}");
        assert!(expected(&|other| _ = other.registers.remove(rate)).contains("no register"));
        let narrower = expected(&|other| other.registers.get_mut(rate).unwrap().bits = 32);
        assert!(narrower.contains("its register") && narrower.contains("32"), "{narrower}");
        for text in ["", "{}", "[1]"] {
            let refused = Program::parse("x.json", text).unwrap_err().to_string();
            assert!(refused.starts_with("x.json is not a program for BMv2"), "{refused}");
        }
    }

    #[test]
    fn entries_checked_against_program() {
        let program = Program::embedded().unwrap();
        let (table, action) = program.names("np_pair", "sender").unwrap();
        let entry = |key: Vec<Match>, qpn: u64| Entry::new(table, key, action, vec![qpn.into()]);
        let key = || vec![Match::exact(1_u64), Match::exact(2_u64)];
        assert!(program.check(&entry(key(), 0xff_ffff)).is_ok());
        let expected = |entry: Entry| program.check(&entry).unwrap_err().to_string();
        assert!(expected(entry(key(), 0x100_0000)).contains("does not fit 24 bits: the largest is 16777215"));
        assert!(expected(entry(vec![Match::exact(1_u64)], 1)).contains("has 2 keys"));
        assert!(
            expected(entry(vec![Match::exact(1_u64), Match::Lpm(1_u64.into(), 1)], 1)).contains("is Exact")
        );
        assert!(expected(Entry { params: Vec::<Value>::new(), ..entry(key(), 1) }).contains("1 parameters"));
        assert!(expected(Entry { table: "T".into(), ..entry(key(), 1) }).contains("no table `T`"));
        assert!(expected(Entry { action: "A".into(), ..entry(key(), 1) }).contains("no action `A`"));
        assert!(program.names("wred", "no_such").is_err() && program.register("no_such").is_err());
    }
}
