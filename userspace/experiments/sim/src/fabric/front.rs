//! Simulations of fabrics, and flags that depend on other flags.

use anyhow::Result;
use dcqcn_params::Assignment;

use super::flags::Choice;
use super::setup::{FabricSetup, settings};
use super::{Shape, Traffic};
use crate::knobs::{Requirement, parameters_without_effect, refuse};
use crate::network::{Recovery, Scenario};
use crate::presets::Setting;
use crate::sweep::SimulationSetup;

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
        let is_its = |(flag, _): &&Requirement| keys.contains(&flag.trim_start_matches('-'));
        setup.without_effect().iter().find(is_its).map_or(Ok(setup), |ineffective| Ok(refuse(ineffective)?))
    }
}

impl SimulationSetup for FabricSetup {
    type Simulation = Scenario;

    fn apply(&mut self, setting: &Setting) -> Result<()> {
        self.set(&setting.key, &setting.text)
    }

    fn changes(&self) -> &[Assignment] {
        &self.changes
    }

    fn simulation(&self) -> Result<Scenario> {
        self.scenario()
    }

    fn without_effect(&self) -> Vec<Requirement> {
        let workload = self.workload.as_ref().unwrap_or(&Traffic::Random);
        let random = matches!(workload, Traffic::Random);
        let collective = matches!(workload, Traffic::Collective(_));
        let from_file = matches!(workload, Traffic::File(..)) || (random && self.sizes.is_some());
        let graph = matches!(self.topology, Some(Shape::File(_)));
        let pfc = self.pfc != Some(false);
        let admitted = self.admission.is_some();
        let (dcqcn, nscc) = (self.is_dcqcn(), self.control == Some(Choice::Nscc));
        let controlled = self.control != Some(Choice::Off);
        let selective = self.recovery.map_or(nscc, |recovery| recovery == Recovery::Selective);
        let flags = [
            ("--profile", self.profile.is_some(), controlled, "--control dcqcn or nscc"),
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
        let ineffective = flags.into_iter().filter(|(_, given, has_effect, _)| *given && !has_effect);
        let ineffective = ineffective.map(|(flag, _, _, needs)| (flag.to_owned(), needs.to_owned()));
        // Trimmed packets can be marked too.
        let classes: Vec<u8> = self.trim.into_iter().chain([self.class()]).collect();
        let of_dcqcn = (!dcqcn).then_some("--control dcqcn");
        let probe = (self.recovery != Some(Recovery::Probe)).then_some("--recovery probe");
        ineffective.chain(parameters_without_effect(&self.changes, of_dcqcn, probe, &classes)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::setup::setup;
    use crate::sweep::SimulationSetup as _;

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
            ("--profile paper --control off", "--control dcqcn or nscc"),
        ] {
            let flag = flags.split_whitespace().next().unwrap().to_owned();
            assert_eq!(setup(flags).without_effect(), [(flag, needs.to_owned())], "{flags}");
        }
        for (flags, key, needs) in [
            ("--control off --set rpg_ai_rate=1mbit", "rpg_ai_rate", "--control dcqcn"),
            ("--control nscc --set min_time_between_cnps=1us", "min_time_between_cnps", "--control dcqcn"),
            ("--set wred.4.kmin=1KB", "wred.4.kmin", "ECN-capable flows in class 4"),
            ("--set tail_loss_probe_floor=1ms", "tail_loss_probe_floor", "--recovery probe"),
        ] {
            assert_eq!(setup(flags).without_effect(), [(key.to_owned(), needs.to_owned())], "{flags}");
        }
        for flags in [
            "",
            "--control nscc --profile nvidia --set wred.3.kmin=1KB --recovery probe --set tail_loss_probe_floor=1ms",
            "--control off --set wire_overhead=0 --set cnp_dscp=26",
            "--admission 64KB --admission-turn 32KB --admission-class 6 --recovery selective --reordering 4",
            "--load 30% --until 1ms --size 1MB --pfc off --trim 5 --fault 1ms,down,leaf0,spine0 --reroute 1ms",
            "--control nscc --target-delay 5us --base-rtt 8us --reordering 3",
            "--workload all-reduce --placement random --repeat 2 --size 1MB --headroom 10KB --xon-offset 1KB",
        ] {
            assert_eq!(setup(flags).without_effect(), [], "{flags}");
        }
    }
}
