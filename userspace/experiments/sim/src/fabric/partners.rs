//! Flags that depend on other flags.

use anyhow::Result;

use super::flags::Choice;
use super::setup::{FabricSetup, settings};
use super::{Shape, Traffic};
use crate::knobs::SetupError;
use crate::network::Recovery;

type FlagRequirement = (&'static str, &'static str);

const RANDOM: &str = "--workload random";
const COLLECTIVE: &str = "a collective as --workload";
const SHAPE: &str = "--topology leaf-spine or fat-tree, as a file defines its own";

impl FabricSetup {
    /// [`Self::with`], for settings that must all have an effect.
    ///
    /// # Errors
    /// As there, or a setting has no effect.
    pub(crate) fn with_effect(&self, text: &str) -> Result<Self> {
        let setup = self.with(text)?;
        let keys: Vec<&str> =
            settings(text).filter_map(|setting| setting.split_once('=')).map(|(key, _)| key.trim()).collect();
        let is_its = |(flag, _): &&FlagRequirement| keys.contains(&flag.trim_start_matches('-'));
        setup.without_effect().iter().find(is_its).map_or(Ok(setup), |lone| Err(refused(*lone).into()))
    }

    /// Flags without effect, each with its missing requirement.
    fn without_effect(&self) -> Vec<FlagRequirement> {
        let workload = self.workload.as_ref().unwrap_or(&Traffic::Random);
        let random = matches!(workload, Traffic::Random);
        let collective = matches!(workload, Traffic::Collective(_));
        let from_file = matches!(workload, Traffic::File(..)) || (random && self.sizes.is_some());
        let graph = matches!(self.topology, Some(Shape::File(_)));
        let selective = match self.recovery {
            Some(recovery) => matches!(recovery, Recovery::Selective { .. }),
            None => self.control == Some(Choice::Nscc),
        };
        let pfc = self.pfc != Some(false);
        let admitted = self.admission.is_some();
        let dcqcn = self.control.unwrap_or(Choice::Dcqcn) == Choice::Dcqcn;
        let nscc = self.control == Some(Choice::Nscc);
        let flags = [
            ("--admission-turn", self.admission_turn.is_some(), admitted, "--admission"),
            ("--admission-class", self.admission_class.is_some(), admitted, "--admission"),
            ("--window-end", self.window_end.is_some(), dcqcn, "--control dcqcn"),
            ("--base-rtt", self.base_rtt.is_some(), nscc, "--control nscc"),
            ("--target-delay", self.target_delay.is_some(), nscc, "--control nscc"),
            ("--reordering", self.reordering.is_some(), selective, "--recovery selective"),
            ("--sizes", self.sizes.is_some(), random, RANDOM),
            ("--load", self.load.is_some(), random, RANDOM),
            ("--until", self.until.is_some(), random, RANDOM),
            ("--repeat", self.repeat.is_some(), collective, COLLECTIVE),
            ("--placement", self.placement.is_some(), collective, COLLECTIVE),
            ("--size", self.size.is_some(), !from_file, "flow lengths that are not from a file"),
            ("--host-link", self.host_link.is_some(), !graph, SHAPE),
            ("--switch-link", self.switch_link.is_some(), !graph, SHAPE),
            ("--delay", self.delay.is_some(), !graph, SHAPE),
            ("--headroom", self.headroom.is_some(), pfc, "--pfc on"),
            ("--xon-offset", self.xon_offset.is_some(), pfc, "--pfc on"),
            ("--trim", self.trim.is_some(), !pfc, "--pfc off"),
            ("--reroute", self.reroute.is_some(), !self.faults.is_empty(), "--fault"),
        ];
        let lone = flags.into_iter().filter(|(_, given, has_effect, _)| *given && !has_effect);
        lone.map(|(flag, _, _, needs)| (flag, needs)).collect()
    }
}

/// Rejects a flag that has no effect in any of `setups`.
///
/// # Errors
/// Names the flag, and its requirement.
pub fn refuse_without_effect(setups: &[&FabricSetup]) -> Result<(), SetupError> {
    let Some((first, others)) = setups.split_first() else { return Ok(()) };
    let others: Vec<_> = others.iter().map(|setup| setup.without_effect()).collect();
    let is_everywhere = |lone: &&FlagRequirement| others.iter().all(|other| other.contains(lone));
    first.without_effect().iter().find(is_everywhere).map_or(Ok(()), |lone| Err(refused(*lone)))
}

fn refused((flag, needs): FlagRequirement) -> SetupError {
    SetupError(format!("{flag} has no effect: it needs {needs}; add that or omit {flag}"))
}

#[cfg(test)]
mod tests {
    use super::super::setup::setup;

    #[test]
    fn flag_without_effect_is_rejected() {
        for (flags, needs) in [
            ("--admission-turn 32KB", "--admission"),
            ("--admission-class 6", "--admission"),
            ("--reordering 4 --recovery go-back-n", "--recovery selective"),
            ("--load 30% --workload permutation", "--workload random"),
            ("--placement random", "a collective as --workload"),
            ("--size 1MB --workload hpcc:flows.txt", "flow lengths that are not from a file"),
            ("--trim 5", "--pfc off"),
            ("--headroom 10KB --pfc off", "--pfc on"),
            ("--reroute 1ms", "--fault"),
            ("--target-delay 5us --control dcqcn", "--control nscc"),
            ("--window-end flow --control off", "--control dcqcn"),
        ] {
            let flag = flags.split_whitespace().next().unwrap();
            assert_eq!(setup(flags).without_effect(), [(flag, needs)], "{flags}");
        }
        for flags in [
            "",
            "--admission 64KB --admission-turn 32KB --admission-class 6 --recovery selective --reordering 4",
            "--load 30% --until 1ms --size 1MB --pfc off --trim 5 --fault 1ms,down,leaf0,spine0 --reroute 1ms",
            "--control nscc --target-delay 5us --base-rtt 8us --reordering 3",
            "--workload all-reduce --placement random --repeat 2 --size 1MB --headroom 10KB --xon-offset 1KB",
        ] {
            assert_eq!(setup(flags).without_effect(), [], "{flags}");
        }
    }
}
