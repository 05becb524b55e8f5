//! Chakra execution traces (MLCommons): one file per rank, `PREFIX.0.et`, `PREFIX.1.et` and so on.
//!
//! A file is a sequence of length-prefixed messages: metadata, then nodes with their dependencies. Rank N is
//! host N. Computations take their duration; sends and receives are flows; a collective is one over all ranks
//! whose traces contain it ([`Collective`]), which must agree on its type, size and root, and on the number
//! of collectives of their group; a barrier is an all-reduce without data. NVLink and the like are not
//! modelled: all traffic uses the fabric. Of the nodes that PyTorch records for a collective, that of the CPU
//! (`is_cpu_op`) only launches it: a computation. Control dependencies are ignored, as by Chakra's feeder:
//! those of PyTorch are the call stack.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use dcqcn_params::word;
use prost::Message;

use super::collective::{Collective, Pairs};
use super::{Wait, Workload, check_flows};
use crate::network::read::{FileError, bytes, cut};

/// The relevant fields of `Node`.
#[derive(Clone, PartialEq, Message)]
struct Node {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(int32, tag = "3")]
    kind: i32,
    #[prost(uint64, repeated, tag = "5")]
    data_deps: Vec<u64>,
    #[prost(uint64, tag = "7")]
    duration_micros: u64,
    #[prost(message, repeated, tag = "10")]
    attr: Vec<Attribute>,
}

/// `AttributeProto`, restricted to whole numbers, booleans, lists of booleans, and text.
#[derive(Clone, PartialEq, Message)]
struct Attribute {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(oneof = "Number", tags = "7, 9, 11, 13, 27")]
    value: Option<Number>,
    #[prost(message, optional, tag = "28")]
    flags: Option<Flags>,
    #[prost(string, optional, tag = "29")]
    text: Option<String>,
}

/// `BoolList`.
#[derive(Clone, PartialEq, Message)]
struct Flags {
    #[prost(bool, repeated, tag = "1")]
    values: Vec<bool>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Number {
    #[prost(int32, tag = "7")]
    Int32(i32),
    #[prost(int64, tag = "9")]
    Int64(i64),
    #[prost(uint32, tag = "11")]
    Uint32(u32),
    #[prost(uint64, tag = "13")]
    Uint64(u64),
    #[prost(bool, tag = "27")]
    Bool(bool),
}

const COMM_SEND: i32 = 5;
const COMM_RECV: i32 = 6;
const COMM_COLL: i32 = 7;
/// `CollectiveCommType` of a barrier.
const BARRIER: u64 = 9;

impl Node {
    fn attribute(&self, name: &str) -> Option<&Attribute> {
        self.attr.iter().find(|attribute| attribute.name == name)
    }

    fn number(&self, name: &str) -> Option<u64> {
        match *self.attribute(name)?.value.as_ref()? {
            Number::Int32(value) => value.try_into().ok(),
            Number::Int64(value) => value.try_into().ok(),
            Number::Uint32(value) => Some(value.into()),
            Number::Uint64(value) => Some(value),
            Number::Bool(value) => Some(value.into()),
        }
    }

    /// Number and name, for an error.
    fn title(&self) -> String {
        format!("node {} (`{}`)", self.id, cut(&self.name))
    }

    fn error(&self, file: &str, problem: &str) -> FileError {
        FileError::new(file, 0, format!("{}: {problem}", self.title()))
    }

    fn bytes(&self, file: &str) -> Result<u64, FileError> {
        self.number("comm_size").ok_or_else(|| self.error(file, "comm_size is not a whole number"))
    }

    /// The collective of a `CollectiveCommType`, and the size of a rank's input.
    fn collective(&self, file: &str) -> Result<(Collective, u64), FileError> {
        let unknown = |problem: &str| {
            let fix =
                format!("{problem}; set it to {BARRIER} (barrier) to keep its dependencies without data");
            Err(self.error(file, &fix))
        };
        let collective = match self.number("comm_type") {
            Some(BARRIER) => return Ok((Collective::AllReduce, 0)),
            Some(0) => Collective::AllReduce,
            Some(1) => Collective::Reduce,
            Some(2) => Collective::AllGather,
            Some(3) => Collective::Gather,
            Some(4) => Collective::Scatter,
            Some(5) => Collective::Broadcast,
            Some(6) => Collective::AllToAll,
            Some(7 | 8) => Collective::ReduceScatter,
            Some(other) => return unknown(&format!("unknown comm_type {other}")),
            None => return unknown("comm_type is missing"),
        };
        Ok((collective, self.bytes(file)?))
    }

    /// The group of a collective: `pg_name`, or the number in older traces of STG.
    ///
    /// # Errors
    /// One has another type; or there is neither, and the collective does not use all dimensions of ASTRA-sim's
    /// network.
    fn group(&self, file: &str) -> Result<Cow<'_, str>, FileError> {
        if let Some(attribute) = self.attribute("pg_name") {
            let group = attribute.text.as_deref().map(Cow::Borrowed);
            return group.ok_or_else(|| self.error(file, "pg_name is not a text"));
        }
        if self.attribute("comm_group").is_some() {
            let group = self.number("comm_group").map(|group| group.to_string().into());
            let what = "comm_group is not a whole number from 0 on; name the group of ranks in pg_name";
            return group.ok_or_else(|| self.error(file, what));
        }
        if self
            .attribute("involved_dim")
            .and_then(|attribute| attribute.flags.as_ref())
            .is_some_and(|d| d.values.contains(&false))
        {
            let what = "involved_dim excludes a dimension of ASTRA-sim's network, which a fabric does not have; name \
                        the group of ranks in pg_name";
            return Err(self.error(file, what));
        }
        Ok(Cow::Borrowed(""))
    }

    fn root(&self) -> Option<u64> {
        ["comm_root", "root_rank"].iter().find_map(|name| self.number(name))
    }

    /// The values in which the nodes of a collective must agree, as text.
    fn terms(&self, file: &str) -> Result<String, FileError> {
        let (collective, bytes) = self.collective(file)?;
        let root = self.root().map_or_else(String::new, |root| format!(" from root {root}"));
        Ok(format!("{} of {bytes} bytes{root}", word(&collective)))
    }
}

impl Workload {
    /// Reads the traces `PREFIX.0.et`, `PREFIX.1.et` and so on, at most `hosts`.
    ///
    /// # Errors
    /// There is no trace, one cannot be read or has an unknown collective, or traces disagree.
    pub(crate) fn chakra(prefix: &Path, hosts: u32, class: u8) -> Result<Self, FileError> {
        let mut traces: Vec<Trace> = Vec::new();
        for rank in 0..=hosts {
            let name = format!("{}.{rank}.et", prefix.display());
            if !Path::new(&name).exists() {
                let later = (rank + 1..=hosts).map(|rank| format!("{}.{rank}.et", prefix.display()));
                match later.into_iter().find(|later| Path::new(later).exists()) {
                    Some(later) if rank != 0 => {
                        return Err(FileError::new(&name, 0, format!("it is missing, but {later} exists")));
                    }
                    _ => break,
                }
            }
            if rank == hosts {
                let what = format!("the fabric has hosts for {hosts} ranks only: use a larger one");
                return Err(FileError::new(&name, 0, what));
            }
            let bytes = bytes(Path::new(&name))?;
            let known: u64 = traces.iter().map(|(_, nodes)| nodes.len() as u64).sum();
            traces.push((name.clone(), nodes(&name, &bytes, known)?));
        }
        if traces.is_empty() {
            return Err(no_trace(prefix));
        }
        if let Some((name, _)) = traces.iter().find(|(_, nodes)| nodes.is_empty())
            && traces.iter().flat_map(|(_, nodes)| nodes).any(|node| node.kind == COMM_COLL)
        {
            return Err(FileError::new(name, 0, "it has no nodes, but other ranks have collectives"));
        }
        Self::of_traces(&traces, class)
    }

    fn of_traces(traces: &[Trace], class: u8) -> Result<Self, FileError> {
        let mut builder = Builder {
            workload: Self::new(),
            pairs: Pairs::new(class),
            traces,
            known: vec![KnownNodes::new(); traces.len()],
            collectives: Vec::new(),
            indices: HashMap::new(),
            sent: Messages::new(),
            received: Messages::new(),
        };
        // The first rank of each group, and its number of collectives.
        let mut totals: HashMap<Cow<'_, str>, (usize, usize)> = HashMap::new();
        for (rank, (name, nodes)) in traces.iter().enumerate() {
            let mut counts: BTreeMap<Cow<'_, str>, (usize, &Node)> = BTreeMap::new();
            for node in nodes {
                let entry = builder.entry(rank, node, &mut counts)?;
                if builder.known[rank].insert(node.id, entry).is_some() {
                    return Err(node.error(name, "another node has the same id"));
                }
            }
            for (group, (count, last)) in counts {
                let (first, expected) = *totals.entry(group.clone()).or_insert((rank, count));
                if count != expected {
                    let what = format!(
                        "the last collective of group `{}` on rank {rank}, number {count}; rank {first} has {expected}",
                        cut(&group)
                    );
                    return Err(last.error(name, &what));
                }
            }
        }
        builder.match_messages()?;
        let ends = builder.join_collectives()?;
        builder.add_dependencies(&ends)?;
        Ok(builder.workload)
    }
}

/// The file and nodes of a rank.
type Trace = (String, Vec<Node>);

/// A known node: its flow, and the condition for its dependents.
type KnownNodes = HashMap<u64, (u32, Wait)>;

/// Flows of messages and the nodes that send or receive them, by source, destination and tag.
type Messages<'t> = HashMap<(u32, u32, u64), Vec<(u32, &'t Node)>>;

/// A workload under construction.
///
/// The n-th collective of a group of ranks is the same in all traces; so is the n-th message between two ranks.
struct Builder<'t> {
    workload: Workload,
    pairs: Pairs,
    traces: &'t [Trace],
    /// By rank.
    known: Vec<KnownNodes>,
    /// Ranks and nodes of each collective.
    collectives: Vec<Vec<(usize, &'t Node)>>,
    /// Collectives by group and number in it.
    indices: HashMap<(Cow<'t, str>, usize), usize>,
    sent: Messages<'t>,
    received: Messages<'t>,
}

impl<'t> Builder<'t> {
    fn file(&self, rank: usize) -> &'t str {
        &self.traces[rank].0
    }

    /// The flow of a node. `counts`: number of collectives of each group on this rank so far, and the last one.
    fn entry(
        &mut self,
        rank: usize,
        node: &'t Node,
        counts: &mut BTreeMap<Cow<'t, str>, (usize, &'t Node)>,
    ) -> Result<(u32, Wait), FileError> {
        let (host, name, ranks) = (rank as u32, self.file(rank), self.traces.len() as u64);
        let peer = |key: &str| {
            let peer = node.number(key).filter(|&peer| peer < ranks);
            peer.map(|peer| peer as u32)
                .ok_or_else(|| node.error(name, &format!("`{key}` is not a valid rank")))
        };
        let tag = node.number("comm_tag").unwrap_or(0);
        let on_cpu = node.number("is_cpu_op").is_some_and(|value| value != 0);
        Ok(match node.kind {
            COMM_SEND if !on_cpu => {
                let dst = peer("comm_dst")?;
                let flow = self.workload.between(&mut self.pairs, host, dst, node.bytes(name)?.max(1));
                self.sent.entry((host, dst, tag)).or_default().push((flow, node));
                (flow, Wait::Acknowledged)
            }
            COMM_RECV if !on_cpu => {
                let flow = self.workload.compute(host, 0);
                self.received.entry((peer("comm_src")?, host, tag)).or_default().push((flow, node));
                (flow, Wait::Delivered)
            }
            COMM_COLL if !on_cpu => {
                let group = node.group(name)?;
                let (count, last) = counts.entry(group.clone()).or_insert((0, node));
                (*count, *last) = (*count + 1, node);
                let index = *self.indices.entry((group, *count)).or_insert_with(|| {
                    self.collectives.push(Vec::new());
                    self.collectives.len() - 1
                });
                self.collectives[index].push((rank, node));
                // Its dependencies; its dependents are added by `add_dependencies`.
                (self.workload.compute(host, 0), Wait::Delivered)
            }
            _ => {
                let time_ns = node.duration_micros.saturating_mul(1_000);
                (self.workload.compute(host, time_ns), Wait::Delivered)
            }
        })
    }

    /// Makes each receive wait for its send.
    fn match_messages(&mut self) -> Result<(), FileError> {
        for (key @ &(src, dst, tag), flows) in &self.received {
            let file = self.file(dst as usize);
            let sent = self.sent.get(key).map_or(&[][..], Vec::as_slice);
            let (receives, sends) = (flows.len(), sent.len());
            if sends < receives {
                let what = format!(
                    "rank {dst} receives {receives} messages of rank {src} with tag {tag}, which sends {sends}"
                );
                return Err(FileError::new(file, 0, what));
            }
            for (&(receive, node), &(send, sender)) in flows.iter().zip(sent) {
                if let (Some(own), Some(bytes)) = (node.number("comm_size"), sender.number("comm_size"))
                    && own != bytes
                {
                    let what = format!(
                        "rank {dst} receives {own} bytes, but rank {src} sends {bytes} in {}",
                        sender.title()
                    );
                    return Err(node.error(file, &what));
                }
                self.workload.after(receive, send, Wait::Delivered);
            }
        }
        Ok(())
    }

    /// Adds the flows of collectives; returns the end of each at its nodes, by rank.
    fn join_collectives(&mut self) -> Result<Vec<HashMap<u64, u32>>, FileError> {
        let mut ends = vec![HashMap::new(); self.traces.len()];
        for mut members in std::mem::take(&mut self.collectives) {
            let Some(&(first, node)) = members.first() else { continue };
            let file = self.file(first);
            let (collective, bytes) = node.collective(file)?;
            for &(rank, other) in &members {
                let [found, expected] = [other.terms(self.file(rank))?, node.terms(file)?];
                if found != expected {
                    let what = format!(
                        "rank {rank} has {found}, but rank {first} has {expected} in {}",
                        node.title()
                    );
                    return Err(other.error(self.file(rank), &what));
                }
            }
            // The input of a rank is its part of these, and the whole buffer of the others.
            let is_part = matches!(collective, Collective::AllGather | Collective::Gather);
            let parts = if is_part { members.len() as u64 } else { 1 };
            let flows = Workload::flows_of_collectives(collective, members.len() as u64, 1);
            self.workload.check_room(file, flows)?;
            // The root of a collective is its first rank.
            let root = node.root();
            let last = self.traces.len().saturating_sub(1) as u64;
            if let Some(root) = root.filter(|&root| collective.has_root() && root > last) {
                return Err(node.error(file, &format!("its root, {root}, is not a rank: 0 to {last}")));
            }
            if let Some(index) = members.iter().position(|&(rank, _)| Some(rank as u64) == root) {
                members.rotate_left(index);
            }
            let ranks: Vec<u32> = members.iter().map(|&(rank, _)| rank as u32).collect();
            let ready: Vec<u32> = members.iter().map(|&(rank, node)| self.known[rank][&node.id].0).collect();
            let bytes = bytes.saturating_mul(parts);
            let done = self.workload.collective(collective, bytes, &ranks, &ready, &mut self.pairs);
            for (&(rank, node), done) in members.iter().zip(done) {
                ends[rank].insert(node.id, done);
            }
        }
        Ok(ends)
    }

    /// Makes nodes wait for those they depend on, or for the end of the collective of those.
    fn add_dependencies(&mut self, ends: &[HashMap<u64, u32>]) -> Result<(), FileError> {
        for (rank, (name, nodes)) in self.traces.iter().enumerate() {
            let (known, ends) = (&self.known[rank], &ends[rank]);
            for node in nodes {
                let (flow, _) = known[&node.id];
                for dependency in &node.data_deps {
                    let Some(&start) = known.get(dependency) else {
                        return Err(node.error(name, &format!("depends on missing node {dependency}")));
                    };
                    let (other, wait) = ends.get(dependency).map_or(start, |&end| (end, Wait::Delivered));
                    self.workload.after(flow, other, wait);
                }
            }
        }
        Ok(())
    }
}

/// The error for a prefix without a trace, with the fix for existing files: a prefix, or a conversion.
fn no_trace(prefix: &Path) -> FileError {
    let name = prefix.display().to_string();
    let mut files: Vec<String> = if prefix.is_dir() {
        let entries = std::fs::read_dir(prefix).into_iter().flatten().flatten();
        entries.map(|entry| entry.path().display().to_string()).collect()
    } else {
        let known = [name.clone(), format!("{name}.0.et.json"), format!("{name}.0.json")];
        known.into_iter().filter(|file| Path::new(file).is_file()).collect()
    };
    files.sort();
    let prefix_of = |file: &String| {
        let (prefix, rank) = file.strip_suffix(".et")?.rsplit_once('.')?;
        rank.parse::<u32>().ok().map(|_| prefix.to_owned())
    };
    let what = if let Some(found) = files.iter().find_map(prefix_of) {
        format!("it is not the part of the traces' names before the rank: specify `chakra:{found}`")
    } else if let Some(json) = files.iter().find(|file| file.ends_with(".json")) {
        format!(
            "traces in JSON, such as {json}, are not read: convert that of each rank, as in `chakra_converter PyTorch \
             --input {json} --output PREFIX.0.et`"
        )
    } else if prefix.is_file() {
        "it is a file: name the traces PREFIX.0.et, PREFIX.1.et and so on by rank, and specify `chakra:PREFIX`".to_owned()
    } else {
        format!("no trace {name}.0.et: specify the part of the names before the rank")
    };
    FileError::new(&name, 0, what)
}

/// The nodes of a trace, in order; earlier ranks have `known` nodes, each of which is a flow.
fn nodes(name: &str, bytes: &[u8], known: u64) -> Result<Vec<Node>, FileError> {
    let refuse = |what: String| FileError::new(name, 0, format!("is not a Chakra trace: {what}"));
    let mut rest = bytes;
    let mut nodes = Vec::new();
    let mut is_metadata = true;
    while !rest.is_empty() {
        let length = prost::encoding::decode_varint(&mut rest).map_err(|error| refuse(error.to_string()))?;
        let length = usize::try_from(length).ok().filter(|&length| length <= rest.len());
        let Some((message, after)) = length.and_then(|length| rest.split_at_checked(length)) else {
            return Err(refuse(format!("a message {} bytes before the end is truncated", rest.len())));
        };
        rest = after;
        if !std::mem::take(&mut is_metadata) {
            nodes.push(Node::decode(message).map_err(|error| refuse(error.to_string()))?);
            check_flows(name, known + nodes.len() as u64)?;
        }
    }
    if is_metadata {
        return Err(refuse("it is empty".to_owned()));
    }
    Ok(nodes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::workload::MAX_FLOWS;

    fn number(name: &str, value: i64) -> Attribute {
        Attribute { name: name.to_owned(), value: Some(Number::Int64(value)), ..Attribute::default() }
    }

    fn trace(nodes: &[Node]) -> Vec<u8> {
        // Metadata: only `version`.
        let mut bytes = vec![7, 10, 5];
        bytes.extend(b"0.0.4");
        for node in nodes {
            node.encode_length_delimited(&mut bytes).unwrap();
        }
        bytes
    }

    fn node(id: u64, kind: i32, deps: &[u64], attr: Vec<Attribute>) -> Node {
        Node { id, kind, data_deps: deps.to_vec(), attr, ..Node::default() }
    }

    #[test]
    fn traces_of_all_ranks_become_flows() {
        let directory = std::env::temp_dir().join(format!("dcqcn-chakra-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        for rank in 0..4_i64 {
            let compute = Node { duration_micros: 7, ..node(1, 4, &[], vec![]) };
            let reduce = node(2, COMM_COLL, &[1], vec![number("comm_type", 0), number("comm_size", 4_000)]);
            let mut nodes = vec![compute, reduce];
            if rank == 0 {
                let to = vec![number("comm_dst", 3), number("comm_size", 500), number("comm_tag", 9)];
                nodes.push(node(3, COMM_SEND, &[2], to));
            }
            if rank == 3 {
                nodes.push(node(5, COMM_RECV, &[], vec![number("comm_src", 0), number("comm_tag", 9)]));
                nodes.push(Node { duration_micros: 1, ..node(6, 4, &[2, 5], vec![]) });
            }
            std::fs::write(directory.join(format!("t.{rank}.et")), trace(&nodes)).unwrap();
        }
        let workload = Workload::chakra(&directory.join("t"), 4, 3).unwrap();
        assert_eq!(workload.validate(4), Ok(()));
        let sent: Vec<u64> = workload
            .flows()
            .iter()
            .filter(|flow| workload.ends(flow).is_some_and(|pair| pair.src != pair.dst))
            .map(|flow| flow.bytes)
            .collect();
        assert_eq!(sent.iter().filter(|&&bytes| bytes == 1_000).count(), 4 * 6);
        assert_eq!(sent.iter().filter(|&&bytes| bytes == 500).count(), 1);
        assert_eq!(workload.flows().iter().filter(|flow| flow.delay_ns == 7_000).count(), 4);
        let few = Workload::chakra(&directory.join("t"), 3, 3).unwrap_err().to_string();
        assert!(few.contains("t.3.et: the fabric has hosts for 3 ranks only"), "{few}");
        let none = Workload::chakra(&directory.join("u"), 4, 3).unwrap_err().to_string();
        assert!(none.contains("no trace"), "{none}");
        std::fs::rename(directory.join("t.1.et"), directory.join("moved")).unwrap();
        let gap = Workload::chakra(&directory.join("t"), 4, 3).unwrap_err().to_string();
        assert!(gap.contains("t.1.et: it is missing, but ") && gap.ends_with("t.2.et exists"), "{gap}");
        std::fs::write(directory.join("t.0.et"), [200, 1, 2]).unwrap();
        let torn = Workload::chakra(&directory.join("t"), 4, 3).unwrap_err().to_string();
        assert!(torn.contains("is not a Chakra trace"), "{torn}");
        std::fs::write(directory.join("t.0.et"), []).unwrap();
        std::fs::rename(directory.join("moved"), directory.join("t.1.et")).unwrap();
        let empty = Workload::chakra(&directory.join("t"), 4, 3).unwrap_err().to_string();
        assert!(empty.ends_with("t.0.et: is not a Chakra trace: it is empty"), "{empty}");
        std::fs::write(directory.join("t.0.et"), trace(&[])).unwrap();
        let idle = Workload::chakra(&directory.join("t"), 4, 3).unwrap_err().to_string();
        assert!(idle.ends_with("t.0.et: it has no nodes, but other ranks have collectives"), "{idle}");
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn missing_trace_error_has_prefix_or_conversion() {
        let directory = tempfile::tempdir().unwrap();
        let refused = |prefix: &str| {
            let path = directory.path().join(prefix);
            let error = Workload::chakra(&path, 4, 3).unwrap_err().to_string();
            error.replace(&directory.path().display().to_string(), "D")
        };
        let write = |name: &str| std::fs::write(directory.path().join(name), trace(&[])).unwrap();
        let of_directory = "D/a: no trace D/a.0.et: specify the part";
        assert!(refused("a").starts_with(of_directory), "{}", refused("a"));
        for (file, prefix, expected) in [
            ("a.0.json", "a", "traces in JSON, such as D/a.0.json, are not read: convert that of each rank"),
            ("b.0.et.json", "b", "`chakra_converter PyTorch --input D/b.0.et.json --output PREFIX.0.et`"),
            ("c_0.json", "c_0.json", "traces in JSON, such as D/c_0.json, are not read"),
            ("d.et", "d.et", "it is a file: name the traces PREFIX.0.et"),
            ("e.0.et", "e.0.et", "before the rank: specify `chakra:D/e`"),
            ("f.3.et", "f.3.et", "before the rank: specify `chakra:D/f`"),
        ] {
            write(file);
            assert!(refused(prefix).contains(expected), "{file}: {}", refused(prefix));
        }
        // The directory has these files.
        let path = format!("{}/", directory.path().display());
        let error = Workload::chakra(Path::new(&path), 4, 3).unwrap_err().to_string();
        assert!(error.ends_with("/e`"), "{error}");
    }

    /// The workload of four ranks with the same nodes.
    fn of_four(nodes: &[Node]) -> Result<Workload, FileError> {
        let traces: Vec<_> = (0..4).map(|rank| (format!("t.{rank}.et"), nodes.to_vec())).collect();
        Workload::of_traces(&traces, 3)
    }

    fn collective(id: u64, kind: i64, deps: &[u64]) -> Node {
        node(id, COMM_COLL, deps, vec![number("comm_type", kind), number("comm_size", 4_000)])
    }

    #[test]
    fn collective_types_have_flows() {
        // Type, flows, bytes of each.
        for (kind, flows, bytes) in [
            (0, 4 * 6, 1_000),
            (1, 3, 4_000),
            (2, 4 * 3, 4_000),
            (3, 3, 4_000),
            (4, 3, 1_000),
            (5, 3, 4_000),
            (6, 4 * 3, 1_000),
            (7, 4 * 3, 1_000),
            (8, 4 * 3, 1_000),
            (9, 4 * 6, 1),
        ] {
            let workload = of_four(&[collective(1, kind, &[]), collective(2, kind, &[1])]).unwrap();
            assert_eq!(workload.validate(4), Ok(()), "{kind}");
            let sent = workload.flows().iter().filter(|flow| {
                flow.bytes == bytes && workload.ends(flow).is_some_and(|pair| pair.src != pair.dst)
            });
            assert_eq!(sent.count(), 2 * flows, "{kind}");
        }
        let refused = of_four(&[collective(1, 12, &[])]).unwrap_err().to_string();
        assert!(refused.contains("node 1 (``): unknown comm_type 12; set it to 9"), "{refused}");
        let refused = of_four(&[node(3, COMM_COLL, &[], vec![])]).unwrap_err().to_string();
        assert!(refused.contains("node 3 (``): comm_type is missing"), "{refused}");
    }

    #[test]
    fn disagreeing_ranks_rejected() {
        let of_two = |first: &[Node], second: &[Node]| {
            let traces = [first, second].into_iter().zip(0..);
            let traces: Vec<_> =
                traces.map(|(nodes, rank)| (format!("t.{rank}.et"), nodes.to_vec())).collect();
            Workload::of_traces(&traces, 3)
        };
        let other_size = node(7, COMM_COLL, &[], vec![number("comm_type", 0), number("comm_size", 5_000)]);
        let send = node(2, COMM_SEND, &[], vec![number("comm_dst", 1), number("comm_size", 500)]);
        let receive = node(3, COMM_RECV, &[], vec![number("comm_src", 0), number("comm_size", 400)]);
        let reduce = collective(1, 0, &[]);
        for (first, second, expected) in [
            (
                vec![reduce.clone()],
                vec![other_size],
                "t.1.et: node 7 (``): rank 1 has all-reduce of 5000 bytes, but rank 0 has all-reduce of 4000 bytes in \
                 node 1 (``)",
            ),
            (
                vec![reduce.clone()],
                vec![collective(4, 2, &[])],
                "t.1.et: node 4 (``): rank 1 has all-gather of 4000 bytes, but rank 0 has all-reduce of 4000 bytes in \
                 node 1 (``)",
            ),
            (
                vec![reduce.clone(), collective(2, 0, &[])],
                vec![reduce],
                "t.1.et: node 1 (``): the last collective of group `` on rank 1, number 1; rank 0 has 2",
            ),
            (
                vec![send],
                vec![receive],
                "t.1.et: node 3 (``): rank 1 receives 400 bytes, but rank 0 sends 500 in node 2 (``)",
            ),
        ] {
            assert_eq!(of_two(&first, &second).unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn numbered_groups_are_separate() {
        let trace = |rank: i64| {
            let mut reduce = collective(1, 0, &[]);
            reduce.attr.push(number("comm_group", rank / 2));
            (format!("t.{rank}.et"), vec![reduce])
        };
        let workload = Workload::of_traces(&[0, 1, 2, 3].map(trace), 3).unwrap();
        let groups: Vec<_> = workload.rounds().iter().map(|round| round.ranks.clone()).collect();
        assert_eq!(groups, [[0, 1], [2, 3]]);
    }

    #[test]
    fn group_of_wrong_type_rejected() {
        let word = |name: &str| Attribute {
            name: name.to_owned(),
            text: Some("world".to_owned()),
            ..Attribute::default()
        };
        for (group, expected) in [
            (number("comm_group", -1), "node 1 (``): comm_group is not a whole number from 0 on"),
            (word("comm_group"), "node 1 (``): comm_group is not a whole number from 0 on"),
            (number("pg_name", 3), "node 1 (``): pg_name is not a text"),
        ] {
            let mut reduce = collective(1, 0, &[]);
            reduce.attr.push(group);
            let refused = of_four(&[reduce]).unwrap_err().to_string();
            assert!(refused.starts_with(&format!("t.0.et: {expected}")), "{refused}");
        }
    }

    #[test]
    fn long_name_cut_in_error() {
        let name = "n".repeat(9_999);
        let refused = of_four(&[Node { name, ..collective(1, 12, &[]) }]).unwrap_err().to_string();
        assert!(refused.starts_with(&format!("t.0.et: node 1 (`{}...`): unk", "n".repeat(160))), "{refused}");
    }

    #[test]
    fn excluded_dimension_needs_group() {
        let over = |values: &[bool]| {
            let flags = Some(Flags { values: values.to_vec() });
            let mut reduce = collective(1, 0, &[]);
            reduce.attr.push(Attribute { name: "involved_dim".to_owned(), flags, ..Attribute::default() });
            reduce
        };
        assert!(of_four(&[over(&[true, true])]).is_ok());
        let mut partial = over(&[true, false]);
        let refused = of_four(&[partial.clone()]).unwrap_err().to_string();
        assert!(refused.starts_with("t.0.et: node 1 (``): involved_dim excludes a dimension"), "{refused}");
        partial.attr.push(number("comm_group", 1));
        assert!(of_four(&[partial]).is_ok());
    }

    #[test]
    fn duplicate_id_rejected() {
        let refused = of_four(&[collective(1, 0, &[]), node(1, 4, &[], vec![])]).unwrap_err().to_string();
        assert_eq!(refused, "t.0.et: node 1 (``): another node has the same id");
    }

    #[test]
    fn too_many_nodes_rejected_while_read() {
        let bytes = trace(&[node(1, 4, &[], vec![]), node(2, 4, &[], vec![])]);
        assert!(nodes("t.1.et", &bytes, MAX_FLOWS - 2).is_ok());
        let refused = nodes("t.1.et", &bytes, MAX_FLOWS - 1).unwrap_err().to_string();
        assert!(refused.starts_with("t.1.et: more than 16000000 flows"), "{refused}");
    }

    #[test]
    fn cpu_node_only_launches_collective() {
        let on_cpu = |on| Attribute { value: Some(Number::Bool(on)), ..number("is_cpu_op", 0) };
        let launch = Node { duration_micros: 5, ..node(1, COMM_COLL, &[], vec![on_cpu(true)]) };
        let mut reduce = collective(2, 0, &[1]);
        reduce.attr.push(on_cpu(false));
        let alone = of_four(&[collective(2, 0, &[])]).unwrap();
        let workload = of_four(&[launch, reduce]).unwrap();
        assert_eq!(workload.validate(4), Ok(()));
        // A computation on each rank in addition.
        assert_eq!(workload.flows().len(), alone.flows().len() + 4);
        assert_eq!(workload.flows().iter().filter(|flow| flow.delay_ns == 5_000).count(), 4);
    }

    #[test]
    fn broadcast_starts_at_its_root() {
        let mut broadcast = collective(1, 5, &[]);
        broadcast.attr.push(number("comm_root", 2));
        let workload = of_four(&[broadcast]).unwrap();
        let sent = workload.flows().iter().filter(|flow| flow.bytes == 4_000);
        let mut sent: Vec<_> = sent.filter_map(|flow| workload.ends(flow)).map(|p| (p.src, p.dst)).collect();
        sent.sort_unstable();
        assert_eq!(sent, [(2, 0), (2, 3), (3, 1)]);
    }

    #[test]
    fn root_beyond_last_rank_rejected() {
        let rooted = |kind| {
            let mut node = collective(1, kind, &[]);
            node.attr.push(number("comm_root", 4));
            of_four(&[node]).map_err(|error| error.to_string())
        };
        let expected = "t.0.et: node 1 (``): its root, 4, is not a rank: 0 to 3";
        assert_eq!(rooted(5), Err(expected.to_owned()));
        // An all-reduce has no root.
        assert!(rooted(0).is_ok());
    }

    #[test]
    fn control_dependency_is_ignored() {
        // Node 1, a computation, with 2 in field 4; node 2 depends on its data.
        let mut bytes = trace(&[]);
        bytes.extend([7, 8, 1, 24, 4, 0x22, 1, 2]);
        node(2, 4, &[1], vec![]).encode_length_delimited(&mut bytes).unwrap();
        let nodes = nodes("t.0.et", &bytes, 0).unwrap();
        assert_eq!((nodes.len(), nodes[0].kind), (2, 4));
        assert_eq!(of_four(&nodes).unwrap().validate(4), Ok(()));
    }

    #[test]
    fn missing_dependency_or_size_rejected() {
        let sends = |size| node(2, COMM_SEND, &[], vec![number("comm_dst", 1), number("comm_size", size)]);
        for (node, expected) in [
            (collective(2, 0, &[7]), "t.0.et: node 2 (``): depends on missing node 7"),
            (sends(-5), "t.0.et: node 2 (``): comm_size is not a whole number"),
            (
                node(3, COMM_COLL, &[], vec![number("comm_type", 0)]),
                "t.0.et: node 3 (``): comm_size is not a whole number",
            ),
        ] {
            assert_eq!(of_four(&[node]).unwrap_err().to_string(), expected);
        }
    }
}
