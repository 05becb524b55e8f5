//! Connection matrices of htsim, as uet-htsim's are: `SRC->DST start PS size BYTES`, with triggers.
//!
//! Start times are picoseconds. A connection without a start waits for its trigger: a oneshot, which starts all of its
//! connections; a multishot, in which each completion starts the next one; or a barrier, which waits for a number of
//! connections.

use std::collections::{BTreeMap, HashMap};

use super::{MAX_FLOWS, Wait, Workload};
use crate::network::agenda::MAX_TIME_NS;
use crate::network::read::{FileError, quoted, words};

/// Maximum number of dependencies, which take some 4 GB.
const MAX_EDGES: u64 = 100_000_000;

#[derive(Debug, Default)]
struct Trigger {
    kind: Option<Kind>,
    count: usize,
    /// Connections that fire it, with their condition.
    from: Vec<(u32, Wait)>,
    /// Connections that it starts.
    starts: Vec<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Oneshot,
    Multishot,
    Barrier,
}

impl Workload {
    /// Reads a connection matrix. Each connection has its own QP in `class`.
    ///
    /// # Errors
    /// A line is malformed or contradicts the header, a connection never starts, or a trigger violates the rules of its
    /// kind.
    pub fn htsim(name: &str, text: &str, class: u8) -> Result<Self, FileError> {
        let mut workload = Self::new();
        let mut triggers: HashMap<u64, Trigger> = HashMap::new();
        let (mut nodes, mut connections) = (u32::MAX, None);
        for (line, words) in words(text) {
            let refuse = |what: String| Err(FileError::new(name, line, what));
            match words.as_slice() {
                ["Nodes", count] => match count.parse() {
                    Ok(count) => nodes = count,
                    Err(_) => return refuse(format!("{} is not a number of nodes", quoted(&[count]))),
                },
                ["Connections", count] => match count.parse::<usize>() {
                    Ok(count) if count as u64 > MAX_FLOWS => {
                        return refuse(format!("{count} connections are out of range: 1 to {MAX_FLOWS}"));
                    }
                    Ok(count) => connections = Some(count),
                    Err(_) => return refuse(format!("{} is not a number of connections", quoted(&[count]))),
                },
                ["Triggers" | "Failures", ..] => {}
                ["trigger", rest @ ..] => {
                    let Some((id, kind, count)) = trigger(rest) else {
                        return refuse(format!(
                            "{} is not a trigger: write `trigger id N oneshot`, `multishot` or `barrier count N`",
                            quoted(&words)
                        ));
                    };
                    let trigger = triggers.entry(id).or_default();
                    if trigger.kind.is_some() {
                        return refuse(format!("trigger {id} is defined twice"));
                    }
                    (trigger.kind, trigger.count) = (Some(kind), count);
                }
                [ends, rest @ ..] if ends.contains("->") => {
                    let connection =
                        connection(ends, rest, nodes).map_err(|what| FileError::new(name, line, what))?;
                    if workload.flows().len() as u64 == MAX_FLOWS {
                        return refuse(format!("more than {MAX_FLOWS} connections"));
                    }
                    workload.add_connection(&connection, class, &mut triggers);
                }
                ["failure", ..] => {
                    return refuse(
                        "failures of switches are not supported: use `--fault` for failing links".to_owned(),
                    );
                }
                _ => return refuse(format!("{} is neither a connection nor a trigger", quoted(&words))),
            }
        }
        let found = workload.flows().len();
        if let Some(count) = connections.filter(|&count| count != found) {
            let what = format!("the file announces {count} connections, but has {found}");
            return Err(FileError::new(name, 0, what));
        }
        let triggers = BTreeMap::from_iter(triggers);
        for (id, trigger) in &triggers {
            trigger.validate().map_err(|what| FileError::new(name, 0, format!("trigger {id}: {what}")))?;
        }
        let edges: u64 = triggers.values().map(Trigger::edges).sum();
        if edges > MAX_EDGES {
            let what = format!(
                "{edges} dependencies are out of range: 0 to {MAX_EDGES}; a trigger has one for each connection that \
                 fires it and each that it starts, so use fewer connections per trigger, or fewer nodes"
            );
            return Err(FileError::new(name, 0, what));
        }
        workload.edges.reserve_exact(edges as usize);
        triggers.values().for_each(|trigger| workload.wire_trigger(trigger));
        Ok(workload)
    }

    fn add_connection(&mut self, connection: &Connection, class: u8, triggers: &mut HashMap<u64, Trigger>) {
        let &Connection { ends: [src, dst], bytes, start_ps, trigger, sent, received } = connection;
        let flow = self.flow(src, dst, class, bytes, start_ps.unwrap_or(0) / 1_000);
        if let Some(id) = trigger {
            triggers.entry(id).or_default().starts.push(flow);
        }
        for (id, wait) in [(sent, Wait::Acknowledged), (received, Wait::Delivered)] {
            if let Some(id) = id {
                triggers.entry(id).or_default().from.push((flow, wait));
            }
        }
    }

    fn wire_trigger(&mut self, trigger: &Trigger) {
        for (shot, &start) in (1..).zip(&trigger.starts) {
            trigger.from.iter().for_each(|&(flow, wait)| self.after(start, flow, wait));
            if trigger.kind == Some(Kind::Multishot) {
                self.after_any(start, shot);
            }
        }
    }
}

impl Trigger {
    /// Number of dependencies.
    fn edges(&self) -> u64 {
        self.from.len() as u64 * self.starts.len() as u64
    }

    fn validate(&self) -> Result<(), String> {
        let Self { kind, count, from, starts } = self;
        if from.is_empty() && !starts.is_empty() {
            return Err("no connection fires it".to_owned());
        }
        match kind {
            None if !starts.is_empty() => Err("its kind is missing: write `trigger id N oneshot`".to_owned()),
            Some(Kind::Oneshot) if from.len() > 1 => {
                Err(format!("{} connections fire a oneshot", from.len()))
            }
            Some(Kind::Barrier) if *count != from.len() => {
                Err(format!("a barrier of {count} has {} connections that fire it", from.len()))
            }
            Some(Kind::Multishot) if starts.len() > from.len() => {
                Err(format!("a multishot of {} has {} connections that fire it", starts.len(), from.len()))
            }
            _ => Ok(()),
        }
    }
}

#[derive(Debug, Default)]
struct Connection {
    /// Source and destination.
    ends: [u32; 2],
    bytes: u64,
    start_ps: Option<u64>,
    trigger: Option<u64>,
    sent: Option<u64>,
    received: Option<u64>,
}

/// The connection of a line, `ends` and then `words`, between two of the `nodes` nodes.
fn connection(ends: &str, words: &[&str], nodes: u32) -> Result<Connection, String> {
    let numbers =
        ends.split_once("->").and_then(|(src, dst)| Some([src.parse::<u32>().ok()?, dst.parse().ok()?]));
    let (Some([src, dst]), Some(connection)) = (numbers, attributes(words)) else {
        return Err(format!(
            "{} is not a connection: write SRC->DST start PICOSECONDS size BYTES; a start is at most 274 s",
            quoted(&[&[ends], words].concat())
        ));
    };
    if src == dst {
        return Err(format!("{src}->{dst}: a connection needs two nodes"));
    }
    if src.max(dst) >= nodes {
        return Err(format!("{src}->{dst}: the file announces {nodes} nodes, numbered from 0"));
    }
    if connection.bytes == 0 {
        return Err("size 0, an endless connection, is not supported".to_owned());
    }
    if connection.start_ps.is_some() == connection.trigger.is_some() {
        return Err("a connection must have either a start or a trigger".to_owned());
    }
    Ok(Connection { ends: [src, dst], ..connection })
}

/// The words after the endpoints of a connection.
fn attributes(words: &[&str]) -> Option<Connection> {
    let mut connection = Connection::default();
    let mut size = None;
    let mut rest = words.iter().copied().peekable();
    while let Some(key) = rest.next() {
        // The number after `msg` is optional.
        if key == "msg" && rest.peek().is_none_or(|word| word.parse::<u64>().is_err()) {
            continue;
        }
        let value = rest.next()?;
        match key {
            // Fractions of a picosecond are ignored.
            "start" if connection.start_ps.is_none() => {
                let most_ps = MAX_TIME_NS as f64 * 1e3;
                let start_ps = value.parse::<f64>().ok().filter(|start| (0.0..=most_ps).contains(start))?;
                connection.start_ps = Some(start_ps as u64);
            }
            "size" if size.is_none() => size = Some(value.parse().ok()?),
            "trigger" if connection.trigger.is_none() => connection.trigger = Some(value.parse().ok()?),
            "send_done_trigger" if connection.sent.is_none() => connection.sent = Some(value.parse().ok()?),
            "recv_done_trigger" if connection.received.is_none() => {
                connection.received = Some(value.parse().ok()?)
            }
            "id" | "msg" | "prio" => {}
            _ => return None,
        }
    }
    connection.bytes = size?;
    Some(connection)
}

/// The words after `trigger`: its number, kind and count.
fn trigger(words: &[&str]) -> Option<(u64, Kind, usize)> {
    let (mut id, mut kind, mut count) = (None, None, None);
    let mut rest = words.iter();
    while let Some(&word) = rest.next() {
        match word {
            "id" if id.is_none() => id = Some(rest.next()?.parse().ok()?),
            "count" if count.is_none() => count = Some(rest.next()?.parse().ok()?),
            "oneshot" if kind.is_none() => kind = Some(Kind::Oneshot),
            "multishot" if kind.is_none() => kind = Some(Kind::Multishot),
            "barrier" if kind.is_none() => kind = Some(Kind::Barrier),
            _ => return None,
        }
    }
    Some((id?, kind?, count.unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::workload::WorkloadError;

    #[test]
    fn connections_and_triggers_are_read() {
        let text = "Nodes 4\nConnections 5\nTriggers 2\n\
            0->1 id 1 start 2500 size 1000 send_done_trigger 1\n\
            2->3 id 2 start 0 size 2000 recv_done_trigger 2\n\
            1->2 id 3 trigger 1 size 3000 recv_done_trigger 2\n\
            3->0 id 4 trigger 2 size 4000 prio 3\n\
            0->2 id 5 trigger 2 size 5000\n\
            trigger id 1 oneshot\ntrigger id 2 barrier count 2\n";
        let workload = Workload::htsim("m.cm", text, 3).unwrap();
        let sizes: Vec<u64> = workload.flows().iter().map(|flow| flow.bytes).collect();
        assert_eq!(sizes, [1_000, 2_000, 3_000, 4_000, 5_000]);
        assert_eq!(workload.flows()[0].start_ns, 2);
        let edges: Vec<_> = workload.edges().iter().map(|edge| (edge.from, edge.to, edge.wait)).collect();
        assert_eq!(
            edges,
            [
                (0, 2, Wait::Acknowledged),
                (1, 3, Wait::Delivered),
                (1, 4, Wait::Delivered),
                (2, 3, Wait::Delivered),
                (2, 4, Wait::Delivered)
            ]
        );
        assert_eq!(workload.validate(4), Ok(()));
    }

    #[test]
    fn message_id_is_optional() {
        for (text, size) in [("0->1 id 1 msg start 0 size 5\n", 5), ("0->1 start 0 size 6 msg 7 prio 1\n", 6)]
        {
            assert_eq!(Workload::htsim("m", text, 3).unwrap().flows()[0].bytes, size, "{text}");
        }
    }

    #[test]
    fn multishot_fired_by_its_own_connections() {
        let text = "0->1 start 0 size 5 send_done_trigger 1\n0->2 trigger 1 size 5 send_done_trigger 1\n\
                    0->3 trigger 1 size 5 send_done_trigger 1\ntrigger id 1 multishot\n";
        assert_eq!(Workload::htsim("m", text, 3).unwrap().validate(4), Ok(()));
        // No completion starts the first.
        let text = text.replacen("start 0", "trigger 1", 1);
        assert_eq!(Workload::htsim("m", &text, 3).unwrap().validate(4), Err(WorkloadError::Cycle(3)));
    }

    #[test]
    fn too_many_dependencies_rejected() {
        // No trigger alone has too many.
        let text: String = (0..2)
            .map(|id| {
                let of_one =
                    format!("0->1 start 0 size 5 send_done_trigger {id}\n1->0 trigger {id} size 5\n");
                format!("{}trigger id {id} multishot\n", of_one.repeat(7_072))
            })
            .collect();
        let refused = Workload::htsim("m", &text, 3).unwrap_err().to_string();
        let expected =
            "m: 100026368 dependencies are out of range: 0 to 100000000; a trigger has one for each";
        assert!(refused.starts_with(expected) && refused.ends_with("or fewer nodes"), "{refused}");
    }

    #[test]
    fn unreadable_file_named() {
        for (text, expected) in [
            ("0->1 start 0\n", "m:1: `0->1 start 0` is not a connection"),
            ("0->1 size 5\n", "m:1: a connection must have either a start or a trigger"),
            ("0->1 size 5 start 0 trigger 1\n", "m:1: a connection must have either a start or a trigger"),
            ("0->1 trigger 1 size 5\ntrigger id 1 oneshot\n", "m: trigger 1: no connection fires it"),
            (
                "0->1 start 0 size 5 send_done_trigger 1\n1->0 trigger 1 size 5\n",
                "m: trigger 1: its kind is missing",
            ),
            (
                "0->1 start 0 size 5 send_done_trigger 1\n1->0 trigger 1 size 5\ntrigger id 1 barrier count 2",
                "m: trigger 1: a barrier of 2 has 1",
            ),
            (
                "0->1 start 0 size 5 send_done_trigger 1\n1->0 trigger 1 size 5\n1->0 trigger 1 size 5\n\
                 trigger id 1 multishot",
                "m: trigger 1: a multishot of 2 has 1 connections",
            ),
            ("Nodes 2\n0->3 start 0 size 5\n", "m:2: 0->3: the file announces 2 nodes"),
            ("Connections 16000001\n", "m:1: 16000001 connections are out of range: 1 to 16000000"),
            ("Nodes two\n", "m:1: `two` is not a number of nodes"),
            (&format!("Nodes {}\n", "x".repeat(999)), &format!("m:1: `{}...` is not", "x".repeat(160))),
            (&format!("Connections {}\n", "x".repeat(999)), &format!("m:1: `{}...` is", "x".repeat(160))),
            ("Connections 2\n0->1 start 0 size 5\n", "m: the file announces 2 connections, but has 1"),
            ("0->0 start 0 size 5\n", "m:1: 0->0: a connection needs two nodes"),
            ("0->1 start 0 size 0\n", "m:1: size 0, an endless connection, is not supported"),
            (
                "0->1 start 99999999999999999999 size 5\n",
                "m:1: `0->1 start 99999999999999999999 size 5` is not",
            ),
            ("trigger id 1\n", "m:1: `trigger id 1` is not a trigger"),
            ("trigger id 1 oneshot barrier\n", "m:1: `trigger id 1 oneshot barrier` is not a trigger"),
            ("trigger id 1 barrier count 1 count 2\n", "m:1: `trigger id 1 barrier count 1 count 2` is not"),
            ("0->1 start 0 size 5 size 6\n", "m:1: `0->1 start 0 size 5 size 6` is not a connection"),
            ("trigger id 1 oneshot\ntrigger id 1 multishot\n", "m:2: trigger 1 is defined twice"),
            ("hello\n", "m:1: `hello` is neither"),
        ] {
            let refused = Workload::htsim("m", text, 3).unwrap_err().to_string();
            assert!(refused.starts_with(expected), "{refused}");
        }
    }
}
