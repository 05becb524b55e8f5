//! Simulations of presets, and settings that depend on other settings.

use anyhow::{Result, ensure};
use dcqcn_params::Assignment;

use super::knobs::{ROCE_KNOBS, Requirement, parameters_without_effect};
use super::{FileGroup, Group, Preset, Setting, Setup};
use crate::network::TcpLaw;
use crate::network::workload::Work;
use crate::star::Star;
use crate::sweep::SimulationSetup;

impl SimulationSetup for Setup {
    type Simulation = Star;

    fn apply(&mut self, setting: &Setting) -> Result<()> {
        let Setting { key, text } = setting;
        let is_of_groups = ROCE_KNOBS.iter().any(|knob| knob.key == key);
        let overrides = |group: &FileGroup| group.settings.iter().any(|setting| setting.key == *key);
        let has_groups = self.groups_of_file(true).next().is_some();
        ensure!(
            !is_of_groups || !has_groups || !self.groups_of_file(true).all(overrides),
            "{key} = {text} has no effect: every [[roce]] group of the file sets {key}; remove it there"
        );
        Ok(self.set(key, text)?)
    }

    fn changes(&self) -> &[Assignment] {
        &self.changes
    }

    fn simulation(&self) -> Result<Star> {
        self.star()
    }

    fn without_effect(&self) -> Vec<Requirement> {
        // An invalid group is reported when the star is built.
        let Ok(groups) =
            [true, false].into_iter().map(|is_roce| self.groups(is_roce)).collect::<Result<Vec<_>>>()
        else {
            return Vec::new();
        };
        let groups = groups.concat();
        let any = |is: fn(&Group) -> bool| groups.iter().any(is);
        let (coexist, staircase) = (self.preset == Preset::Coexist, self.preset == Preset::Staircase);
        let marks = !coexist || self.classes;
        let control = self.star.control && marks;
        let tcp = any(|group| !group.is_roce());
        let stability = self.preset == Preset::Stability;
        let blocks = any(|group| matches!(group.work, Work::Blocks { .. }));
        let messages = any(|group| matches!(group.work, Work::Messages { .. }));
        let knobs = [
            ("xoff", self.pfc, "--pfc on"),
            ("xon", self.pfc, "--pfc on"),
            ("outstanding", blocks, "--block"),
            ("load", messages, "--flow-sizes"),
            ("tcp-law", tcp, "--tcp"),
            ("step", staircase && self.roce.group.flows > 2, "`sim staircase` with 3 flows or more"),
            ("classes", coexist, "`sim coexist`"),
            ("control", marks, "--classes on"),
            ("profile", control || tcp && marks, "--control on"),
            ("sample", self.series || stability || staircase, "--csv or --plot"),
        ];
        let of_groups = self.groups.iter().flat_map(|group| &group.settings).map(|setting| &setting.key);
        let given = |key: &str| self.given.iter().chain(of_groups.clone()).any(|given| given == key);
        let ineffective = knobs.into_iter().filter(|(key, has_effect, _)| !has_effect && given(key));
        let ineffective = ineffective.map(|(key, _, needs)| (format!("--{key}"), needs.to_owned()));
        let is_ect = |group: &&Group| group.transport.tcp != Some(TcpLaw::Cubic);
        let classes = groups.iter().filter(is_ect).filter(|_| marks).map(|group| group.class);
        let classes: Vec<u8> = classes.collect();
        let of_dcqcn = (!control).then_some(if marks { "--control on" } else { "--classes on" });
        let probe = Some("`sim fabric --recovery probe`");
        ineffective.chain(parameters_without_effect(&self.changes, of_dcqcn, probe, &classes)).collect()
    }
}
