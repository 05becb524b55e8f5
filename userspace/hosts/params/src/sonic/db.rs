//! The file: tables of rows of fields with text values.
//!
//! Four forms are accepted: `config_db.json`; a multi-ASIC switch's single file, which has one such object per
//! namespace (`localhost`, `asic0`, ...); `sonic-db-dump -n CONFIG_DB`, which has one entry `TABLE|ROW` per row, also
//! without types; and a configlet, a list of objects whose tables and rows are merged.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::fmt::{self, Display};
use std::ops::RangeInclusive;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Reason why a file cannot be used, with position and expectation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot parse {file}: {source}")]
    Json { file: String, source: serde_json::Error },
    #[error("{file}: {at}: {message}")]
    Content { file: String, at: String, message: String },
    #[error("{0}")]
    Export(String),
}

pub(super) type Result<T, E = Error> = std::result::Result<T, E>;

/// An object: tables of a file, rows of a table, or fields of a row.
pub(super) type Fields = Map<String, Value>;

const TABLES: &str = "BUFFER_PG BUFFER_PROFILE CABLE_LENGTH DEVICE_METADATA DSCP_TO_TC_MAP MAP_PFC_PRIORITY_TO_QUEUE \
                      PFC_WD PORT PORT_QOS_MAP QUEUE SCHEDULER TC_TO_QUEUE_MAP WRED_PROFILE";

pub(super) fn is_imported(table: &str) -> bool {
    TABLES.split(' ').any(|name| name == table)
}

/// A `config_db.json`.
#[derive(Clone, Debug)]
pub struct Database {
    file: String,
    tables: Fields,
}

/// Reads the tables of a file, which may be a list of objects.
struct Parts;

impl<'de> Visitor<'de> for Parts {
    type Value = Fields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Tables.expecting(f)
    }

    fn visit_map<A: MapAccess<'de>>(self, tables: A) -> Result<Self::Value, A::Error> {
        Tables.visit_map(tables)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let Some(mut all) = list.next_element_seed(Tables)? else {
            return Err(serde::de::Error::invalid_length(0, &self));
        };
        while let Some(part) = list.next_element_seed(Tables)? {
            merge(&mut all, part)?;
        }
        Ok(all)
    }
}

/// Adds `part` to `all`: tables to tables, and fields to rows. A field is repeated with an equal value only.
fn merge<E: serde::de::Error>(all: &mut Fields, part: Fields) -> Result<(), E> {
    for (key, value) in part {
        match (all.get_mut(&key), value) {
            (Some(Value::Object(own)), Value::Object(other)) => merge(own, other)?,
            // Not imported: configlets set a port down while they configure it.
            (Some(_), _) if key == "admin_status" => {}
            (Some(own), other) if *own != other => return Err(repeated(&key)),
            (Some(_), _) => {}
            (None, value) => _ = all.insert(key, value),
        }
    }
    Ok(())
}

/// Reads the tables of a file or a namespace. Of a key repeated in a table that is not imported, the last takes effect,
/// as in SONiC.
struct Tables;

impl<'de> DeserializeSeed<'de> for Tables {
    type Value = Fields;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Tables {
    type Value = Fields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tables, as in {\"PORT\": {...}}")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut tables: A) -> Result<Self::Value, A::Error> {
        let mut map = Map::new();
        while let Some(name) = tables.next_key::<String>()? {
            // A row of a dump is named `TABLE|ROW`.
            let table = name.split('|').next().unwrap_or_default();
            let is_imported = is_imported(table);
            let value = if is_namespace(&name) {
                Value::Object(tables.next_value_seed(Tables)?)
            } else if is_imported {
                tables.next_value_seed(Consistent)?
            } else if name.contains('|') {
                tables.next_value()?
            } else {
                // Only listed: without the rows, which may be most of the file.
                let rows = tables.next_value::<Option<IgnoredAny>>()?;
                rows.map_or(Value::Null, |_| Value::Object(Map::new()))
            };
            if (is_imported || is_namespace(&name)) && map.get(&name).is_some_and(|before| *before != value) {
                return Err(repeated(&name));
            }
            map.insert(name, value);
        }
        Ok(map)
    }
}

fn repeated<E: serde::de::Error>(key: &str) -> E {
    E::custom(format_args!("`{}` is repeated with another value; merge the two", short(key)))
}

/// A key, of more than four ports only the first and the last.
pub(super) fn short(key: &str) -> String {
    let ports: Vec<_> = key.split(',').collect();
    match ports.as_slice() {
        [first, _, .., last] if ports.len() > 4 => format!("{first},...,{last}"),
        _ => key.to_owned(),
    }
}

/// Methods of a visitor for values without parts.
macro_rules! scalars {
    ($($visit:ident($value:ty)),*) => {
        $(fn $visit<E>(self, value: $value) -> Result<Value, E> {
            Ok(value.into())
        })*
    };
}

/// Reads a JSON value. Keys of an object may be repeated with equal values only: otherwise one of two rows,
/// or half of a table in two parts, would be ignored.
struct Consistent;

impl<'de> DeserializeSeed<'de> for Consistent {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Consistent {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    scalars!(visit_bool(bool), visit_i64(i64), visit_u64(u64), visit_f64(f64), visit_str(&str));

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(Self)? {
            values.push(value);
        }
        Ok(values.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let value = entries.next_value_seed(Self)?;
            if map.get(&key).is_some_and(|before| *before != value) {
                return Err(repeated(&key));
            }
            map.insert(key, value);
        }
        Ok(map.into())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    /// The field is absent, or a placeholder.
    Absent,
    /// A whole number outside the parameter's range.
    Outside,
    Is(u64),
}

impl Number {
    pub(super) const fn value(self) -> Option<u64> {
        if let Self::Is(value) = self { Some(value) } else { None }
    }
}

/// A row of a table, with accessors of its fields.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row<'a> {
    db: &'a Database,
    table: &'static str,
    key: &'a str,
    /// `None` if the row is not an object.
    fields: Option<&'a Fields>,
}

impl Database {
    /// Parses `text` from the file called `file`.
    pub fn parse(file: &str, text: &[u8]) -> Result<Self> {
        // Editors of some systems write a byte order mark.
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        if ["{%", "{#", "{{"].iter().any(|start| text.trim_ascii_start().starts_with(start.as_bytes())) {
            let message = "it is a template; render it on the switch, with `sonic-cfggen -d -t FILE`";
            return Err(Error::Content {
                file: file.to_owned(),
                at: "line 1".to_owned(),
                message: message.to_owned(),
            });
        }
        let mut json = serde_json::Deserializer::from_slice(text);
        let tables = json.deserialize_any(Parts).and_then(|tables| json.end().map(|()| tables));
        let tables = tables.map_err(|source| Error::Json { file: file.to_owned(), source })?;
        Ok(Self { file: file.to_owned(), tables: tables_of_dump(tables) })
    }

    /// The tables of the namespace that has `port`, and the port's name in `PORT`. `port` may be an alias, or
    /// `NAMESPACE|PORT` if several namespaces have a port of that name; so is `asic`, the ASIC of a card.
    pub(super) fn of_port(&self, asic: Option<&str>, port: &str) -> Result<(Cow<'_, Self>, String)> {
        let part = |tables: &Fields| Self { file: self.file.clone(), tables: tables.clone() };
        let parts = self.tables.iter().filter(|(name, _)| is_namespace(name));
        let parts = parts.filter_map(|(name, tables)| Some((name.as_str(), part(tables.as_object()?))));
        let mut parts: Vec<(&str, Self)> = parts.collect();
        if parts.is_empty() {
            self.check_alias(port)?;
            let name = self.port_name(port).unwrap_or_else(|| port.to_owned());
            return Ok((Cow::Borrowed(self), name));
        }
        let (namespace, name) = port.split_once('|').map_or((None, port), |(of, name)| (Some(of), name));
        parts.retain(|(of, part)| {
            namespace.is_none_or(|namespace| namespace == *of) && part.port_name(name).is_some()
        });
        if let (Some(asic), [_, _, ..]) = (asic, parts.as_slice()) {
            parts.retain(|(of, _)| of.eq_ignore_ascii_case(asic));
        }
        if let [(first, _), (second, _), ..] = parts.as_slice() {
            let message = format_args!(
                "{first} and {second} have a port of that name; specify one, as in `{first}|{name}`"
            );
            return Err(self.error(format_args!("PORT|{name}"), message));
        }
        let Some((_, part)) = parts.pop() else {
            let namespaces: Vec<_> = self.tables.keys().map(String::as_str).collect();
            let message = format_args!("no such port in the namespaces {}", namespaces.join(", "));
            return Err(self.error(format_args!("PORT|{port}"), message));
        };
        part.check_alias(name)?;
        let name = part.port_name(name).unwrap_or_else(|| name.to_owned());
        Ok((Cow::Owned(part), name))
    }

    /// Rejects a name that is the alias of two ports, and not the key of one.
    fn check_alias(&self, port: &str) -> Result<()> {
        let Some(rows) = self.tables.get("PORT").and_then(Value::as_object) else { return Ok(()) };
        let has_alias = |row: &Value| row.get("alias").and_then(Value::as_str) == Some(port);
        let mut names = rows.iter().filter(|(_, row)| has_alias(row)).map(|(name, _)| name);
        match (names.next(), names.next()) {
            (Some(first), Some(second)) if !rows.contains_key(port) => Err(self.error(
                "PORT",
                format_args!("{first} and {second} have the alias `{port}`: specify one of them by its name"),
            )),
            _ => Ok(()),
        }
    }

    /// The key of a port in `PORT`, given that key or the port's alias.
    fn port_name(&self, port: &str) -> Option<String> {
        let rows = self.tables.get("PORT")?.as_object()?;
        let has_alias = |row: &Value| row.get("alias").and_then(Value::as_str) == Some(port);
        let found = rows.get_key_value(port).or_else(|| rows.iter().find(|(_, row)| has_alias(row)));
        found.map(|(name, _)| name.clone())
    }

    pub(super) fn has(&self, table: &str) -> bool {
        self.tables.get(table).is_some_and(|rows| !rows.is_null())
    }

    pub(super) fn error(&self, at: impl Display, message: impl Display) -> Error {
        Error::Content { file: self.file.clone(), at: at.to_string(), message: message.to_string() }
    }

    pub(super) fn tables(&self) -> impl Iterator<Item = &str> {
        self.tables.keys().map(String::as_str)
    }

    /// Rows of a table; empty if it is absent. Rows that are not used need not be valid: see [`Row::valid`].
    pub(super) fn rows<'a>(&'a self, table: &'static str) -> Result<Vec<Row<'a>>> {
        let rows = match self.tables.get(table) {
            None | Some(Value::Null) => return Ok(Vec::new()),
            Some(Value::Object(rows)) => rows,
            Some(_) => return Err(self.error(table, "expected an object of rows")),
        };
        let row =
            |(key, fields): (&'a String, &'a Value)| Row { db: self, table, key, fields: fields.as_object() };
        Ok(rows.iter().map(row).collect())
    }

    pub(super) fn row(&self, table: &'static str, key: &str) -> Result<Option<Row<'_>>> {
        self.rows(table)?.into_iter().find(|row| row.key == key).map(Row::valid).transpose()
    }
}

impl<'a> Row<'a> {
    pub(super) const fn table(&self) -> &'static str {
        self.table
    }

    pub(super) const fn key(&self) -> &'a str {
        self.key
    }

    /// The row, before its fields are used.
    pub(super) fn valid(self) -> Result<Self> {
        match self.fields {
            Some(_) => Ok(self),
            None => Err(self.error("expected an object of fields")),
        }
    }

    /// Whether another row has equal fields.
    pub(super) fn agrees(&self, other: &Self) -> bool {
        self.fields == other.fields
    }

    /// One row with the fields of all `rows`, which are about `what`. `cell` stores the fields if they differ.
    ///
    /// # Errors
    /// Two rows have different values of one field.
    pub(super) fn merged(
        rows: &[Self],
        what: impl Display,
        cell: &'a OnceCell<Fields>,
    ) -> Result<Option<Self>> {
        let Some((&first, others)) = rows.split_first() else { return Ok(None) };
        for (index, row) in rows.iter().enumerate() {
            for other in rows.iter().take(index) {
                let differs = |field: &&str| {
                    let [own, other] =
                        [row, other].map(|row| row.fields.and_then(|fields| fields.get(*field)));
                    other.is_some() && own != other
                };
                if let Some(field) = row.fields().find(differs) {
                    let (table, other) = (other.table, other.short_key());
                    let message = format_args!("{table}|{other} has {what} too, with another {field}");
                    return Err(row.error(message));
                }
            }
        }
        if others.iter().all(|other| other.agrees(&first)) {
            return Ok(Some(first));
        }
        let fields = rows.iter().filter_map(|row| row.fields).flatten();
        let fields = cell.get_or_init(|| fields.map(|(key, value)| (key.clone(), value.clone())).collect());
        Ok(Some(Self { fields: Some(fields), ..first }))
    }

    pub(super) fn short_key(&self) -> String {
        short(self.key)
    }

    /// Names of its fields. The database has `NULL` in a row without fields.
    pub(super) fn fields(&self) -> impl Iterator<Item = &'a str> {
        self.fields.into_iter().flatten().map(|(field, _)| field.as_str()).filter(|field| *field != "NULL")
    }

    pub(super) fn error(&self, message: impl Display) -> Error {
        self.db.error(format_args!("{}|{}", self.table, self.short_key()), message)
    }

    pub(super) fn field_error(&self, field: &str, message: impl Display) -> Error {
        self.db.error(format_args!("{}|{} {field}", self.table, self.short_key()), message)
    }

    pub(super) fn text(&self, field: &str) -> Result<Option<String>> {
        match self.fields.and_then(|fields| fields.get(field)) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => {
                let text = text.trim();
                let is_placeholder = PLACEHOLDERS.iter().any(|word| text.eq_ignore_ascii_case(word));
                Ok((!is_placeholder).then(|| text.to_owned()))
            }
            Some(Value::Number(number)) => Ok(Some(number.to_string())),
            Some(Value::Bool(switch)) => Ok(Some(switch.to_string())),
            Some(_) => Err(self.field_error(field, "expected a text")),
        }
    }

    pub(super) fn number(&self, field: &str, range: &RangeInclusive<u64>, what: &str) -> Result<Number> {
        let Some(text) = self.text(field)?.filter(|text| !text.is_empty()) else {
            return Ok(Number::Absent);
        };
        if let Some(number) = text.parse().ok().filter(|number| range.contains(number)) {
            return Ok(Number::Is(number));
        }
        let digits = text.strip_prefix('-').unwrap_or(&text);
        if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Ok(Number::Outside);
        }
        let (low, high) = (range.start(), range.end());
        Err(self.field_error(field, format_args!("`{text}`: expected {what}, {low} to {high}")))
    }

    pub(super) fn switch(&self, field: &str) -> Result<Option<bool>> {
        let text = self.text(field)?.filter(|text| !text.is_empty());
        match text.map(|text| text.to_ascii_lowercase()).as_deref() {
            None => Ok(None),
            Some("true") => Ok(Some(true)),
            Some("false") => Ok(Some(false)),
            Some(text) => Err(self.field_error(field, format_args!("`{text}`: expected `true` or `false`"))),
        }
    }

    /// Reference to a row of `table` in a field, as `NAME` or, in old files, as `[TABLE|NAME]`.
    pub(super) fn name_in(&self, field: &str, table: &'static str) -> Result<Option<String>> {
        let Some(text) = self.text(field)?.filter(|text| !text.is_empty()) else { return Ok(None) };
        let Some(rest) = text.strip_prefix('[') else {
            return Ok(Some(text));
        };
        let inside = rest.strip_suffix(']').and_then(|inside| inside.split_once(SEPARATORS));
        match inside {
            Some((of, name)) if of == table => Ok(Some(name.to_owned())),
            _ => Err(self.field_error(field, format_args!("`{text}`: expected NAME or [{table}|NAME]"))),
        }
    }

    /// The row of `table` that a field refers to; `None` without a reference, or without that table in the file.
    pub(super) fn reference(&self, field: &str, table: &'static str) -> Result<Option<Row<'a>>> {
        let Some(name) = self.name_in(field, table)?.filter(|_| self.db.has(table)) else { return Ok(None) };
        let found = self.db.row(table, &name)?;
        found.map(Some).ok_or_else(|| {
            let rows = self.db.rows(table).unwrap_or_default();
            let names: Vec<_> = rows.iter().map(|row| row.key).collect();
            let names = names.join(", ");
            self.field_error(field, format_args!("{table} has no `{name}`: expected one of {names}"))
        })
    }

    pub(super) fn key_parts(&self) -> Vec<&'a str> {
        self.key.split(SEPARATORS).collect()
    }
}

/// Separators of a key's parts; `:` is used by old releases.
const SEPARATORS: [char; 2] = ['|', ':'];
/// Placeholders of fields without a value.
const PLACEHOLDERS: [&str; 3] = ["NULL", "None", "N/A"];

/// Whether a top-level key is a namespace of a multi-ASIC switch.
fn is_namespace(name: &str) -> bool {
    let number = name.strip_prefix("asic");
    name == "localhost"
        || number.is_some_and(|n| !n.is_empty() && n.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Tables from the rows of `sonic-db-dump`, `{"QUEUE|Ethernet0|3": {"type": "hash", "value": {...}}}`, or
/// from such rows with the fields as the value. Tables next to the latter are unchanged.
fn tables_of_dump(entries: Fields) -> Fields {
    let is_hash = |entry: &Value| entry.get("type").and_then(Value::as_str) == Some("hash");
    let is_dump = entries.iter().any(|(key, entry)| key.contains('|') && is_hash(entry));
    let mut tables = Map::new();
    for (key, mut entry) in entries {
        let Some((table, row)) = key.split_once('|') else {
            // A dump has flags such as `CONFIG_DB_INITIALIZED`.
            if !is_dump {
                tables.insert(key, entry);
            }
            continue;
        };
        let fields = if is_dump { entry.get_mut("value").map(Value::take) } else { Some(entry) };
        let Some(fields) = fields.filter(Value::is_object) else { continue };
        let rows = tables.entry(table).or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(rows) = rows {
            rows.insert(row.to_owned(), fields);
        }
    }
    tables
}
