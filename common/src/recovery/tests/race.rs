//! The programs of two CPUs that follow packets of a QP at the same time.
//!
//! They run in every order of the accesses to its state that switches between the CPUs three times at most.

extern crate std;

use std::cell::RefCell;
use std::rc::Rc;
use std::vec::Vec;

use super::*;

/// Time of the packets that both programs follow.
const NOW_NS: u64 = 50 * MS;

std::thread_local! {
    static RUN: RefCell<Option<Rc<Run>>> = const { RefCell::new(None) };
}

/// The second program.
#[derive(Clone, Copy)]
enum Second {
    /// Follows packets.
    Follows(&'static [Packet]),
    /// Copies the state, as `dcqcn run` does.
    Copies,
}

/// Two programs: the second one starts, is interrupted, and continues when the first one has ended.
struct Run {
    memory: Cell<Requester>,
    second: Second,
    copied: Cell<Requester>,
    /// Accesses of the first program before the second one starts, and of that before it is interrupted.
    stops: [usize; 2],
    phase: Cell<Phase>,
    /// Accesses in this phase.
    accesses: Cell<usize>,
    /// State before each access of the second program.
    seen: RefCell<Vec<Requester>>,
    /// State to continue with.
    current: Cell<Requester>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    First,
    Second,
    /// The second program is interrupted: all further accesses of this call are undone.
    Interrupted,
    /// The first program continues.
    Back,
    /// The second program is called again, with the same values up to the interruption.
    Repeated,
    Done,
}

/// Called before each access.
pub(in crate::recovery) fn before_access() {
    if let Some(run) = RUN.with_borrow(Clone::clone) {
        run.step();
    }
}

impl Run {
    fn step(&self) {
        let access = self.accesses.get();
        self.accesses.set(access + 1);
        let [first, second] = self.stops;
        match self.phase.get() {
            Phase::First if access == first => self.start_second(),
            Phase::Second if access < second => self.seen.borrow_mut().push(self.memory.get()),
            Phase::Second => {
                self.current.set(self.memory.get());
                self.phase.set(Phase::Interrupted);
            }
            Phase::Repeated if access < second => self.memory.set(self.seen.borrow()[access]),
            Phase::Repeated if access == second => self.memory.set(self.current.get()),
            _ => {}
        }
    }

    fn call_second(&self, phase: Phase) {
        self.phase.set(phase);
        self.accesses.set(0);
        match self.second {
            Second::Follows(packets) => follow(SharedRequester(&self.memory), packets, NOW_NS),
            Second::Copies => self.copied.set(self.memory.get()),
        }
    }

    fn start_second(&self) {
        self.call_second(Phase::Second);
        if self.phase.get() == Phase::Interrupted {
            self.memory.set(self.current.get());
            self.phase.set(Phase::Back);
        } else {
            self.phase.set(Phase::Done);
        }
    }
}

/// Result of an order of the accesses.
struct Outcome {
    stops: [usize; 2],
    /// Whether each program was interrupted.
    were_interrupted: [bool; 2],
    after: Requester,
    copied: Requester,
}

/// Runs both programs, of which the first one follows packets.
fn interleave(before: Requester, first: &[Packet], second: Second, stops: [usize; 2]) -> Outcome {
    let run = Rc::new(Run {
        memory: Cell::new(before),
        second,
        copied: Cell::new(before),
        stops,
        phase: Cell::new(Phase::First),
        accesses: Cell::new(0),
        seen: RefCell::new(Vec::new()),
        current: Cell::new(before),
    });
    RUN.set(Some(run.clone()));
    follow(SharedRequester(&run.memory), first, NOW_NS);
    let is_first_interrupted = run.phase.get() != Phase::First;
    if !is_first_interrupted {
        run.start_second();
    }
    let is_second_interrupted = run.phase.get() == Phase::Back;
    if is_second_interrupted {
        run.current.set(run.memory.get());
        run.call_second(Phase::Repeated);
    }
    RUN.set(None);
    let were_interrupted = [is_first_interrupted, is_second_interrupted];
    Outcome { stops, were_interrupted, after: run.memory.get(), copied: run.copied.get() }
}

/// Calls `check` with the result of each order of the accesses.
fn explore(before: Requester, first: &[Packet], second: Second, mut check: impl FnMut(&Outcome)) {
    for start in 0.. {
        for stop in 0.. {
            let outcome = interleave(before, first, second, [start, stop]);
            check(&outcome);
            let [is_first_interrupted, is_second_interrupted] = outcome.were_interrupted;
            if !is_first_interrupted {
                return;
            }
            if !is_second_interrupted {
                break;
            }
        }
    }
}

/// A packet that a program follows.
#[derive(Clone, Copy, Debug)]
enum Packet {
    /// Opcode, PSN and bytes.
    Request(Opcode, u32, u32),
    Response(Response),
    /// A READ response or an atomic acknowledgement with a correct ICRC.
    Answer(Opcode, u32),
}
use Packet::{Answer, Request as Sends, Response as Receives};

/// Follows packets, as a program does.
fn follow(requester: SharedRequester<'_>, packets: &[Packet], now_ns: u64) {
    for packet in packets {
        match *packet {
            Sends(opcode, psn, bytes) => {
                requester.follow_request(&request(opcode, psn, bytes), now_ns);
            }
            Receives(response) => {
                requester.follow_response(&response, now_ns);
                requester.drops(&response, now_ns);
            }
            Answer(opcode, psn) => {
                let syndrome = requester.syndrome_if_correct(opcode, psn, true);
                requester.follow_response(&Response { syndrome, ..read_response(opcode, psn) }, now_ns);
            }
        }
    }
}

/// No probe, whenever it is sent, names a PSN after `lost`, that of a SEND or WRITE which was not accepted.
fn assert_safe(requester: &Requester, lost: u32, case: &str, stops: [usize; 2]) {
    for settings in [UNLIMITED, NEWER, RULES] {
        for probes in 0..3 {
            let sent = Sent { probes, at_ns: 0 };
            if let Action::Nak(psn) | Action::RnrNak(psn) = requester.action(settings, 99_000 * MS, sent, 0) {
                assert!(
                    distance(lost, psn) <= 0,
                    "{case}, {stops:?}: {psn} named, {lost} lost: {requester:?}"
                );
            }
        }
    }
}

/// A state, the packets that programs follow at the same time, those after them, and the SEND that is lost.
struct Case {
    name: &'static str,
    before: Requester,
    egress: &'static [Packet],
    ingress: &'static [Packet],
    after: &'static [Packet],
    lost: u32,
}

const ACK_11: Response =
    Response { opcode: Opcode::RC_ACKNOWLEDGE, psn: 11, syndrome: 0x1f, own_qpn: QPN, udp_sport: 1 };

fn cases() -> [Case; 7] {
    let answered = [(SEND, 10, 0), (READ, 11, 64), (SEND, 12, 0)];
    let mut repeated = after_requests([(SEND, 10, 0), (SEND, 11, 0), (READ, 12, 64)]);
    repeated.on_response(&ack(11), 12 * MS);
    let mut known_mtu = acknowledged(9);
    known_mtu.mtu = MTU;
    known_mtu.send(10 * MS, [(SEND, 10, 0), (READ, 11, 64), (READ, 12, 64)]);
    [
        Case {
            name: "READ response",
            before: after_requests(answered),
            egress: &[Sends(READ, 13, 4 * MTU), Sends(SEND, 17, 0)],
            ingress: &[Answer(ONLY, 11)],
            after: &[Sends(READ, 18, 64)],
            lost: 12,
        },
        Case {
            name: "ACK and READ response",
            before: known_mtu,
            egress: &[Sends(READ, 13, 4 * MTU), Sends(SEND, 17, 0), Sends(READ, 18, 64)],
            ingress: &[Receives(Response { psn: 10, ..ACK_11 }), Answer(ONLY, 11), Answer(ONLY, 12)],
            after: &[Sends(READ, 19, 64)],
            lost: 17,
        },
        Case {
            name: "READ of unknown length",
            before: after_requests([(READ, 10, 4 * MTU)]),
            egress: &[Sends(SEND, 14, 0), Sends(SEND, 15, 0)],
            ingress: &[Answer(FIRST, 10), Answer(MIDDLE, 11)],
            after: &[Sends(READ, 16, 64)],
            lost: 14,
        },
        Case {
            name: "repeated SENDs",
            before: repeated,
            egress: &[Sends(SEND, 10, 0), Sends(SEND, 11, 0), Sends(READ, 12, 64), Sends(SEND, 13, 0)],
            ingress: &[Receives(ACK_11), Answer(ONLY, 12)],
            after: &[Sends(READ, 14, 64)],
            lost: 13,
        },
        Case {
            name: "retransmission",
            before: after_requests([(SEND, 10, 0), (SEND, 11, 0), (SEND, 12, 0)]),
            egress: &[Sends(SEND, 10, 0), Sends(SEND, 11, 0), Sends(SEND, 12, 0)],
            ingress: &[Receives(Response { psn: 10, ..ACK_11 }), Receives(ACK_11)],
            after: &[Sends(READ, 13, 64)],
            lost: 12,
        },
        Case {
            name: "response to an earlier QP",
            before: after_requests([(SEND, 10, 0), (SEND, 11, 0), (SEND, 12, 0)]),
            egress: &[Sends(SEND, 10, 0), Sends(SEND, 11, 0)],
            ingress: &[Receives(Response { psn: 5, own_qpn: QPN + 1, ..ACK_11 })],
            after: &[Sends(SEND, 12, 0), Receives(Response { psn: 9, ..ACK_11 }), Sends(READ, 13, 64)],
            lost: 10,
        },
        Case {
            name: "reset QP",
            before: acknowledged(99),
            egress: &[Sends(SEND, 50, 0), Sends(SEND, 51, 0)],
            ingress: &[Receives(ACK_11), Answer(ONLY, 40)],
            after: &[Sends(SEND, 52, 0)],
            lost: 50,
        },
    ]
}

#[test]
fn concurrent_programs_name_accepted_psns() {
    for Case { name, before, egress, ingress, after, lost } in cases() {
        for (first, second) in [(egress, ingress), (ingress, egress)] {
            explore(before, first, Second::Follows(second), |outcome| {
                let mut requester = outcome.after;
                assert_safe(&requester, lost, name, outcome.stops);
                for packet in after {
                    follow(SharedRequester::new(&mut requester), &[*packet], 60 * MS);
                    assert_safe(&requester, lost, name, outcome.stops);
                }
            });
        }
    }
}

/// A copy between two accesses of a program, after which no other comes in time.
#[test]
fn half_done_changes_name_accepted_psns() {
    for Case { name, before, egress, ingress, lost, .. } in cases() {
        for packets in [egress, ingress] {
            explore(before, packets, Second::Copies, |outcome| {
                assert_safe(&outcome.copied, lost, name, outcome.stops);
            });
        }
    }
}
