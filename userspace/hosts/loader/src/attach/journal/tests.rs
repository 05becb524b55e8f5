//! Journal tests against a simulated kernel and disk that can fail, or a process that is killed, at any
//! step.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// Simulated kernel and disk.
#[derive(Clone, Debug, Default)]
struct Machine {
    /// Changes not yet undone.
    changed: BTreeSet<usize>,
    /// The stored journal.
    written: Option<Record>,
    /// Actions until the process is killed.
    life: Option<u32>,
    /// The disk is full: writes fail, removals succeed.
    full: bool,
    /// Steps that cannot be undone.
    stuck: BTreeSet<usize>,
    /// Steps that make their change and fail.
    broken: BTreeSet<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    Killed,
    Full,
    Refused,
}

impl Machine {
    /// Performs an action unless the process was killed.
    fn act(&mut self) -> Result<(), Failure> {
        match &mut self.life {
            Some(0) => Err(Failure::Killed),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

/// Journal store on the simulated disk, shared with the steps.
#[derive(Clone)]
struct Disk<'a>(&'a std::cell::RefCell<Machine>);

impl Store for Disk<'_> {
    type Error = Failure;

    fn write(&mut self, record: &Record) -> Result<(), Failure> {
        let mut machine = self.0.borrow_mut();
        machine.act()?;
        if machine.full {
            return Err(Failure::Full);
        }
        machine.written = Some(record.clone());
        Ok(())
    }

    fn remove(&mut self) -> Result<(), Failure> {
        let mut machine = self.0.borrow_mut();
        machine.act()?;
        machine.written = None;
        Ok(())
    }
}

fn undo_step(n: usize) -> UndoStep {
    UndoStep::Link { pin: n.to_string() }
}

fn number(step: &UndoStep) -> usize {
    match step {
        UndoStep::Link { pin } => pin.parse().expect("a number"),
        _ => panic!("{step:?}"),
    }
}

/// The record of an attachment of `eth0`, interface 7.
pub(in crate::attach) fn record() -> Record {
    let info = serde_json::json!({
        "iface": "eth0", "ifindex": 7, "inline_peer": null, "role": "host", "pacer": "fq", "xdp_mode": "driver",
        "tc_mode": "tcx", "programs": [], "rp_flows": 8, "np_flows": 8, "version": "0", "attached_at_ns": 1,
        "notes": [],
    });
    let info = serde_json::from_value(info).expect("an Info");
    let (boot_id, state) = (String::new(), State::Attaching);
    Record {
        format: FORMAT,
        state,
        boot_id,
        netns_inode: 1,
        bpf_dev: None,
        info,
        devices: BTreeMap::new(),
        steps: Vec::new(),
        pending: None,
    }
}

/// Attaches as `execute::run` does: rolls back after an error, but not when killed.
fn attach(machine: &std::cell::RefCell<Machine>, steps: usize) -> Result<(), Failure> {
    let mut journal = Journal::begin(record(), Disk(machine))?;
    let step = |n: usize| -> Result<(), Failure> {
        let mut machine = machine.borrow_mut();
        machine.act()?;
        machine.changed.insert(n);
        if machine.broken.contains(&n) { Err(Failure::Refused) } else { Ok(()) }
    };
    let mut result = (0..steps).try_for_each(|n| journal.record(undo_step(n), |_| step(n)));
    if result.is_ok() {
        result = journal.finish();
    }
    if matches!(result, Err(Failure::Full | Failure::Refused)) {
        rollback(machine, journal);
    }
    result
}

fn rollback(machine: &std::cell::RefCell<Machine>, mut journal: Journal<Disk<'_>>) -> UndoReport<Failure> {
    journal.rollback(|_, step| {
        let mut machine = machine.borrow_mut();
        machine.act()?;
        let n = number(step);
        if machine.stuck.contains(&n) {
            return Err(Failure::Refused);
        }
        Ok(machine.changed.remove(&n).then(|| n.to_string()))
    })
}

/// Detaches according to the stored journal.
fn detach(machine: &std::cell::RefCell<Machine>) -> Option<UndoReport<Failure>> {
    let record = machine.borrow().written.clone()?;
    Some(rollback(machine, Journal::resume(record, Disk(machine))))
}

fn machine(life: Option<u32>) -> std::cell::RefCell<Machine> {
    std::cell::RefCell::new(Machine { life, ..Machine::default() })
}

proptest! {
    /// If the process is killed at any step, every change is journaled, and the next command can undo it.
    #[test]
    fn every_change_is_journaled_first(steps in 0..8_usize, life in 0..40_u32) {
        let machine = machine(Some(life));
        let _ = attach(&machine, steps);
        let written = machine.borrow().written.clone();
        let known: BTreeSet<usize> = written.iter().flat_map(|record| &record.steps).map(number).collect();
        prop_assert!(machine.borrow().changed.is_subset(&known));
        machine.borrow_mut().life = None;
        detach(&machine);
        prop_assert!(machine.borrow().changed.is_empty());
        prop_assert!(machine.borrow().written.is_none());
    }

    /// Killed while attaching, then repeatedly while undoing.
    #[test]
    fn journal_survives_repeated_kills(steps in 0..6_usize, lives in prop::collection::vec(0..12_u32, 0..6)) {
        let machine = machine(None);
        let mut lives = lives.into_iter();
        machine.borrow_mut().life = lives.next();
        let _ = attach(&machine, steps);
        for life in lives {
            machine.borrow_mut().life = Some(life);
            detach(&machine);
        }
        machine.borrow_mut().life = None;
        detach(&machine);
        prop_assert!(machine.borrow().changed.is_empty() && machine.borrow().written.is_none());
        prop_assert_eq!(attach(&machine, steps), Ok(()));
        prop_assert_eq!(machine.borrow().changed.len(), steps);
        prop_assert_eq!(machine.borrow().written.as_ref().map(|record| record.state), Some(State::Attached));
    }

    /// A disk that is full from any write on, or a step that fails half way, leaves nothing behind.
    #[test]
    fn failed_step_rolls_back(steps in 1..8_usize, broken in 0..8_usize, free_writes in 0..10_u32) {
        let machine = machine(None);
        machine.borrow_mut().broken.insert(broken);
        prop_assert_eq!(attach(&machine, steps).is_err(), broken < steps);
        if broken < steps {
            prop_assert!(machine.borrow().changed.is_empty() && machine.borrow().written.is_none());
        }
        // The disk is full from step `free_writes` on.
        let machine = self::machine(None);
        let mut journal = Journal::begin(record(), Disk(&machine)).expect("room");
        for n in 0..steps {
            machine.borrow_mut().full = u32::try_from(n).expect("small") >= free_writes;
            let step = || { machine.borrow_mut().changed.insert(n); Ok::<(), Failure>(()) };
            if journal.record(undo_step(n), |_| step()).is_err() {
                break;
            }
        }
        prop_assert_eq!(machine.borrow().changed.len(), steps.min(free_writes as usize));
        machine.borrow_mut().full = true;
        rollback(&machine, journal);
        prop_assert!(machine.borrow().changed.is_empty() && machine.borrow().written.is_none());
    }

    /// Steps that cannot be undone stay in the journal, all others are undone, and the next detach retries.
    #[test]
    fn failed_undo_stays_in_journal(steps in 1..8_usize, stuck in prop::collection::btree_set(0..8_usize, 0..4)) {
        let machine = machine(None);
        prop_assert_eq!(attach(&machine, steps), Ok(()));
        let stuck: BTreeSet<usize> = stuck.into_iter().filter(|n| *n < steps).collect();
        machine.borrow_mut().stuck.clone_from(&stuck);
        let report = detach(&machine).expect("attached");
        prop_assert_eq!(report.errors.len(), stuck.len());
        prop_assert_eq!(&report.left.iter().map(number).collect::<BTreeSet<_>>(), &stuck);
        prop_assert_eq!(&machine.borrow().changed, &stuck);
        prop_assert_eq!(machine.borrow().written.is_some(), !stuck.is_empty());
        machine.borrow_mut().stuck.clear();
        detach(&machine);
        prop_assert!(machine.borrow().changed.is_empty() && machine.borrow().written.is_none());
    }

    #[test]
    fn undo_runs_in_reverse_order(steps in 0..8_usize) {
        let machine = machine(None);
        prop_assert_eq!(attach(&machine, steps), Ok(()));
        let done = detach(&machine).map(|report| report.done).unwrap_or_default();
        let expected: Vec<String> = (0..steps).rev().map(|n| n.to_string()).collect();
        prop_assert_eq!(done, expected);
    }
}

#[test]
fn record_recognises_its_interfaces() {
    let link = |mac| Link { index: 7, mac: Some([mac; 6]), kind: Some("veth".into()), ..Link::default() };
    let devices = BTreeMap::from([(7, Device::of(&link(1)))]);
    let text = serde_json::to_string(&Record { devices, ..record() }).expect("JSON");
    let read: Record = serde_json::from_str(&text).expect("a record");
    assert!(read.recognises(&link(1)) && !read.recognises(&link(2)));
    assert!(read.recognises(&Link { index: 8, ..link(2) }), "not recorded");
    assert!(record().recognises(&link(2)), "of a version that recorded none");
}

#[test]
fn record_round_trips() {
    let mut whole = record();
    let saved = SavedQdisc {
        kind: "tbf".into(),
        handle: Handle::new(7, 0),
        options: vec![1, 2],
        tx_queue_len: 1_000,
        queues: Vec::new(),
    };
    whole.steps = vec![
        UndoStep::Pins,
        UndoStep::Qdisc { parent: Handle::ROOT, ours: ("htb".into(), Handle::new(0xdc00, 0)), saved },
        UndoStep::Clsact,
        UndoStep::Filter { hook: "egress".into(), program: "dcqcn_egress".into() },
        undo_step(3),
    ];
    let text = serde_json::to_string(&whole).expect("JSON");
    let read: Record = serde_json::from_str(&text).expect("a record");
    assert_eq!(read.steps, whole.steps);
    assert_eq!((read.state, read.format), (State::Attaching, FORMAT));
}

fn link(kind: Option<&str>, mac: u8, permanent_mac: Option<u8>) -> Link {
    Link {
        index: 7,
        name: "eth0".into(),
        mac: Some([mac; 6]),
        permanent_mac: permanent_mac.map(|mac| [mac; 6]),
        mtu: 1_500,
        kind: kind.map(str::to_owned),
        up: true,
        ..Link::default()
    }
}

#[test]
fn device_known_by_kind_and_address() {
    let veth = Device::of(&link(Some("veth"), 1, None));
    assert!(veth.is(&Link { name: "lan0".into(), mtu: 9_000, up: false, ..link(Some("veth"), 1, None) }));
    assert!(!veth.is(&link(Some("veth"), 2, None)));
    assert!(!veth.is(&link(Some("macvlan"), 1, None)));
    let nic = Device::of(&link(None, 1, Some(1)));
    assert!(nic.is(&link(None, 9, Some(1))), "a port of a bond");
    assert!(!nic.is(&link(None, 1, Some(2))));
}
