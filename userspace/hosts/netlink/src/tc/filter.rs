//! Filters on an interface's hooks.

use libc::RTM_GETTFILTER;

use super::Handle;
use super::qdisc::tcmsg;
use super::read::{TCA_KIND, TCA_OPTIONS, TCMSG_LEN};
use crate::error::Result;
use crate::netlink::{Netlink, Subsystem};
use crate::wire::{attribute, string, u32_at};

/// Attributes of a BPF filter (`enum` in include/uapi/linux/pkt_cls.h).
const TCA_BPF_NAME: u16 = 7;
const TCA_BPF_ID: u16 = 11;

/// A filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    /// Kind: `bpf`, `flower`, ...
    pub kind: String,
    /// Priority: lower values are evaluated first.
    pub priority: u16,
    /// Handle within the priority.
    pub handle: Handle,
    /// Name of the program, for a BPF filter.
    pub name: Option<String>,
    /// Program ID, for a BPF filter.
    pub program_id: Option<u32>,
}

impl Netlink {
    /// The filters below `parent`: a qdisc, a class, or one of [`Handle::CLSACT_HOOKS`], in the order of evaluation.
    pub fn filters(&self, ifindex: u32, parent: Handle) -> Result<Vec<Filter>> {
        let bodies = self
            .dump(Subsystem::Route, RTM_GETTFILTER, |request| {
                tcmsg(request, ifindex, Handle::UNSPEC, parent)
            })?
            .map_err(|refusal| {
                self.kernel_error(format!("list the filters of {parent}"), ifindex, refusal)
            })?;
        let mut filters: Vec<_> = bodies.iter().filter_map(|body| filter(body)).collect();
        filters.sort_by_key(|filter| filter.priority);
        Ok(filters)
    }
}

/// Parses one message. The kernel starts each chain with a message without a handle.
fn filter(body: &[u8]) -> Option<Filter> {
    let attributes = body.get(TCMSG_LEN..)?;
    let handle = Handle(u32_at(body, 8)?);
    let options = attribute(attributes, TCA_OPTIONS).unwrap_or_default();
    (handle != Handle::UNSPEC).then_some(())?;
    Some(Filter {
        kind: string(attribute(attributes, TCA_KIND)?),
        // Priority in the upper half of tcm_info, protocol in the lower.
        priority: (u32_at(body, 16)? >> 16) as u16,
        handle,
        name: attribute(options, TCA_BPF_NAME).map(string),
        program_id: attribute(options, TCA_BPF_ID).and_then(|value| u32_at(value, 0)),
    })
}
