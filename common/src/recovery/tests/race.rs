//! The programs of two CPUs that follow packets of a QP at the same time.
//!
//! They run in every order of the accesses to its state that switches between the CPUs three times at most.

extern crate std;

use std::cell::RefCell;
use std::rc::Rc;
use std::vec::Vec;

use super::*;

/// What a program does with a packet.
pub(super) type Program = dyn Fn(SharedRequester<'_>);

std::thread_local! {
    static RUN: RefCell<Option<Rc<Run>>> = const { RefCell::new(None) };
}

/// Two programs: the second one starts, is interrupted, and continues when the first one has ended.
struct Run {
    memory: Cell<Requester>,
    second: Rc<Program>,
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
        (self.second)(SharedRequester(&self.memory));
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

/// Runs both programs. Returns whether each was interrupted.
pub(super) fn interleave(
    requester: &mut Requester,
    first: &Program,
    second: Rc<Program>,
    stops: [usize; 2],
) -> [bool; 2] {
    let run = Rc::new(Run {
        memory: Cell::new(*requester),
        second,
        stops,
        phase: Cell::new(Phase::First),
        accesses: Cell::new(0),
        seen: RefCell::new(Vec::new()),
        current: Cell::new(*requester),
    });
    RUN.set(Some(run.clone()));
    first(SharedRequester(&run.memory));
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
    *requester = run.memory.get();
    [is_first_interrupted, is_second_interrupted]
}

/// Calls `check` with the state after each order of the accesses.
fn explore(
    requester: &Requester,
    first: &Program,
    second: &Rc<Program>,
    mut check: impl FnMut([usize; 2], Requester),
) {
    for start in 0.. {
        for stop in 0.. {
            let mut after = *requester;
            let stops = [start, stop];
            let [is_first_interrupted, is_second_interrupted] =
                interleave(&mut after, first, second.clone(), stops);
            check(stops, after);
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

/// A program that follows these packets.
fn program(packets: &'static [Packet], now_ns: u64) -> Rc<Program> {
    Rc::new(move |requester| {
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
                    let syndrome = requester.syndrome_if_correct(psn);
                    requester.follow_response(&Response { syndrome, ..read_response(opcode, psn) }, now_ns);
                }
            }
        }
    })
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

fn cases() -> [Case; 6] {
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
        let (egress, ingress) = (program(egress, 50 * MS), program(ingress, 50 * MS));
        for (first, second) in [(&egress, &ingress), (&ingress, &egress)] {
            explore(&before, &**first, second, |stops, mut requester| {
                assert_safe(&requester, lost, name, stops);
                for packet in after {
                    program(core::slice::from_ref(packet), 60 * MS)(SharedRequester::new(&mut requester));
                    assert_safe(&requester, lost, name, stops);
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
            let copied = Rc::new(Cell::new(before));
            let copy = copied.clone();
            let reader: Rc<Program> = Rc::new(move |requester| copy.set(requester.0.get()));
            explore(&before, &*program(packets, 50 * MS), &reader, |stops, _| {
                assert_safe(&copied.get(), lost, name, stops);
            });
        }
    }
}
