//! A topology of any shape, from a TOML file.

use std::collections::HashMap;

use dcqcn_params::quantity::{parse_rate_bps, parse_time_ns};
use serde::Deserialize;

use super::{Link, Topology};
use crate::network::read::{FileError, cut};

pub const TOPOLOGY_EXAMPLE: &str = "\
# Topology for `--topology file:FILE.toml`: nodes, and links between them. A host has one link.
hosts = [\"client\", \"disk1\", \"disk2\"]
switches = [\"left\", \"right\"]

[[link]]
between = [\"client\", \"left\"]
rate = \"100gbit\"
delay = \"500ns\"

[[link]]
between = [\"left\", \"right\"]
rate = \"400gbit\"
delay = \"2us\"

[[link]]
between = [\"disk1\", \"right\"]
rate = \"25gbit\"
delay = \"500ns\"

[[link]]
between = [\"disk2\", \"right\"]
rate = \"25gbit\"
delay = \"500ns\"
";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    hosts: Vec<String>,
    switches: Vec<String>,
    #[serde(default)]
    link: Vec<FileLink>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileLink {
    between: Vec<String>,
    rate: String,
    delay: String,
}

impl Topology {
    /// Reads a topology ([`TOPOLOGY_EXAMPLE`]).
    pub fn parse(name: &str, text: &str) -> Result<Self, FileError> {
        let file: File = toml::from_str(text).map_err(|error| {
            let line =
                error.span().map_or(0, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
            FileError::new(name, line, error.message())
        })?;
        let names: Vec<String> = file.hosts.iter().chain(&file.switches).cloned().collect();
        let mut indices: HashMap<&str, u32> = HashMap::new();
        for (index, node) in (0..).zip(&names) {
            if indices.insert(node, index).is_some() {
                let what = format!("`{}` is defined twice: give each node a unique name", cut(node));
                return Err(FileError::new(name, 0, what));
            }
        }
        let link = |(number, link): (usize, &FileLink)| {
            let refuse = |what: String| FileError::new(name, 0, format!("link {number}: {what}"));
            let invalid = |key: &str, error: String| refuse(format!("{key} = {}", cut(&error)));
            let node = |node: &String| {
                indices
                    .get(node.as_str())
                    .copied()
                    .ok_or_else(|| refuse(format!("`{}` is neither in `hosts` nor in `switches`", cut(node))))
            };
            let [a, b] = link.between.as_slice() else {
                return Err(refuse(format!("between has {} nodes, not two", link.between.len())));
            };
            Ok(Link {
                a: node(a)?,
                b: node(b)?,
                rate_bps: parse_rate_bps(&link.rate).map_err(|error| invalid("rate", error.to_string()))?,
                delay_ns: parse_time_ns(&link.delay).map_err(|error| invalid("delay", error.to_string()))?,
            })
        };
        let links = (1..).zip(&file.link).map(link).collect::<Result<_, _>>()?;
        Ok(Self { hosts: file.hosts.len() as u32, switches: file.switches.len() as u32, links, names })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn example_parsed_completely() {
        let topology = Topology::parse("t", TOPOLOGY_EXAMPLE).unwrap();
        assert_eq!((topology.hosts, topology.switches, topology.links.len()), (3, 2, 4));
        assert_eq!(topology.links[1], Link { a: 3, b: 4, rate_bps: 400_000_000_000, delay_ns: 2_000 });
        assert_eq!((topology.validate(), topology.node("disk2")), (Ok(()), Some(2)));
    }

    #[test]
    fn long_words_cut_in_errors() {
        for (from, to) in [
            ("\"client\", \"left\"", "\"client\", \"LONG\""),
            ("\"disk1\", \"disk2\"", "\"LONG\", \"LONG\""),
            ("400gbit", "LONG"),
            ("2us", "LONG"),
        ] {
            let long = TOPOLOGY_EXAMPLE.replacen(from, &to.replace("LONG", &"x".repeat(9_999)), 1);
            let refused = Topology::parse("t", &long).unwrap_err().to_string();
            assert!(refused.len() < 300 && refused.contains("..."), "{refused}");
        }
    }

    #[test]
    fn errors_name_link_and_value() {
        for (from, to, expected) in [
            (
                "[\"disk1\", \"right\"]",
                "[\"disk1\", \"right\", \"disk2\"]",
                "t: link 3: between has 3 nodes, not two",
            ),
            (
                "\"client\", \"left\"",
                "\"client\", \"lft\"",
                "t: link 1: `lft` is neither in `hosts` nor in `switches`",
            ),
            ("400gbit", "fast", "t: link 2: rate = `fast`"),
            ("delay = \"2us\"", "dely = \"2us\"", "t:13: unknown field `dely`"),
            ("\"disk1\", \"disk2\"", "\"disk1\", \"disk1\"", "t: `disk1` is defined twice"),
        ] {
            let refused =
                Topology::parse("t", &TOPOLOGY_EXAMPLE.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(refused.starts_with(expected), "{refused}");
        }
    }
}
