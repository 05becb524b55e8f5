//! An interpreter of compiled programs: the JSON that p4c writes for BMv2.
//!
//! The format is version 2 of `docs/JSON_format.md` of p4lang/behavioral-model. The interpreter is a test instrument:
//! it supports what `p4/build/dcqcn.json` uses, and rejects other features by name when the program is loaded.
//!
//! | part | supported | rejected |
//! |---|---|---|
//! | fields | of 1 to 128 bits, signed or not | variable length |
//! | parser | `extract` of a header, `set`, transitions by fields and masks | header stacks, unions, `lookahead`, value sets |
//! | tables | `exact`, `lpm`, default and constant entries | `ternary`, `range`, profiles, direct counters and meters |
//! | actions | jumps forward, registers, counters, hashes, `truncate`, `recirculate`, egress clones | `resubmit`, digests, meters |
//! | calculations | `crc32`, `csum16` over fields | checksums that the deparser updates |
//!
//! It behaves like `simple_switch` that processes one packet at a time: in order of arrival at ingress, and by priority
//! in a port's queues. Its clock is set by [`Interpreter::set_time`]; a queue drains only in [`Interpreter::receive`],
//! so that a test determines the queue depths. Rates are ignored. Two conditions that BMv2 only logs are errors here,
//! as they are mistakes in the program: an index beyond the end of a register, and a clone to an undefined session. A
//! packet to a multicast group is an error too.

mod bits;
mod expression;
mod format;
mod integer;
mod load;
mod model;
mod packet;
mod tables;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use dcqcn_common::rng;

use super::control::{Control, TableDump};
use super::entry::Command;
use super::error::{Error, Result};
use super::program::{JSON, Program};
use bits::{Bits, crc32, csum16};
use expression::Expression;
use integer::Int;
use model::{Algorithm, Model, Node, Primitive};
use packet::Packet;
use tables::Tables;

const DROP_PORT: u32 = 511;
const QUEUES: usize = 8;
const DEFAULT_DEPTH: usize = 64;
/// Values of `instance_type`.
const NORMAL: u32 = 0;
const EGRESS_CLONE: u32 = 2;
const RECIRCULATED: u32 = 4;
/// Maximum passes through ingress or egress in one [`Interpreter::receive`].
const MAX_PASSES: usize = 200;

/// A switch that runs the program.
pub struct Interpreter {
    model: Arc<Model>,
    /// The program's control plane view.
    program: Program,
    tables: Tables,
    registers: Vec<Vec<u64>>,
    /// Packets and bytes.
    counters: Vec<Vec<(u64, u64)>>,
    mirrors: HashMap<u32, u32>,
    arrived: VecDeque<Packet>,
    ports: BTreeMap<u32, Port>,
    left: VecDeque<(u32, Vec<u8>)>,
    now_us: u64,
    random: u64,
}

/// The queues of a port, by priority.
#[derive(Default)]
struct Port {
    queues: [VecDeque<Packet>; QUEUES],
    depths: [Option<usize>; QUEUES],
}

impl Interpreter {
    /// A switch that runs the program of this version, with `seed` for its random numbers.
    pub fn embedded(seed: u64) -> Result<Self> {
        Self::new(JSON, seed)
    }

    /// A switch that runs a compiled program, with `seed` for its random numbers.
    ///
    /// # Errors
    /// The program has a feature that the interpreter does not support.
    pub fn new(json: &str, seed: u64) -> Result<Self> {
        let model = load::load(json)?;
        Ok(Self {
            program: Program::parse("the compiled program", json)?,
            tables: Tables::new(&model),
            registers: model.registers.iter().map(|register| vec![0; register.size]).collect(),
            counters: model.counters.iter().map(|(_, size)| vec![(0, 0); *size]).collect(),
            mirrors: HashMap::new(),
            arrived: VecDeque::new(),
            ports: BTreeMap::new(),
            left: VecDeque::new(),
            now_us: 0,
            random: seed,
            model: Arc::new(model),
        })
    }

    /// Sets the clock, in microseconds since the start.
    pub const fn set_time(&mut self, now_us: u64) {
        self.now_us = now_us;
    }

    pub fn send(&mut self, port: u16, packet: &[u8]) {
        let standard = &self.model.standard;
        let mut arrived = Packet::new(&self.model, packet.to_vec());
        arrived.set(&self.model, standard.ingress_port, u32::from(port).into());
        arrived.set(&self.model, standard.packet_length, arrived.length.into());
        arrived.set(&self.model, standard.ingress_global_timestamp, u128::from(self.now_us).into());
        self.arrived.push_back(arrived);
    }

    /// Runs the switch until a packet leaves by this port, and returns it; `None` if none does within some time, or the
    /// switch is empty.
    ///
    /// # Errors
    /// The program violates a rule.
    pub fn receive(&mut self, port: u16) -> Result<Option<Vec<u8>>> {
        for _ in 0..MAX_PASSES {
            if let Some(at) = self.left.iter().position(|(out, _)| *out == u32::from(port)) {
                return Ok(self.left.remove(at).map(|(_, packet)| packet));
            }
            if !self.pass()? {
                break;
            }
        }
        Ok(None)
    }

    /// Passes one packet through ingress or egress. Returns `false` if there is none.
    fn pass(&mut self) -> Result<bool> {
        let model = Arc::clone(&self.model);
        if let Some(packet) = self.arrived.pop_front() {
            self.ingress(&model, packet)?;
            return Ok(true);
        }
        let standard = &model.standard;
        for (number, port) in &mut self.ports {
            let Some(queue) = port.queues.iter_mut().rev().find(|queue| !queue.is_empty()) else { continue };
            let Some(mut packet) = queue.pop_front() else { continue };
            packet.set(&model, standard.deq_qdepth, (queue.len() as u128).into());
            packet.set(&model, standard.egress_port, (*number).into());
            self.egress(&model, packet)?;
            return Ok(true);
        }
        Ok(false)
    }

    fn ingress(&mut self, model: &Model, mut packet: Packet) -> Result<()> {
        let standard = &model.standard;
        packet.parse(model);
        self.run(model, model.ingress, &mut packet)?;
        if !packet.get(standard.mcast_grp).is_zero() {
            return Err(Error::Interpreter { reason: "the packet goes to a multicast group".to_owned() });
        }
        let port = packet.get(standard.egress_spec).small();
        if port != DROP_PORT {
            packet.set(model, standard.instance_type, NORMAL.into());
            self.enqueue(model, port, packet);
        }
        Ok(())
    }

    /// Queues a packet at a port, if there is room.
    fn enqueue(&mut self, model: &Model, number: u32, mut packet: Packet) {
        let standard = &model.standard;
        let priority = packet.get(standard.priority).small() as usize;
        let port = self.ports.entry(number).or_default();
        let depth = port.depths.get(priority).copied().flatten().unwrap_or(DEFAULT_DEPTH);
        if let Some(queue) = port.queues.get_mut(priority)
            && queue.len() < depth
        {
            packet.set(model, standard.enq_timestamp, u128::from(self.now_us).into());
            packet.set(model, standard.enq_qdepth, (queue.len() as u128).into());
            queue.push_back(packet);
        }
    }

    fn egress(&mut self, model: &Model, mut packet: Packet) -> Result<()> {
        let standard = &model.standard;
        let now = Int::from(u128::from(self.now_us));
        packet.set(model, standard.egress_global_timestamp, now);
        packet.set(model, standard.deq_timedelta, now.sub(packet.get(standard.enq_timestamp)));
        // As in BMv2: any port other than that of dropped packets.
        packet.set(model, standard.egress_spec, (DROP_PORT + 1).into());
        packet.set(model, standard.packet_length, packet.length.into());
        self.run(model, model.egress, &mut packet)?;
        if let Some((session, list)) = packet.clone_to.take() {
            let port = self.mirrors.get(&session).copied();
            let port = port.ok_or_else(|| Error::Interpreter {
                reason: format!("it clones a packet to mirror session {session}, which has no port"),
            })?;
            let copy = packet.copied(model, list, EGRESS_CLONE);
            self.enqueue(model, port, copy);
        }
        if packet.get(standard.egress_spec).small() == DROP_PORT {
            return Ok(());
        }
        let bytes = packet.deparse(model);
        match packet.recirculate_with {
            None => self.left.push_back((packet.get(standard.egress_port).small(), bytes)),
            Some(list) => {
                let mut again = Packet::new(model, bytes);
                again.copy_list(model, list, &packet);
                again.set(model, standard.instance_type, RECIRCULATED.into());
                again.set(model, standard.packet_length, again.length.into());
                self.arrived.push_back(again);
            }
        }
        Ok(())
    }

    /// Runs a pipeline on a packet. The compiler writes no loops of tables.
    fn run(&mut self, model: &Model, start: Option<Node>, packet: &mut Packet) -> Result<()> {
        let mut next = start;
        while let Some(node) = next {
            next = match node {
                Node::Conditional(index) => model.conditionals.get(index).and_then(|conditional| {
                    let is_true = !conditional.condition.value(&packet.fields, &[]).is_zero();
                    conditional.next.get(usize::from(is_true)).copied().flatten()
                }),
                Node::Table(index) => {
                    let Some((bound, next)) = self.tables.look_up(model, index, packet) else { break };
                    let (action, parameters) = (bound.action, bound.parameters.clone());
                    self.act(model, action, &parameters, packet)?;
                    next
                }
            };
        }
        Ok(())
    }

    fn act(&mut self, model: &Model, action: usize, parameters: &[Int], packet: &mut Packet) -> Result<()> {
        let code = model.actions.get(action).map_or(&[][..], |action| &action.code);
        let mut at = 0;
        while let Some(primitive) = code.get(at) {
            at += 1;
            match primitive {
                Primitive::Jump(to) => at = *to,
                Primitive::JumpIfZero(condition, to) => {
                    if condition.value(&packet.fields, parameters).is_zero() {
                        at = *to;
                    }
                }
                primitive => self.step(model, primitive, parameters, packet)?,
            }
        }
        Ok(())
    }

    fn step(
        &mut self,
        model: &Model,
        primitive: &Primitive,
        parameters: &[Int],
        packet: &mut Packet,
    ) -> Result<()> {
        let value = |expression: &Expression| expression.value(&packet.fields, parameters);
        let name = |register: &usize| model.registers.get(*register).map_or("", |register| &register.name);
        match primitive {
            Primitive::Assign(to, expression) => packet.set(model, *to, value(expression)),
            Primitive::RegisterRead(to, register, index) => {
                let index = value(index);
                let cell = self.registers.get(*register).and_then(|cells| cells.get(index.small() as usize));
                let cell = *cell.ok_or_else(|| out_of_range("register", name(register), index))?;
                packet.set(model, *to, u128::from(cell).into());
            }
            Primitive::RegisterWrite(register, index, expression) => {
                let (index, value) = (value(index), value(expression));
                let bits = model.registers.get(*register).map_or(0, |register| register.bits);
                let cell =
                    self.registers.get_mut(*register).and_then(|cells| cells.get_mut(index.small() as usize));
                *cell.ok_or_else(|| out_of_range("register", name(register), index))? =
                    value.stored(bits, false).bits() as u64;
            }
            Primitive::Count(counter, index) => {
                let index = value(index);
                let cell =
                    self.counters.get_mut(*counter).and_then(|cells| cells.get_mut(index.small() as usize));
                let (packets, bytes) = cell.ok_or_else(|| {
                    out_of_range("counter", model.counters.get(*counter).map_or("", |(name, _)| name), index)
                })?;
                *packets += 1;
                *bytes += u64::from(packet.ingress_length);
            }
            Primitive::Hash(to, base, calculation, size) => {
                let (base, size) = (value(base), value(size).bits().max(1));
                let result = hash(model, *calculation, packet) % size;
                packet.set(model, *to, base.add(result.into()));
            }
            Primitive::Random(to, low, high) => {
                let (low, high) = (value(low).bits(), value(high).bits());
                self.random = rng::next(self.random);
                if low <= high {
                    let range = (high - low).saturating_add(1);
                    packet.set(model, *to, (low + u128::from(rng::value(self.random)) % range).into());
                }
            }
            Primitive::Drop => {
                packet.set(model, model.standard.egress_spec, DROP_PORT.into());
                packet.set(model, model.standard.mcast_grp, Int::ZERO);
            }
            Primitive::AddHeader(header) => packet.add_header(model, *header),
            Primitive::RemoveHeader(header) => packet.remove_header(model, *header),
            Primitive::Truncate(length) => packet.truncate_to = Some(value(length).small() as usize),
            Primitive::Recirculate(list) => packet.recirculate_with = Some(*list),
            Primitive::Clone(session, list) => packet.clone_to = Some((value(session).small(), *list)),
            Primitive::Jump(_) | Primitive::JumpIfZero(..) => {}
        }
        Ok(())
    }
}

/// Result of a calculation over a packet's fields.
fn hash(model: &Model, calculation: usize, packet: &Packet) -> u128 {
    let Some(calculation) = model.calculations.get(calculation) else { return 0 };
    let mut input = Bits::default();
    for field in &calculation.input {
        input.push(packet.get(*field).bits(), model.fields.get(*field).map_or(0, |field| field.bits));
    }
    match calculation.algorithm {
        Algorithm::Crc32 => crc32(&input.bytes).into(),
        Algorithm::Csum16 => csum16(&input.bytes).into(),
    }
}

fn out_of_range(what: &str, name: &str, index: Int) -> Error {
    Error::Interpreter { reason: format!("{what} `{name}` has no element {}", index.bits()) }
}

impl Control for Interpreter {
    fn run(&mut self, command: &Command) -> Result<()> {
        match command {
            Command::Write(entry) => {
                self.program.check(entry)?;
                self.tables.write(&self.model, entry)?;
            }
            Command::Modify(handle, entry) => {
                self.program.check(entry)?;
                self.tables.modify(&self.model, *handle, entry)?;
            }
            Command::Delete(handle, entry) => self.tables.delete(&self.model, *handle, entry)?,
            Command::Mirror { session, port } => {
                self.mirrors.insert(*session, (*port).into());
            }
            Command::QueueDepth { port, queue, packets } => {
                let depths = &mut self.ports.entry((*port).into()).or_default().depths;
                for (number, depth) in depths.iter_mut().enumerate() {
                    if queue.is_none_or(|queue| usize::from(queue) == number) {
                        *depth = Some(*packets as usize);
                    }
                }
            }
            // Queues drain when the switch is run, not by a clock.
            Command::QueueRate { .. } => {}
            Command::Register { name, index, value } => {
                let bits = self.program.registers.get(name).map_or(0, |array| array.bits);
                *self.cell(name, *index)? = Int::from(u128::from(*value)).stored(bits, false).bits() as u64;
            }
        }
        Ok(())
    }

    fn table(&mut self, name: &str) -> Result<TableDump> {
        self.tables.dump(&self.model, name)
    }

    fn register(&mut self, name: &str) -> Result<Vec<u64>> {
        Ok(self.cells(name)?.clone())
    }

    fn register_at(&mut self, name: &str, index: u64) -> Result<u64> {
        self.cell(name, index).copied()
    }

    fn counter(&mut self, name: &str, index: u64) -> Result<(u64, u64)> {
        let array = self.model.counters.iter().position(|(there, _)| there == name);
        let cell =
            array.and_then(|array| self.counters.get(array)).and_then(|cells| cells.get(index as usize));
        cell.copied().ok_or_else(|| out_of_range("counter", name, u128::from(index).into()))
    }

    fn now_ns(&mut self) -> Result<u64> {
        Ok(self.now_us.saturating_mul(1_000))
    }
}

impl Interpreter {
    fn cells(&mut self, name: &str) -> Result<&mut Vec<u64>> {
        let array = self.model.registers.iter().position(|register| register.name == name);
        let cells = array.and_then(|array| self.registers.get_mut(array));
        cells.ok_or_else(|| Error::Interpreter { reason: format!("no register `{name}`") })
    }

    fn cell(&mut self, name: &str, index: u64) -> Result<&mut u64> {
        let cell = self.cells(name)?.get_mut(index as usize);
        cell.ok_or_else(|| out_of_range("register", name, u128::from(index).into()))
    }
}

#[cfg(test)]
mod tests;
