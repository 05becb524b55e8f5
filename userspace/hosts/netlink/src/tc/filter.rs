//! Filters on an interface's hooks.

use libc::{RTM_DELTFILTER, RTM_GETTFILTER};

use super::Handle;
use super::qdisc::{c_string, tcmsg, tcmsg_with_info};
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
    /// Protocol of the packets it applies to, in network byte order.
    pub protocol: u16,
    /// Handle within the priority.
    pub handle: Handle,
    /// Name of the program, for a BPF filter.
    pub name: Option<String>,
    /// Program ID, for a BPF filter.
    pub program_id: Option<u32>,
}

impl Netlink {
    /// The filters below `parent`: a qdisc, a class, or one of [`Handle::CLSACT_HOOKS`], in the order of evaluation.
    ///
    /// # Errors
    /// The kernel rejects the request.
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

    /// Removes a filter below `parent`.
    ///
    /// # Errors
    /// There is no such filter, or the process lacks CAP_NET_ADMIN.
    pub fn delete_filter(&self, ifindex: u32, parent: Handle, filter: &Filter) -> Result<()> {
        let info = u32::from(filter.priority) << 16 | u32::from(filter.protocol);
        self.change(RTM_DELTFILTER, 0, |request| {
            tcmsg_with_info(request, ifindex, filter.handle, parent, info);
            request.attribute(TCA_KIND, &c_string(&filter.kind));
        })?
        .map_err(|refusal| {
            let what = filter.name.as_deref().unwrap_or(&filter.kind);
            self.kernel_error(format!("delete the filter {what}"), ifindex, refusal)
        })
    }
}

/// Parses one message. The kernel starts each chain with a message without a handle.
fn filter(body: &[u8]) -> Option<Filter> {
    let attributes = body.get(TCMSG_LEN..)?;
    let handle = Handle(u32_at(body, 8)?);
    (handle != Handle::UNSPEC).then_some(())?;
    let kind = string(attribute(attributes, TCA_KIND)?);
    // The numbers of options have another meaning in every kind.
    let options = attribute(attributes, TCA_OPTIONS).filter(|_| kind == "bpf").unwrap_or_default();
    // Priority in the upper half of tcm_info, protocol in the lower.
    let info = u32_at(body, 16)?;
    Some(Filter {
        priority: (info >> 16) as u16,
        protocol: info as u16,
        handle,
        name: attribute(options, TCA_BPF_NAME).map(string),
        program_id: attribute(options, TCA_BPF_ID).and_then(|value| u32_at(value, 0)),
        kind,
    })
}
