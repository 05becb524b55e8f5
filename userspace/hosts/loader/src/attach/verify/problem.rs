//! Problems of the parts of an attachment, as text.

use std::fmt;
use std::path::PathBuf;

use dcqcn_netlink::tc::Handle;

/// Reason why a part does not work.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Problem {
    NotFound,
    /// The link of a program exists, but does not attach it to the interface.
    NotOnInterface,
    /// The interface of this index does not exist.
    InterfaceRemoved(u32),
    /// Mount point of the BPF file system with the pins.
    NotMounted(PathBuf),
    /// Names of maps that are not pinned.
    MapsNotFound(Vec<&'static str>),
    /// Enabled features that strip VLAN tags.
    Stripping(Vec<String>),
    OtherQdisc {
        kind: String,
        handle: Handle,
        parent: Handle,
        /// Kind of the qdisc at `parent`, if any.
        found: Option<String>,
    },
    /// The fq that existed before attaching.
    FqNotFound,
    /// Transmit queues whose qdisc is not fq, with its kind.
    Unpaced(Vec<(u16, String)>),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound => f.write_str("expected, not found"),
            Self::NotOnInterface => {
                f.write_str("expected, not found: its link is on another interface, or on none")
            }
            Self::InterfaceRemoved(ifindex) => write!(f, "interface {ifindex} was removed"),
            Self::NotMounted(path) => {
                write!(f, "{} is not mounted; `dcqcn attach` mounts a BPF file system there", path.display())
            }
            Self::MapsNotFound(maps) => write!(f, "expected, not found: {}", maps.join(", ")),
            Self::Stripping(features) => {
                write!(f, "{} is on again: VLAN tags are lost", features.join(", "))
            }
            Self::OtherQdisc { kind, handle, parent, found } => {
                let found = found.as_deref().unwrap_or("nothing");
                write!(f, "expected {kind} {handle} at {parent}, found {found}")
            }
            Self::FqNotFound => f.write_str("expected the existing fq, not found"),
            Self::Unpaced(queues) => {
                let listed = queues.iter().take(3).map(|(queue, kind)| format!("{queue} has {kind}"));
                write!(f, "transmit queue {}", listed.collect::<Vec<_>>().join(", "))?;
                let more = queues.len().saturating_sub(3);
                if more != 0 {
                    write!(f, " and {more} more")?;
                }
                f.write_str(", not fq: its flows are sent at line rate")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unpaced_queues_listed_up_to_three() {
        let text = |queues: &[u16]| {
            let queues = queues.iter().map(|queue| (*queue, "fq_codel".to_owned()));
            Problem::Unpaced(queues.collect()).to_string()
        };
        assert_eq!(text(&[3]), "transmit queue 3 has fq_codel, not fq: its flows are sent at line rate");
        let several = text(&[3, 4, 5, 6, 7]);
        assert!(several.contains("4 has fq_codel, 5 has fq_codel and 2 more, not fq"), "{several}");
    }

    #[test]
    fn other_qdisc_names_both() {
        let (handle, parent) = (Handle::new(7, 0), Handle::ROOT);
        let problem = |found| Problem::OtherQdisc { kind: "fq".into(), handle, parent, found };
        assert!(problem(Some("pfifo".into())).to_string().ends_with(", found pfifo"));
        assert!(problem(None).to_string().starts_with("expected fq 7: at root"), "{}", problem(None));
    }
}
