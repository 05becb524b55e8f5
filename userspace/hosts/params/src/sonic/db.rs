//! The file: tables of rows of fields, whose values are text.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read as _};
use std::ops::RangeInclusive;
use std::path::Path;

use serde_json::{Map, Value};

/// Why a file cannot be used; says where in it and what was expected.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be read.
    #[error("{file}: {source}")]
    Read {
        /// The file.
        file: String,
        /// Why.
        source: io::Error,
    },
    /// It is not JSON.
    #[error("{file}: {source}")]
    Json {
        /// The file.
        file: String,
        /// Where and why.
        source: serde_json::Error,
    },
    /// Something in it is wrong.
    #[error("{file}: {at}: {message}")]
    Content {
        /// The file.
        file: String,
        /// `TABLE`, `TABLE|KEY` or `TABLE|KEY field`.
        at: String,
        /// What is wrong, and what was expected.
        message: String,
    },
    /// What is in force cannot be said in SONiC's terms.
    #[error("{0}")]
    Export(String),
}

/// Largest file that is read; those of large chassis have a few megabytes.
const MAX_BYTES: u64 = 64 << 20;

/// A `config_db.json`.
#[derive(Clone, Debug)]
pub struct Database {
    file: String,
    tables: Map<String, Value>,
}

/// A row of a table: what its fields are read through.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row<'a> {
    db: &'a Database,
    table: &'static str,
    key: &'a str,
    fields: &'a Map<String, Value>,
}

impl Database {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, is not JSON, or is no object.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let file = path.display().to_string();
        let failed = |source| Error::Read { file: file.clone(), source };
        let mut text = Vec::new();
        File::open(path).and_then(|from| from.take(MAX_BYTES + 1).read_to_end(&mut text)).map_err(failed)?;
        if text.len() as u64 > MAX_BYTES {
            return Err(failed(io::Error::other(format!("it has more than {MAX_BYTES} bytes"))));
        }
        Self::parse(&file, &text)
    }

    /// Reads the text of a file called `file`.
    ///
    /// # Errors
    /// It is not JSON, or no object.
    pub fn parse(file: &str, text: &[u8]) -> Result<Self, Error> {
        let value =
            serde_json::from_slice(text).map_err(|source| Error::Json { file: file.to_owned(), source })?;
        match value {
            Value::Object(tables) => Ok(Self { file: file.to_owned(), tables }),
            _ => Err(Error::Content {
                file: file.to_owned(),
                at: "top".into(),
                message: "expected an object of tables, as in {\"PORT\": {...}}".into(),
            }),
        }
    }

    pub(super) fn error(&self, at: impl Display, message: impl Display) -> Error {
        Error::Content { file: self.file.clone(), at: at.to_string(), message: message.to_string() }
    }

    /// Names of the tables.
    pub(super) fn tables(&self) -> impl Iterator<Item = &str> {
        self.tables.keys().map(String::as_str)
    }

    /// The rows of a table; none if it is not there.
    pub(super) fn rows<'a>(&'a self, table: &'static str) -> Result<Vec<Row<'a>>, Error> {
        let rows = match self.tables.get(table) {
            None => return Ok(Vec::new()),
            Some(Value::Object(rows)) => rows,
            Some(_) => return Err(self.error(table, "expected an object of rows")),
        };
        let row = |(key, fields): (&'a String, &'a Value)| match fields {
            Value::Object(fields) => Ok(Row { db: self, table, key, fields }),
            _ => Err(self.error(format_args!("{table}|{key}"), "expected an object of fields")),
        };
        rows.iter().map(row).collect()
    }

    /// One row of a table.
    pub(super) fn row(&self, table: &'static str, key: &str) -> Result<Option<Row<'_>>, Error> {
        Ok(self.rows(table)?.into_iter().find(|row| row.key == key))
    }
}

impl<'a> Row<'a> {
    /// Its key.
    pub(super) const fn key(&self) -> &'a str {
        self.key
    }

    /// Whether another says the same.
    pub(super) fn agrees(&self, other: &Self) -> bool {
        self.fields == other.fields
    }

    /// Names of its fields.
    pub(super) fn fields(&self) -> impl Iterator<Item = &'a str> {
        self.fields.keys().map(String::as_str)
    }

    /// Something is wrong with the row.
    pub(super) fn error(&self, message: impl Display) -> Error {
        self.db.error(format_args!("{}|{}", self.table, self.key), message)
    }

    /// Something is wrong with a field.
    pub(super) fn field_error(&self, field: &str, message: impl Display) -> Error {
        self.db.error(format_args!("{}|{} {field}", self.table, self.key), message)
    }

    /// The text of a field.
    pub(super) fn text(&self, field: &str) -> Result<Option<String>, Error> {
        match self.fields.get(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.trim().to_owned())),
            Some(Value::Number(number)) => Ok(Some(number.to_string())),
            Some(Value::Bool(switch)) => Ok(Some(switch.to_string())),
            Some(_) => Err(self.field_error(field, "expected a text")),
        }
    }

    /// The whole number in a field.
    pub(super) fn number(
        &self,
        field: &str,
        range: RangeInclusive<u64>,
        what: &str,
    ) -> Result<Option<u64>, Error> {
        let Some(text) = self.text(field)? else {
            return Ok(None);
        };
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.map(Some).ok_or_else(|| {
            let (low, high) = range.into_inner();
            self.field_error(field, format_args!("`{text}`: expected {what}, {low} to {high}"))
        })
    }

    /// The switch in a field.
    pub(super) fn switch(&self, field: &str) -> Result<Option<bool>, Error> {
        match self.text(field)?.as_deref() {
            None => Ok(None),
            Some("true") => Ok(Some(true)),
            Some("false") => Ok(Some(false)),
            Some(text) => Err(self.field_error(field, format_args!("`{text}`: expected `true` or `false`"))),
        }
    }

    /// The row of `table` that a field names, as `NAME` or, in old files, as `[TABLE|NAME]`.
    pub(super) fn reference(&self, field: &str, table: &'static str) -> Result<Option<Row<'a>>, Error> {
        let Some(text) = self.text(field)?.filter(|text| !text.is_empty()) else {
            return Ok(None);
        };
        let name = match text.strip_prefix('[') {
            None => text.as_str(),
            Some(rest) => {
                let inside = rest.strip_suffix(']').and_then(|inside| inside.split_once(SEPARATORS));
                match inside {
                    Some((of, name)) if of == table => name,
                    _ => {
                        let expected = format!("`{text}`: expected NAME or [{table}|NAME]");
                        return Err(self.field_error(field, expected));
                    }
                }
            }
        };
        let found = self.db.row(table, name)?;
        found.map(Some).ok_or_else(|| {
            let names: Vec<_> =
                self.db.rows(table).unwrap_or_default().iter().map(|row| row.key.to_owned()).collect();
            let there = if names.is_empty() {
                "the file has no such table".to_owned()
            } else {
                format!("expected one of {}", names.join(", "))
            };
            self.field_error(field, format_args!("{table} has no `{name}`: {there}"))
        })
    }

    /// The parts of its key.
    pub(super) fn key_parts(&self) -> Vec<&'a str> {
        self.key.split(SEPARATORS).collect()
    }
}

/// What stands between the parts of a key; `:` is the old way.
const SEPARATORS: [char; 2] = ['|', ':'];
