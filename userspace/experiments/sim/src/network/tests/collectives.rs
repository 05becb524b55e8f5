//! Collectives: what can be said beforehand of how long they take, and who is last.

use super::*;
use crate::network::workload::Collective;

fn ring(collective: Collective, times: u32) -> Scenario {
    star(4, Workload::collectives(collective, &[0, 1, 2, 3], 4_000_000, 3, times))
}

#[test]
fn a_ring_takes_its_steps() {
    for (collective, steps) in
        [(Collective::AllReduce, 6), (Collective::ReduceScatter, 3), (Collective::AllGather, 3)]
    {
        let out = outcome(&Scenario { control: Control::Off, ..ring(collective, 2) });
        assert_eq!(out.collectives.len(), 2);
        // A step is a part of 1 MB over two links, and on its way back the ACK tells nobody anything.
        let part_ns = 1_000_000 * (4_096 + 66) / 4_096 * 8 / 100 + 2 * US + 333;
        for round in &out.collectives {
            assert!(round.time_ns.abs_diff(steps * part_ns) < steps * 1_000, "{round:?}, {part_ns}");
            assert_eq!((round.ranks, round.bytes, round.collective), (4, 4_000_000, collective));
        }
        let [first, second] = [0, 1].map(|number| &out.collectives[number]);
        assert!(second.start_ns >= first.start_ns + first.time_ns);
    }
}

#[test]
fn the_straggler_is_the_one_to_whom_others_send_as_well() {
    let mut workload = Workload::collectives(Collective::AllToAll, &[0, 1, 2, 3], 4_000_000, 3, 1);
    let alone =
        outcome(&Scenario { control: Control::Off, ..star(8, workload.clone()) }).collectives[0].clone();
    assert!(alone.time_ns < alone.first_ns * 11 / 10, "{alone:?}");
    for src in 4..7 {
        workload.flow(src, 2, 3, 1_000_000, 0);
    }
    let out = outcome(&Scenario { control: Control::Off, ..star(8, workload) });
    let beside = &out.collectives[0];
    assert_eq!(beside.last_host, "host2");
    // Twice as much data for host 2, and none for the others.
    assert!(beside.time_ns > alone.time_ns * 15 / 10, "{beside:?}");
    assert!(beside.median_ns < alone.time_ns * 12 / 10 && beside.first_ns <= beside.median_ns, "{beside:?}");
}
