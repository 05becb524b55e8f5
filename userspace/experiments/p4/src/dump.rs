//! Parser of `simple_switch_CLI` output, in the format of BMv2 1.15 (`tools/runtime_CLI.py`).

use super::control::TableDump;
use super::entry::{Entry, Match, Value};

pub(super) fn table(name: &str, text: &str) -> Option<TableDump> {
    let (entries, default_action) = text.split_once("Dumping default entry")?;
    let entries =
        entries.split("Dumping entry ").skip(1).map(|text| entry(name, text)).collect::<Option<_>>()?;
    let default_action =
        action(default_action).map(|(action, params)| Entry::default_action(name, action, params));
    Some(TableDump { entries, default_action })
}

fn entry(table: &str, text: &str) -> Option<(u64, Entry)> {
    let mut lines = text.lines();
    let handle = u64::from_str_radix(lines.next()?.trim().strip_prefix("0x")?, 16).ok()?;
    let mut key = Vec::new();
    for field in lines.filter_map(|line| line.strip_prefix("* ")) {
        let (_, compared) = field.split_once(':')?;
        key.push(compared_with(compared.trim())?);
    }
    let (action, params) = action(text)?;
    Some((handle, Entry::new(table, key, action, params)))
}

fn compared_with(text: &str) -> Option<Match> {
    let (kind, value) = text.split_once(char::is_whitespace)?;
    let value = value.trim();
    match kind {
        "EXACT" => Some(Match::Exact(number(value)?)),
        "LPM" => {
            let (prefix, len) = value.split_once('/')?;
            Some(Match::Lpm(number(prefix)?, len.parse().ok()?))
        }
        _ => None,
    }
}

/// The action in a dump, and its parameters.
fn action(text: &str) -> Option<(&str, Vec<Value>)> {
    let line = text.lines().find_map(|line| line.strip_prefix("Action entry: "))?;
    let (action, params) = line.split_once(" -")?;
    let params = params.split(',').map(str::trim).filter(|param| !param.is_empty());
    Some((action, params.map(number).collect::<Option<_>>()?))
}

fn number(hex: &str) -> Option<Value> {
    u128::from_str_radix(hex.trim(), 16).ok().map(Value::Number)
}

pub(super) fn register(text: &str) -> Option<Vec<u64>> {
    let (_, values) = text.trim().split_once('=')?;
    values.split(',').map(|value| value.trim().parse().ok()).collect()
}

/// Parses the answer to `counter_read`: packets and bytes.
pub(super) fn counter(text: &str) -> Option<(u64, u64)> {
    let (_, values) = text.lines().find_map(|line| line.split_once("= ("))?;
    let (bytes, packets) = values.trim_end().strip_suffix(" packets)")?.split_once(" bytes, ")?;
    Some((packets.parse().ok()?, bytes.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cli_table_dump_parsed() {
        let text = "\
==========
TABLE ENTRIES
**********
Dumping entry 0x1a
Match key:
* hdr.ipv4.dst        : LPM       0a000100/24
Action entry: Ingress.route - 01, 020000000001, 020000000002
**********
Dumping entry 0x2
Match key:
* meta.port           : EXACT     0001
* meta.tc             : EXACT     03
Action entry: NoAction - 
==========
Dumping default entry
Action entry: Ingress.no_route - 
==========
";
        let dump = table("T", text).unwrap();
        let params = vec![1_u64.into(), Value::Mac([2, 0, 0, 0, 0, 1]), Value::Mac([2, 0, 0, 0, 0, 2])];
        let route =
            Entry::new("T", vec![Match::Lpm(Value::V4([10, 0, 1, 0].into()), 24)], "Ingress.route", params);
        let other = Entry::new("T", vec![Match::exact(1_u64), Match::exact(3_u64)], "NoAction", vec![]);
        assert_eq!(dump.entries, [(0x1a, route), (2, other)]);
        assert_eq!(dump.default_action, Some(Entry::default_action("T", "Ingress.no_route", vec![])));
        let empty = "==========\nTABLE ENTRIES\n==========\nDumping default entry\nEMPTY\n==========\n";
        assert_eq!(table("T", empty), Some(TableDump { entries: vec![], default_action: None }));
        assert_eq!(table("T", "nonsense"), None);
        assert_eq!(table("T", &text.replace("EXACT     03", "TERNARY   03 &&& 07")), None);
    }

    #[test]
    fn registers_and_counters_are_read() {
        assert_eq!(
            register("Ingress.rp_qpn= 0, 17, 9223372036854775807\n"),
            Some(vec![0, 17, (1 << 63) - 1])
        );
        assert_eq!(register("Ingress.rp_qpn[3]= 17\n"), Some(vec![17]));
        assert_eq!(counter("Egress.class_packets[3]= (1082 bytes, 2 packets)\n"), Some((2, 1082)));
        assert_eq!(counter("nonsense"), None);
    }
}
