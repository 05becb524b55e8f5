//! Other applications' programs on the same hooks: TCX chains and filters on clsact.
//!
//! A program ends the chain unless it returns `TC_ACT_UNSPEC`.

use aya::programs::{ProgramInfo, SchedClassifier};
use dcqcn_netlink::Netlink;
use dcqcn_netlink::tc::{Filter, Handle};
use serde::Serialize;

use super::hooks::{Bound, TcHook, tc_hook};
use super::journal::UndoStep;
use super::state_dir::StateDir;
use super::{Error, Info};
use crate::syscall;

/// Another application's program on one of our hooks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ForeignProgram {
    /// Hook: `ingress` or `egress`.
    pub hook: String,
    /// Program name, possibly truncated by the kernel; the kind of a filter without a name; `?` without
    /// permission to read it.
    pub name: String,
    pub program_id: Option<u32>,
    /// Runs before our program, which sees only the packets that this one passes on.
    pub is_before: bool,
}

/// Other applications' programs on the hooks of an attachment; use [`Sweep`](super::Sweep) for many.
pub fn foreign_programs(info: &Info) -> Result<Vec<ForeignProgram>, Error> {
    let (state_dir, netlink) = (StateDir::here()?, Netlink::connect()?);
    let iface = netlink.link_by_index(info.ifindex)?.name;
    on_hooks(&state_dir, &netlink, info, &iface)
}

/// As [`foreign_programs`], of an interface now called `iface`.
pub(super) fn on_hooks(
    state_dir: &StateDir,
    netlink: &Netlink,
    info: &Info,
    iface: &str,
) -> Result<Vec<ForeignProgram>, Error> {
    let record = state_dir.read_shared(info.ifindex)?.filter(|record| record.info.id() == info.id());
    let Some(record) = record else {
        return Err(Error::NotAttached { iface: info.iface.clone() });
    };
    let pins = state_dir.pins(info.ifindex);
    let mut others = Vec::new();
    for step in &record.steps {
        let (UndoStep::Link { pin: hook } | UndoStep::Filter { hook, .. }) = step else { continue };
        let Some(hook) = tc_hook(hook) else { continue };
        if matches!(step, UndoStep::Filter { .. }) {
            let filters = netlink.filters(info.ifindex, hook.parent)?;
            others.extend(on_clsact(hook.name, &filters, hook.program));
            continue;
        }
        let ours = Bound::read(&pins.join(hook.name))?.map(|link| link.program_id);
        // Most chains are ours alone; reading names takes several requests.
        let ids = syscall::tcx_programs(info.ifindex, hook.tcx);
        if !ids.is_ok_and(|ids| ids.iter().all(|id| Some(*id) == ours)) {
            others.extend(on_tcx(hook.name, &chain(iface, info.ifindex, hook)?, ours));
        }
    }
    Ok(others)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChainProgram {
    pub(super) id: u32,
    /// `None` without CAP_SYS_ADMIN.
    pub(super) name: Option<String>,
}

/// Programs of a TCX hook, in execution order.
pub(super) fn chain(iface: &str, ifindex: u32, hook: &TcHook) -> Result<Vec<ChainProgram>, Error> {
    if let Ok((_, programs)) = SchedClassifier::query_tcx(iface, hook.attach_type) {
        let describe = |program: &ProgramInfo| ChainProgram {
            id: program.id(),
            name: program.name_as_str().map(str::to_owned),
        };
        return Ok(programs.iter().map(describe).collect());
    }
    let unnamed = |id| ChainProgram { id, name: None };
    Ok(ids(iface, ifindex, hook)?.into_iter().map(unnamed).collect())
}

/// IDs of the programs of a TCX hook, in execution order.
pub(super) fn ids(iface: &str, ifindex: u32, hook: &TcHook) -> Result<Vec<u32>, Error> {
    syscall::tcx_programs(ifindex, hook.tcx).map_err(|source| Error::Attach {
        program: "list of programs",
        iface: iface.to_owned(),
        source: source.into(),
        next: "",
    })
}

/// Programs of a TCX chain other than `ours`.
pub(super) fn on_tcx(hook: &str, chain: &[ChainProgram], ours: Option<u32>) -> Vec<ForeignProgram> {
    let position = chain.iter().position(|program| Some(program.id) == ours);
    let numbered = chain.iter().enumerate().filter(|(_, program)| Some(program.id) != ours);
    let other = |(number, program): (usize, &ChainProgram)| ForeignProgram {
        hook: hook.to_owned(),
        name: program.name.clone().unwrap_or_else(|| "?".to_owned()),
        program_id: Some(program.id),
        is_before: position.is_some_and(|position| number < position),
    };
    numbered.map(other).collect()
}

/// Filters, in order, other than that of program `ours`.
pub(super) fn on_clsact(hook: &str, filters: &[Filter], ours: &str) -> Vec<ForeignProgram> {
    let is_ours = |filter: &Filter| filter.name.as_deref() == Some(ours);
    let priority = filters.iter().find(|filter| is_ours(filter)).map(|filter| filter.priority);
    let other = |filter: &Filter| ForeignProgram {
        hook: hook.to_owned(),
        name: filter.name.clone().unwrap_or_else(|| filter.kind.clone()),
        program_id: filter.program_id,
        is_before: priority.is_some_and(|priority| filter.priority < priority),
    };
    filters.iter().filter(|filter| !is_ours(filter) && filter.handle != Handle::UNSPEC).map(other).collect()
}

/// Notes on the programs that run after ours and before ours.
pub(super) fn notes(hook: &str, others: &[ForeignProgram]) -> Vec<String> {
    let describe = |is_before: bool| -> Option<String> {
        let names = others.iter().filter(|other| other.is_before == is_before).map(ToString::to_string);
        let names: Vec<_> = names.collect();
        (!names.is_empty()).then(|| names.join(", "))
    };
    let after = describe(false).map(|others| format!("{hook}: runs before {others}"));
    let before = describe(true).map(|others| {
        format!("{hook}: runs after {others}, and sees only packets that it passes on (TC_ACT_UNSPEC)")
    });
    after.into_iter().chain(before).collect()
}

impl std::fmt::Display for ForeignProgram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)?;
        self.program_id.map_or(Ok(()), |id| write!(f, " (program {id})"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(name: Option<&str>, priority: u16) -> Filter {
        let (kind, handle) = ("bpf".to_owned(), Handle(1));
        Filter { kind, priority, protocol: 0, handle, name: name.map(str::to_owned), program_id: None }
    }

    #[test]
    fn filters_ordered_by_priority_number() {
        let filters = [filter(Some("cil_from_netdev"), 1), filter(Some("dcqcn_egress"), 5), filter(None, 9)];
        let others = on_clsact("egress", &filters, "dcqcn_egress");
        let found: Vec<_> = others.iter().map(|other| (other.name.as_str(), other.is_before)).collect();
        assert_eq!(found, [("cil_from_netdev", true), ("bpf", false)]);
        let notes = notes("egress", &others);
        assert_eq!(notes[0], "egress: runs before bpf");
        assert!(notes[1].starts_with("egress: runs after cil_from_netdev, and sees only"), "{notes:?}");
        assert!(on_clsact("egress", &filters[1..2], "dcqcn_egress").is_empty());
    }
}
