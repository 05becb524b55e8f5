//! Import of a switch's configuration.

mod pfc;
mod values;

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use dcqcn_common::layout::{CLASSES, DSCPS};
use dcqcn_common::params::{
    Config, Invalid, MAX_RATE_BPS, MIN_RATE_BPS, Name, SCHEDULER_DWRR, SCHEDULER_STRICT, Table,
};
use serde::Serialize;

use super::db::{Database, Fields, Number, Result, Row, is_imported, short};
use crate::{Assignment, Key};
use values::{Marking, drops_non_ect, green_fields, mark_thresholds};

#[derive(Clone, Debug, Default)]
pub struct Import {
    /// Settings, each with its source.
    pub settings: Vec<(String, Assignment)>,
    pub unmapped: Vec<Unmapped>,
    /// Likely mistakes in the request.
    pub warnings: Vec<String>,
}

/// A field or row that is not imported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unmapped {
    pub table: String,
    /// Row; `*` for all.
    pub key: String,
    pub fields: Vec<String>,
    pub reason: String,
}

impl Unmapped {
    /// The row, of more than four ports in its key only the first and the last.
    pub fn short_key(&self) -> String {
        short(&self.key)
    }
}

/// Tables about queues without a counterpart.
const OTHER_TABLES: [(&str, &str); 13] = [
    ("BUFFER_POOL", "describes the switch's buffers"),
    ("BUFFER_PORT_INGRESS_PROFILE_LIST", "describes the switch's buffers"),
    ("BUFFER_PORT_EGRESS_PROFILE_LIST", "describes the switch's buffers"),
    ("BUFFER_QUEUE", "describes the switch's buffers; queue_limit limits the virtual queue"),
    ("CABLE_LENGTH", "used for pfc.N.tx only: set pfc.N.headroom"),
    ("DEFAULT_LOSSLESS_BUFFER_PARAMETER", COMPUTED_BUFFERS),
    ("DOT1P_TO_TC_MAP", "not supported: classes depend on the DSCP only"),
    ("LOSSLESS_TRAFFIC_PATTERN", COMPUTED_BUFFERS),
    ("MPLS_TC_TO_TC_MAP", "not supported: classes depend on the DSCP only"),
    ("PFC_PRIORITY_TO_PRIORITY_GROUP_MAP", "priority group N belongs to priority N here"),
    (
        "SWITCH_TRIMMING",
        "not supported by import: set trim_dscp_value, and queue_limit of the trimmed classes",
    ),
    ("TC_TO_DSCP_MAP", "not supported: DSCPs are not rewritten"),
    ("TC_TO_PRIORITY_GROUP_MAP", "priority group N belongs to priority N here"),
];
const COMPUTED_BUFFERS: &str =
    "the switch computes lossless buffers from it; set pfc.N.xoff, pfc.N.xon and pfc.N.headroom instead";

/// Imports the configuration of `port`, on a chassis also `HOST|ASIC|PORT`. `current` has the interface's parameters,
/// which apply where the file has no value.
pub fn import(db: &Database, port: &str, current: &Config) -> Result<Import> {
    let (card, port) = match port.split('|').collect::<Vec<_>>().as_slice() {
        [host, asic, port] => (Some([*host, *asic]), *port),
        _ => (None, port),
    };
    let (db, port) = db.of_port(card.map(|[_, asic]| asic), port)?;
    let merged = Merged::default();
    let mut reader =
        Reader { db: &db, port: &port, card, merged: &merged, pfc_enable: 0, import: Import::default() };
    let queues = reader.queues()?;
    let maps = reader.maps_of_port()?;
    reader.speed()?;
    let tc_to_queue = reader.maps(maps.as_ref(), current)?;
    reader.wred(&queues, &tc_to_queue)?;
    reader.pfc(maps.as_ref(), current)?;
    reader.buffers(current)?;
    reader.drop_conflicts(current);
    for (table, reason) in OTHER_TABLES.iter().filter(|(table, _)| db.has(table)) {
        reader.unmapped(table, "*", &[], *reason);
    }
    let is_known = |table: &&str| is_imported(table) || OTHER_TABLES.iter().any(|(name, _)| name == table);
    for table in db.tables().filter(|table| !is_known(table)) {
        reader.unmapped(table, "*", &[], "does not concern a port's queues");
    }
    Ok(reader.import)
}

/// Whether a port is in a range of ports, as in `Ethernet0-Ethernet8` or `Ethernet0-8`. Names may have hyphens.
fn is_in_range(range: &str, port: &str) -> bool {
    let Some((prefix, number)) = numbered(port) else { return false };
    range.match_indices('-').any(|(at, hyphen)| {
        let (low, high) = range.split_at(at);
        let (low, high) = (numbered(low), high.strip_prefix(hyphen).and_then(numbered));
        low.zip(high).is_some_and(|((of_low, low), (of_high, high))| {
            of_low == prefix && [prefix, ""].contains(&of_high) && (low..=high).contains(&number)
        })
    })
}

/// Prefix and number of a port's name.
fn numbered(name: &str) -> Option<(&str, u32)> {
    let prefix = name.trim_end_matches(|c: char| c.is_ascii_digit());
    Some((prefix, name.strip_prefix(prefix)?.parse().ok()?))
}

/// Whether a card has these names, of which one may be enough.
fn is_card(card: &[&str], names: &[Option<String>; 2]) -> bool {
    let is_same = |(part, name): (&&str, &Option<String>)| {
        name.as_ref().is_none_or(|name| name.eq_ignore_ascii_case(part))
    };
    card.len() == names.len() && names.iter().any(Option::is_some) && card.iter().zip(names).all(is_same)
}

struct Reader<'a> {
    db: &'a Database,
    port: &'a str,
    /// Host and ASIC, if specified.
    card: Option<[&'a str; 2]>,
    merged: &'a Merged,
    /// Priorities in the port's `pfc_enable`, as bits.
    pfc_enable: u8,
    import: Import,
}

/// Fields of several rows for one queue, priority group or port.
#[derive(Default)]
struct Merged {
    maps: OnceCell<Fields>,
    watchdog: OnceCell<Fields>,
    queues: [OnceCell<Fields>; CLASSES],
    groups: [OnceCell<Fields>; CLASSES],
}

type Queues<'a> = BTreeMap<usize, Row<'a>>;
type QueueOfClass = [Option<usize>; CLASSES];

impl<'a> Reader<'a> {
    /// Whether a key's list of ports includes the port, by its name or in a range.
    fn is_port(&self, ports: &str) -> bool {
        ports.split(',').map(str::trim).any(|ports| ports == self.port || is_in_range(ports, self.port))
    }

    /// Card and number of a row of the port, whose key is `PORT|NUMBER`, or `HOST|ASIC|PORT|NUMBER` on a
    /// chassis. A key with the port in another position is listed.
    fn row_of_port(&mut self, row: &Row<'a>, what: &str) -> Option<(Vec<&'a str>, &'a str)> {
        let mut parts = row.key_parts();
        let is_port: Vec<bool> = parts.iter().map(|part| self.is_port(part)).collect();
        match is_port.as_slice() {
            [.., true, _] => {
                let number = parts.pop()?;
                parts.pop();
                Some((parts, number))
            }
            is_port => {
                if is_port.contains(&true) {
                    self.skip(row, &[], format!("expected a key of port and {what}, as in {}|3", self.port));
                }
                None
            }
        }
    }

    /// The row of `table` that a field refers to; a missing table is listed.
    fn row_of(&mut self, row: &Row<'a>, field: &str, table: &'static str) -> Result<Option<Row<'a>>> {
        let found = row.reference(field, table)?;
        if found.is_none() && row.name_in(field, table)?.is_some() {
            let reason = format!("{table} is not in the file: its parameters are unchanged");
            self.skip(row, &[field], reason);
        }
        Ok(found)
    }

    /// Lists what is not imported, once.
    fn unmapped(&mut self, table: &str, key: &str, fields: &[&str], reason: impl Into<String>) {
        let fields = fields.iter().map(|field| (*field).to_owned()).collect();
        let unmapped =
            Unmapped { table: table.to_owned(), key: key.to_owned(), fields, reason: reason.into() };
        if !self.import.unmapped.contains(&unmapped) {
            self.import.unmapped.push(unmapped);
        }
    }

    /// Lists fields of a row that are not imported, or the row.
    fn skip(&mut self, row: &Row<'_>, fields: &[&str], reason: impl Into<String>) {
        self.unmapped(row.table(), row.key(), fields, reason);
    }

    /// Lists the fields of a row that are not `known`, if any.
    fn skip_others(&mut self, row: &Row<'a>, is_known: impl Fn(&str) -> bool, reason: &str) {
        let others: Vec<_> = row.fields().filter(|field| !is_known(field)).collect();
        if !others.is_empty() {
            self.skip(row, &others, reason);
        }
    }

    /// Lists the fields of a row other than `known`.
    fn skip_unknown(&mut self, row: &Row<'a>, known: &[&str]) {
        self.skip_others(row, |field| known.contains(&field), "no counterpart");
    }

    /// Adds a setting from a field of a row; from several fields if `field` is empty.
    fn set(&mut self, row: &Row<'_>, field: impl Display, key: &str, value: u64) -> Result<()> {
        let from = format!("{}|{} {field}", row.table(), row.key());
        self.set_from(from.trim_end().to_owned(), row, key, value)
    }

    fn set_from(&mut self, from: String, row: &Row<'_>, key: &str, value: u64) -> Result<()> {
        let key: Key = key.parse().map_err(|error| row.error(error))?;
        let setting = Assignment::of(key, value).map_err(|error| row.error(error))?;
        self.import.settings.push((from, setting));
        Ok(())
    }

    /// Lists instead of importing what conflicts only with a value of the interface that the file does not set.
    fn drop_conflicts(&mut self, current: &Config) {
        loop {
            let mut config = *current;
            if self.import.settings.iter().any(|(_, setting)| setting.apply(&mut config).is_err()) {
                return;
            }
            let keys = match config.validate() {
                Err(Invalid::Order { low: low @ Name::Row(Table::Pfc, ..), high, .. }) => {
                    [low.to_string(), low.with_key(high).to_string()]
                }
                Err(Invalid::AboveLink { key, .. }) => ["link_rate".to_owned(), key.to_owned()],
                Ok(()) | Err(_) => return,
            };
            let is_set =
                |key: &&String| self.import.settings.iter().any(|(_, of)| of.key.to_string() == **key);
            // A contradiction in the file is rejected by the caller.
            let (set, absent): (Vec<&String>, Vec<&String>) = keys.iter().partition(is_set);
            let ([key], [other]) = (set.as_slice(), absent.as_slice()) else { return };
            let is_dropped = |(_, of): &(String, Assignment)| of.key.to_string() == **key;
            let dropped: Vec<_> = self.import.settings.iter().filter(|of| is_dropped(of)).cloned().collect();
            self.import.settings.retain(|of| !is_dropped(of));
            for (from, _) in dropped {
                let (row, field) = from.split_once(' ').unwrap_or((&from, ""));
                let (table, row) = row.split_once('|').unwrap_or((row, "*"));
                let reason = format!(
                    "conflicts with the interface's {other}, which the file does not set: {key} is unchanged"
                );
                self.unmapped(table, row, &[field], reason);
            }
        }
    }

    /// Ports with rows in tables other than `PORT`, as in a fragment of a file.
    fn named_ports(&self) -> Result<BTreeSet<&'a str>> {
        let mut ports = BTreeSet::new();
        for table in ["QUEUE", "PORT_QOS_MAP", "PFC_WD", "BUFFER_PG"] {
            for row in self.db.rows(table)? {
                let parts = row.key_parts();
                let of_row = match parts.as_slice() {
                    [port] => port,
                    [.., ports, _] => ports,
                    [] => continue,
                };
                ports.extend(
                    of_row.split(',').map(str::trim).filter(|port| !["global", "GLOBAL"].contains(port)),
                );
            }
        }
        Ok(ports)
    }

    fn speed(&mut self) -> Result<()> {
        let rows = self.db.rows("PORT")?;
        let Some(row) = self.db.row("PORT", self.port)? else {
            let named =
                if rows.is_empty() { self.named_ports()? } else { rows.iter().map(Row::key).collect() };
            if rows.is_empty() && named.iter().any(|ports| self.is_port(ports)) {
                self.unmapped("PORT", self.port, &["speed"], "not in the file: link_rate is unchanged");
                return Ok(());
            }
            let ports: Vec<_> = named.into_iter().take(8).collect();
            let there = match ports.as_slice() {
                [] => {
                    let tables: Vec<_> = self.db.tables().take(8).collect();
                    let tables = if tables.is_empty() { "none".to_owned() } else { tables.join(", ") };
                    format!("the file has no ports; its tables: {tables}")
                }
                ports => format!("expected one as in {}", ports.join(", ")),
            };
            return Err(self
                .db
                .error(format_args!("PORT|{}", self.port), format_args!("no such port: {there}")));
        };
        self.skip_unknown(&row, &["speed", "alias", pfc::ASYMMETRIC]);
        const MBIT: u64 = 1_000_000;
        match self.number(&row, "speed", 1..=MAX_RATE_BPS / MBIT, "a speed in Mbit/s")? {
            Number::Is(mbit) => self.set(&row, "speed", "link_rate", mbit * MBIT),
            Number::Absent => {
                self.unmapped("PORT", self.port, &["speed"], "not in the file: link_rate is unchanged");
                Ok(())
            }
            Number::Outside => Ok(()),
        }
    }

    /// The port's row of `PORT_QOS_MAP`, or the row for all ports.
    fn maps_of_port(&mut self) -> Result<Option<Row<'a>>> {
        let merged = self.merged;
        match self.only_row("PORT_QOS_MAP", &merged.maps)? {
            None => self.db.row("PORT_QOS_MAP", "global"),
            found => Ok(found),
        }
    }

    /// The port's row of a table whose keys are ports. Keys with another part are listed.
    fn only_row(&mut self, table: &'static str, cell: &'a OnceCell<Fields>) -> Result<Option<Row<'a>>> {
        let mut rows = Vec::new();
        for row in self.db.rows(table)? {
            let parts = row.key_parts();
            if !parts.iter().any(|part| self.is_port(part)) {
                continue;
            }
            match parts.as_slice() {
                [_] => rows.push(row.valid()?),
                _ => self.skip(&row, &[], format!("expected a key of ports alone, as in {}", self.port)),
            }
        }
        Row::merged(&rows, "the port", cell)
    }

    /// Imports both maps, and returns the queue of each class; `None`: one that does not exist here.
    fn maps(&mut self, of_port: Option<&Row<'a>>, current: &Config) -> Result<QueueOfClass> {
        const DSCP: &str = "dscp_to_tc_map";
        const QUEUE: &str = "tc_to_queue_map";
        let Some(of_port) = of_port else {
            let reason = "not in the file: dscp_to_tc and tc_to_queue are unchanged";
            self.unmapped("PORT_QOS_MAP", self.port, &[], reason);
            return Ok(current.tc_to_queue.map(|queue| Some(queue.into())));
        };
        let global = self.db.row("PORT_QOS_MAP", "global")?;
        let mut find = |field, table| match (self.row_of(of_port, field, table)?, global) {
            (None, Some(global)) => self.row_of(&global, field, table),
            (found, _) => Ok(found),
        };
        let (dscps, classes) = (find(DSCP, "DSCP_TO_TC_MAP")?, find(QUEUE, "TC_TO_QUEUE_MAP")?);
        match dscps {
            Some(map) => {
                for (dscp, tc) in self.map_entries(&map, DSCPS, "a DSCP")?.into_iter().enumerate() {
                    let Some(tc) = tc else { continue };
                    self.set(&map, dscp, &format!("dscp_to_tc.{dscp}"), tc)?;
                }
            }
            None => self.skip(of_port, &[DSCP], "not in the file: dscp_to_tc is unchanged"),
        }
        let mut queues = current.tc_to_queue.map(|queue| Some(queue.into()));
        match classes {
            Some(map) => {
                let entries = self.map_entries(&map, CLASSES, "a traffic class")?;
                for ((tc, queue), entry) in entries.into_iter().enumerate().zip(&mut queues) {
                    *entry = queue.map(|queue| queue as usize);
                    let Some(queue) = queue else { continue };
                    self.set(&map, tc, &format!("tc_to_queue.{tc}"), queue)?;
                }
            }
            None => self.skip(of_port, &[QUEUE], "not in the file: tc_to_queue is unchanged"),
        }
        let is_imported = |field: &str| [DSCP, QUEUE].contains(&field) || pfc::FIELDS.contains(&field);
        self.skip_others(of_port, is_imported, "no counterpart for port schedulers and other maps");
        Ok(queues)
    }

    /// The port's rows of `QUEUE`. On a chassis with virtual output queues a key starts with a host and an ASIC, and
    /// several cards have ports of the same name: only rows of the file's own card are used.
    fn queues(&mut self) -> Result<Queues<'a>> {
        let own = self.own_card()?;
        let is_own = |card: &[&str]| is_card(card, &own);
        // If the card is certain, rows of others are not used, even if it has none of this port.
        let mut is_certain = own.iter().all(Option::is_some);
        let mut rows = Vec::new();
        let (mut cards, mut cards_of_file, mut has_own) = (BTreeSet::new(), BTreeSet::new(), false);
        for row in self.db.rows("QUEUE")? {
            if let Some((card @ [_, ..], _)) = row.key_parts().split_last_chunk::<2>() {
                has_own |= is_own(card);
                cards_of_file.insert(card.join("|"));
            }
            let Some((card, numbers)) = self.row_of_port(&row, "queue") else { continue };
            rows.push((row.valid()?, card.is_empty() || is_own(&card), numbers));
            cards.insert(card.join("|"));
        }
        is_certain |= has_own;
        let is_of_file =
            self.card.is_some_and(|card| self.card_of_file().is_ok_and(|own| is_card(&card, &own)));
        // The file's own card may have no queues.
        if let Some(card) = self.card.filter(|_| !has_own && !is_of_file && !cards_of_file.is_empty()) {
            let known: Vec<_> = cards_of_file.into_iter().take(8).collect();
            let warning =
                format!("no queue is on card {}; the file has {}", card.join("|"), known.join(", "));
            self.import.warnings.push(warning);
        }
        if is_certain || rows.iter().any(|(_, is_own, _)| *is_own) {
            rows.retain(|(_, is_own, _)| *is_own);
        }
        if rows.is_empty() && !cards.is_empty() {
            let cards: Vec<_> = cards.into_iter().take(8).collect();
            let reason = format!("only on other cards: {}", cards.join(", "));
            self.unmapped("QUEUE", self.port, &[], reason);
        }
        let mut of_queues: BTreeMap<usize, Vec<Row<'a>>> = BTreeMap::new();
        for (row, _, numbers) in rows {
            for queue in self.numbers_of(&row, numbers) {
                if queue < CLASSES {
                    of_queues.entry(queue).or_default().push(row);
                } else {
                    let reason = format!("only queues 0 to {} exist", CLASSES - 1);
                    self.skip(&row, &[], reason);
                }
            }
        }
        let mut queues = Queues::new();
        for (queue, rows) in of_queues {
            let card =
                |row: &Row<'a>| row.key_parts().split_last_chunk::<2>().map(|(card, _)| card.join("|"));
            for pair in rows.windows(2).filter(|pair| !pair[0].agrees(&pair[1])) {
                if card(&pair[0]) != card(&pair[1]) {
                    return Err(pair[1].error(format_args!(
                        "QUEUE|{} has this queue too: rows of several cards; specify one, as in \
                         `--port 'HOST|ASIC|{}'`, or add DEVICE_METADATA (hostname, asic_name) of one",
                        pair[0].short_key(),
                        self.port
                    )));
                }
            }
            let row = Row::merged(&rows, format_args!("queue {queue}"), &self.merged.queues[queue])?;
            queues.extend(row.map(|row| (queue, row)));
        }
        Ok(queues)
    }

    /// Host and ASIC of the port's card, as far as they are specified.
    fn own_card(&self) -> Result<[Option<String>; 2]> {
        match self.card {
            Some(card) => Ok(card.map(|name| Some(name.to_owned()))),
            None => self.card_of_file(),
        }
    }

    /// Host and ASIC of the card that the file belongs to, as far as they are specified.
    fn card_of_file(&self) -> Result<[Option<String>; 2]> {
        let Some(row) = self.db.row("DEVICE_METADATA", "localhost")? else {
            return Ok([None, None]);
        };
        Ok([row.text("hostname")?, row.text("asic_name")?])
    }

    fn wred(&mut self, queues: &Queues<'a>, tc_to_queue: &QueueOfClass) -> Result<()> {
        if queues.is_empty() {
            self.unmapped("QUEUE", self.port, &[], "not in the file: WRED is unchanged");
            return Ok(());
        }
        for (tc, queue) in tc_to_queue.iter().enumerate() {
            let Some((queue, row)) = queue.and_then(|queue| Some((queue, queues.get(&queue)?))) else {
                if let Some(any) = queues.values().next() {
                    let number = queue.map_or_else(|| format!("of class {tc}"), |queue| queue.to_string());
                    let from = format!("QUEUE|{}|{number} (not in the file)", self.port);
                    for name in ["ecn", "drain_rate"] {
                        self.set_from(from.clone(), any, &format!("wred.{tc}.{name}"), 0)?;
                    }
                }
                continue;
            };
            match self.row_of(row, "wred_profile", "WRED_PROFILE")? {
                Some(profile) => {
                    let Marking { curve, limit_bytes, ecn } = self.marking(&profile)?;
                    let limit = limit_bytes.map(|bytes| ("queue_limit", bytes));
                    let ecn_value = ecn.map(|ecn| ("ecn", u64::from(ecn)));
                    for (name, value) in curve.into_iter().chain(limit).chain(ecn_value) {
                        self.set(&profile, "", &format!("wred.{tc}.{name}"), value)?;
                    }
                    self.other_profile_fields(&profile, ecn)?;
                }
                // The missing table is listed already.
                None if row.name_in("wred_profile", "WRED_PROFILE")?.is_some() => {}
                None => {
                    self.set(row, "(no wred_profile)", &format!("wred.{tc}.ecn"), 0)?;
                }
            }
            // If several classes share a queue, only the first sets its scheduler and weight.
            let is_first = tc_to_queue.iter().position(|of_tc| *of_tc == Some(queue)) == Some(tc);
            self.scheduler(row, tc, is_first.then_some(queue))?;
            self.skip_unknown(row, &["wred_profile", "scheduler"]);
        }
        self.shared_and_unused(queues, tc_to_queue);
        Ok(())
    }

    /// Lists queues of several classes and of none.
    fn shared_and_unused(&mut self, queues: &Queues<'a>, tc_to_queue: &QueueOfClass) {
        for queue in 0..CLASSES {
            let classes = (0..).zip(tc_to_queue).filter(|(_, of_tc)| **of_tc == Some(queue));
            let classes: Vec<String> = classes.map(|(tc, _): (u8, _)| tc.to_string()).collect();
            if classes.len() > 1
                && queues.get(&queue).is_some_and(|row| row.fields().any(|f| f == "wred_profile"))
            {
                let classes = classes.join(", ");
                let reason =
                    format!("traffic classes {classes} share the queue, but each has its own virtual queue");
                self.unmapped("QUEUE", &format!("{}|{queue}", self.port), &["wred_profile"], reason);
            }
        }
        for (queue, row) in queues {
            if !tc_to_queue.contains(&Some(*queue)) {
                let reason = format!("no traffic class maps to queue {queue}");
                self.skip(row, &row.fields().collect::<Vec<_>>(), reason);
            }
        }
    }

    /// Imports the scheduling and shaping rate of queue `number`, and lists other fields of its scheduler.
    fn scheduler(&mut self, queue: &Row<'a>, tc: usize, number: Option<usize>) -> Result<()> {
        const MIN_BYTES_PER_S: u64 = MIN_RATE_BPS / 8;
        const DEFAULT_WEIGHT: u64 = 1;
        let drain_rate = format!("wred.{tc}.drain_rate");
        let Some(scheduler) = self.row_of(queue, "scheduler", "SCHEDULER")? else {
            // A missing table is listed already.
            return match queue.name_in("scheduler", "SCHEDULER")? {
                Some(_) => Ok(()),
                None => self.set(queue, "(no scheduler)", &drain_rate, 0),
            };
        };
        let in_bytes = scheduler.text("meter_type")?.is_none_or(|meter| meter == "bytes");
        let pir = match self.number(&scheduler, "pir", 0..=MAX_RATE_BPS / 8, "bytes per second")? {
            Number::Is(bytes_per_s @ 1..MIN_BYTES_PER_S) if in_bytes => {
                let reason = format!(
                    "`{bytes_per_s}` is out of range: {MIN_BYTES_PER_S} to {}, or 0 (bytes per second); the \
                     parameter is unchanged",
                    MAX_RATE_BPS / 8
                );
                self.skip(&scheduler, &["pir"], reason);
                None
            }
            Number::Is(bytes_per_s) => Some(bytes_per_s),
            Number::Absent => Some(0),
            Number::Outside => None,
        };
        if let Some(bytes_per_s) = pir.filter(|pir| in_bytes || *pir == 0) {
            self.set(&scheduler, "pir", &drain_rate, bytes_per_s * 8)?;
        }
        let kind = scheduler.text("type")?.map(|text| text.to_ascii_uppercase());
        let is_packet_weighted = kind.as_deref().is_none_or(|kind| kind == "WRR");
        // SONiC's default.
        let kind = match kind.as_deref().unwrap_or("WRR") {
            "STRICT" => Some(SCHEDULER_STRICT),
            "DWRR" | "WRR" => Some(SCHEDULER_DWRR),
            other => {
                let reason =
                    format!("`{other}` is not one of DWRR, WRR, STRICT: queue.N.scheduler is unchanged");
                self.skip(&scheduler, &["type"], reason);
                None
            }
        };
        let weight = match kind {
            // The weight of a strict queue is unused, and 0 in some files.
            Some(SCHEDULER_STRICT) => None,
            _ => match self.number(&scheduler, "weight", 1..=100, "a weight")? {
                Number::Is(weight) => Some(weight),
                Number::Absent => kind.map(|_| DEFAULT_WEIGHT),
                Number::Outside => None,
            },
        };
        if let Some(number) = number {
            let fields = [("scheduler", kind), ("weight", weight)];
            for (name, value) in fields.into_iter().filter_map(|(name, value)| Some((name, value?))) {
                self.set(&scheduler, "", &format!("queue.{number}.{name}"), value)?;
            }
        }
        if is_packet_weighted {
            let reason = "imported as DWRR, also without a type: weights count bytes here, not packets";
            self.skip(&scheduler, &["type"], reason);
        }
        let is_imported = |field: &str| {
            ["type", "weight"].contains(&field) || in_bytes && ["pir", "meter_type"].contains(&field)
        };
        let reason = "of a scheduler's rates only pir, in bytes, has a counterpart: drain_rate";
        self.skip_others(&scheduler, is_imported, reason);
        Ok(())
    }

    /// Lists fields of a profile other than the marking of green packets.
    fn other_profile_fields(&mut self, profile: &Row<'a>, ecn: Option<bool>) -> Result<()> {
        const COLOURS: [&str; 6] =
            ["yellow_", "red_", "wred_yellow_", "wred_red_", "ecn_yellow_", "ecn_red_"];
        let is_colour = |field: &str| COLOURS.iter().any(|of| field.starts_with(of));
        let green = green_fields(profile);
        self.skip_others(profile, |field| is_colour(field) || green.contains(&field), "no counterpart");
        let drops = ["green_min_threshold", "green_drop_probability"];
        let is_early = ecn == Some(true) && mark_thresholds(profile).is_some() && !drops_non_ect(profile)?;
        if is_early {
            let reason = "no early drops: the queue accepts packets up to green_max_threshold";
            self.skip(profile, &drops, reason);
        }
        self.skip_others(profile, |field| !is_colour(field), "not used: all packets are green");
        if ecn == Some(false) && profile.switch("wred_green_enable")? == Some(true) {
            let reason = "early drops without ECN are not supported: WRED only marks";
            self.skip(profile, &["wred_green_enable"], reason);
        }
        if ecn == Some(true) && profile.switch("wred_green_enable")?.is_none() {
            let reason = "absent, assumed true; a switch may mark nothing without it";
            self.skip(profile, &["wred_green_enable"], reason);
        }
        Ok(())
    }
}
