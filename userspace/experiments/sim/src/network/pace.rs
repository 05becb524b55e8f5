//! When a queue pair's next packet may leave, while its rate changes.

use dcqcn_common::flow::RpHot;
use dcqcn_common::rate::{Debt, RpParams};

/// When to look whether the next packet of `flow` may leave: now, or at this later time.
///
/// That is when the gap behind its last packet is over at the rate in force, or before that when the increase timer expires,
/// as the gap follows the rate. A CNP puts it off: who looks too soon looks again. `debt` is a place to reckon in.
#[inline]
#[must_use]
pub fn look_again_ns(flow: &mut RpHot, rp: &RpParams, now_ns: u64, debt: &mut Debt) -> Option<u64> {
    if flow.machine.active == 0 {
        return (flow.next_ns > now_ns).then_some(flow.next_ns);
    }
    flow.advance(rp, now_ns, debt);
    let next_ns = flow.next_ns;
    (next_ns > now_ns).then(|| next_ns.min(flow.machine.next_increase_ns).max(now_ns + 1))
}

#[cfg(test)]
mod tests {
    use dcqcn_common::flow::{FlowId, RpFlow};
    use dcqcn_common::params::{Config, PACER_FQ, Params, Port};

    use super::*;

    #[test]
    fn a_gap_that_was_long_when_it_began_gets_shorter() {
        let mut config = Config::DEFAULT;
        let scalars = &mut config.scalars;
        (scalars.link_rate_bps, scalars.pacer, scalars.rpg_min_rate_bps) =
            (100_000_000_000, PACER_FQ, 10_000_000);
        scalars.rate_reduce_monitor_period_ns = 0;
        scalars.pacing_credit_ns = 0;
        let params = Params::new(&config, Port::new(1, 1, 1)).unwrap();
        let mut flow = RpFlow::new(FlowId::NONE, &params.rp);
        let mut debt = Debt::NONE;
        for cnp in 0..40 {
            flow.on_cnp(&params.rp, cnp * 1_000, &mut debt);
        }
        let now_ns = 40_000;
        let _ = flow.hot.on_send(&params, now_ns, 4_096, &mut debt);
        let frozen_ns = flow.hot.next_ns;
        assert!(frozen_ns > now_ns + 3_000_000, "4 KB at the floor of 10 Mb/s");
        let mut looks = 0;
        let mut at_ns = now_ns;
        while let Some(later_ns) = look_again_ns(&mut flow.hot, &params.rp, at_ns, &mut debt) {
            assert!(later_ns > at_ns);
            at_ns = later_ns;
            looks += 1;
        }
        assert!(at_ns < now_ns + 1_500_000 && looks > 2, "{at_ns} after {looks} looks");
    }
}
