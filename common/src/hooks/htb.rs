//! HTB pacer classes, numbered by a flow's slot in the RP table.

use crate::layout::WAYS;

/// First HTB class that belongs to a QP; lower minor numbers are fixed.
pub const HTB_FIRST_FLOW: u32 = 0x100;

/// Maximum number of flows with an HTB class; with this pacer the RP table is not larger.
pub const HTB_MAX_FLOWS: u32 = 32_768;

const _: () = assert!(htb_minor(HTB_MAX_FLOWS / WAYS as u32 - 1, WAYS - 1).is_some());

/// Minor number of the HTB class of a flow; `None` if it exceeds the 16 bits of a class ID.
#[inline(always)]
pub const fn htb_minor(index: u32, way: usize) -> Option<u32> {
    let minor = index.wrapping_mul(WAYS as u32).wrapping_add(way as u32).wrapping_add(HTB_FIRST_FLOW);
    if minor < 0xffff { Some(minor) } else { None }
}

/// Inverse of [`htb_minor`]: set and way of the flow; `None` for a class without a flow.
pub fn htb_slot(minor: u32) -> Option<(u32, usize)> {
    let flow = minor.checked_sub(HTB_FIRST_FLOW).filter(|_| minor < 0xffff)?;
    Some((flow / WAYS as u32, (flow % WAYS as u32) as usize))
}
