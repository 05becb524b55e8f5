//! Queue parameters of a port.

use super::Unit;
use super::spec::parameters;
use crate::layout::CLASSES;

/// Words of `queues`.
pub(crate) const QUEUES_KINDS: &[&str] = &["none", "ets", "htb"];
/// `queues`: the port's qdisc is unchanged.
pub const QUEUES_NONE: u64 = 0;
/// `queues`: eight bands of the ets qdisc.
pub const QUEUES_ETS: u64 = 1;
/// `queues`: eight classes of the htb qdisc.
pub const QUEUES_HTB: u64 = 2;
/// Major number of the qdisc with the queues. Its classes are the `Band`s, numbered from 1.
pub const QUEUES_MAJOR: u16 = 0xdc03;

/// Words of `scheduler`.
pub const SCHEDULERS: &[&str] = &["strict", "dwrr"];
/// `scheduler`: served before all weighted queues, and before strict queues of lower numbers.
pub const SCHEDULER_STRICT: u64 = 0;
/// `scheduler`: shares the bandwidth that strict queues leave, by weight and in bytes.
pub const SCHEDULER_DWRR: u64 = 1;

parameters! {
    /// How one queue of a port is served (SONiC: the `SCHEDULER` of a `QUEUE`).
    QueueConfig {
        /// `strict`: served before all weighted queues, and before strict ones of lower numbers. `dwrr`: shares by weight.
        scheduler = SCHEDULER_DWRR, "scheduler", Unit::Choice(SCHEDULERS), 0, 1, "";
        /// Weight of a `dwrr` queue when sharing the bandwidth that strict queues leave.
        weight = 1, "weight", Unit::Count, 1, 100, "A larger share while other queues have a backlog.";
    }
}

impl QueueConfig {
    /// Weight 1 for all queues but queue 6, which carries the CNPs and is strict.
    pub(super) const DEFAULT_ALL: [Self; CLASSES] = {
        let mut queues = [Self::DEFAULT; CLASSES];
        queues[6].scheduler = SCHEDULER_STRICT;
        queues
    };
}
