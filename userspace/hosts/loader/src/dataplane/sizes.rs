//! Table sizes.

use dcqcn_common::layout::{DEFAULT_FLOWS, MAX_FLOWS, WAYS};

/// Table sizes in flows; tables are rounded up to a power of two of sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Flows in the RP table.
    pub rp_flows: u32,
    /// NP flows, configured pairs, and requesters.
    pub np_flows: u32,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { rp_flows: DEFAULT_FLOWS, np_flows: DEFAULT_FLOWS }
    }
}

impl Sizes {
    /// Sets of the RP table.
    pub fn rp_sets(&self) -> u32 {
        sets(self.rp_flows)
    }

    /// Sets of the NP table.
    pub fn np_sets(&self) -> u32 {
        sets(self.np_flows)
    }

    /// Entries of the tables with one per QP of this host: configured pairs, and requesters.
    pub(crate) fn pairs(&self) -> u32 {
        self.np_flows.clamp(WAYS as u32, MAX_FLOWS)
    }
}

fn sets(flows: u32) -> u32 {
    flows.clamp(WAYS as u32, MAX_FLOWS).div_ceil(WAYS as u32).next_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_powers_of_two_of_sets() {
        assert_eq!([1, 8, 9, 65_536, u32::MAX].map(sets), [1, 1, 2, 8_192, 131_072]);
    }
}
