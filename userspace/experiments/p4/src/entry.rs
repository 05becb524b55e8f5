//! Table entries, and the commands of `simple_switch_CLI` that write them.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

/// A value of a key or a parameter, with its text format.
#[derive(Clone, Copy, Debug)]
pub enum Value {
    Number(u128),
    V4(Ipv4Addr),
    V6(Ipv6Addr),
    Mac([u8; 6]),
}

impl Value {
    pub(crate) fn bits(self) -> u128 {
        match self {
            Self::Number(number) => number,
            Self::V4(address) => u32::from(address).into(),
            Self::V6(address) => address.into(),
            Self::Mac(octets) => octets.iter().fold(0, |bits, octet| bits << 8 | u128::from(*octet)),
        }
    }
}

impl<T: Into<u64>> From<T> for Value {
    fn from(number: T) -> Self {
        Self::Number(number.into().into())
    }
}

// The switch prints bits without a format.
impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        self.bits() == other.bits()
    }
}

impl Eq for Value {}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::V4(address) => write!(f, "{address}"),
            Self::V6(address) => write!(f, "{address}"),
            Self::Mac([a, b, c, d, e, g]) => write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    Exact(Value),
    Lpm(Value, u32),
}

impl Match {
    pub fn exact(value: impl Into<Value>) -> Self {
        Self::Exact(value.into())
    }
}

impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(value) => write!(f, "{value}"),
            Self::Lpm(value, len) => write!(f, "{value}/{len}"),
        }
    }
}

/// An entry of a table, or its default action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub table: String,
    /// Matches of its keys; `None` = the default action.
    pub key: Option<Vec<Match>>,
    pub action: String,
    pub params: Vec<Value>,
}

impl Entry {
    pub(crate) fn new(table: &str, key: Vec<Match>, action: &str, params: Vec<Value>) -> Self {
        let (table, action) = (table.to_owned(), action.to_owned());
        Self { table, key: Some(key), action, params }
    }

    pub fn default_action(table: &str, action: &str, params: Vec<Value>) -> Self {
        Self { key: None, ..Self::new(table, Vec::new(), action, params) }
    }

    /// Whether both match the same packets.
    pub(crate) fn is_about_same(&self, other: &Self) -> bool {
        (&self.table, &self.key) == (&other.table, &other.key)
    }
}

/// A command of `simple_switch_CLI`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Adds an entry, or sets the default action.
    Write(Entry),
    /// Changes action or parameters of the entry with this handle.
    Modify(u64, Entry),
    Delete(u64, Entry),
    Mirror {
        session: u32,
        port: u16,
    },
    QueueRate {
        port: u16,
        /// Queue of the port; `None`: all, each with this rate.
        queue: Option<u8>,
        packets_per_s: u64,
    },
    QueueDepth {
        port: u16,
        /// Queue of the port; `None`: all, each with this depth.
        queue: Option<u8>,
        packets: u64,
    },
    Register {
        name: String,
        index: u64,
        value: u64,
    },
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let params = |f: &mut fmt::Formatter<'_>, entry: &Entry| {
            entry.params.iter().try_for_each(|param| write!(f, " {param}"))
        };
        match self {
            Self::Write(entry) => {
                let Entry { table, key, action, .. } = entry;
                let Some(key) = key else {
                    write!(f, "table_set_default {table} {action}")?;
                    return params(f, entry);
                };
                write!(f, "table_add {table} {action}")?;
                key.iter().try_for_each(|field| write!(f, " {field}"))?;
                write!(f, " =>")?;
                params(f, entry)
            }
            // The arrow lets the CLI parse an action without parameters.
            Self::Modify(handle, entry) => {
                write!(f, "table_modify {} {} {handle} =>", entry.table, entry.action)?;
                params(f, entry)
            }
            Self::Delete(handle, entry) => write!(f, "table_delete {} {handle}", entry.table),
            Self::Mirror { session, port } => write!(f, "mirroring_add {session} {port}"),
            Self::QueueRate { port, queue, packets_per_s } => {
                write!(f, "set_queue_rate {packets_per_s} {port}")?;
                queue.map_or(Ok(()), |queue| write!(f, " {queue}"))
            }
            Self::QueueDepth { port, queue, packets } => {
                write!(f, "set_queue_depth {packets} {port}")?;
                queue.map_or(Ok(()), |queue| write!(f, " {queue}"))
            }
            Self::Register { name, index, value } => write!(f, "register_write {name} {index} {value}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_match_cli_syntax() {
        let route = Entry::new(
            "In.v4",
            vec![Match::Lpm(Value::V4([10, 0, 1, 0].into()), 24)],
            "In.route",
            vec![Value::Mac([2, 0, 0, 0, 0, 9]), 3_u64.into()],
        );
        let texts = [
            (Command::Write(route.clone()), "table_add In.v4 In.route 10.0.1.0/24 => 02:00:00:00:00:09 3"),
            (Command::Modify(7, route.clone()), "table_modify In.v4 In.route 7 => 02:00:00:00:00:09 3"),
            (Command::Delete(7, route), "table_delete In.v4 7"),
            (Command::Write(Entry::default_action("T", "A", vec![1_u64.into()])), "table_set_default T A 1"),
            (Command::Mirror { session: 1, port: 2 }, "mirroring_add 1 2"),
            (Command::QueueRate { port: 2, queue: None, packets_per_s: 5_000 }, "set_queue_rate 5000 2"),
            (Command::QueueDepth { port: 2, queue: Some(3), packets: 64 }, "set_queue_depth 64 2 3"),
        ];
        for (command, text) in texts {
            assert_eq!(command.to_string(), text);
        }
    }

    #[test]
    fn values_equal_regardless_of_form() {
        assert_eq!(Value::V4([10, 0, 0, 1].into()), Value::Number(0x0a00_0001));
        assert_eq!(Value::Mac([0, 0, 0, 0, 1, 0]), 256_u64.into());
    }
}
