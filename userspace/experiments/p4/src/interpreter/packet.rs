//! A packet in the switch: its headers as fields, and the rest as bytes.

use super::bits::{self, Bits};
use super::integer::Int;
use super::model::{Header, Model, Operation, State};

pub(super) struct Packet {
    /// Values of all fields of the program; undefined for headers that the packet lacks.
    pub(super) fields: Vec<Int>,
    /// Bytes after the parsed headers; all bytes before parsing.
    payload: Vec<u8>,
    /// Length on arrival, used by byte counters.
    pub(super) ingress_length: u32,
    /// Length with the headers added and removed since.
    pub(super) length: u32,
    pub(super) truncate_to: Option<usize>,
    pub(super) recirculate_with: Option<u32>,
    /// Mirror session, and list of fields of the clone.
    pub(super) clone_to: Option<(u32, u32)>,
}

impl Packet {
    pub(super) fn new(model: &Model, payload: Vec<u8>) -> Self {
        let length = payload.len() as u32;
        Self {
            fields: vec![Int::ZERO; model.fields.len()],
            payload,
            ingress_length: length,
            length,
            truncate_to: None,
            recirculate_with: None,
            clone_to: None,
        }
    }

    pub(super) fn get(&self, field: usize) -> Int {
        self.fields.get(field).copied().unwrap_or_default()
    }

    /// Stores a value, truncated to the width of the field.
    pub(super) fn set(&mut self, model: &Model, field: usize, value: Int) {
        if let (Some(there), Some(field)) = (self.fields.get_mut(field), model.fields.get(field)) {
            *there = value.stored(field.bits, field.is_signed);
        }
    }

    pub(super) fn add_header(&mut self, model: &Model, header: usize) {
        if let Some(header) = model.headers.get(header)
            && self.get(header.valid).is_zero()
        {
            for field in header.fields.clone() {
                self.set(model, field, Int::ZERO);
            }
            self.set(model, header.valid, true.into());
            self.length = self.length.wrapping_add(header.bytes as u32);
        }
    }

    pub(super) fn remove_header(&mut self, model: &Model, header: usize) {
        if let Some(header) = model.headers.get(header)
            && !self.get(header.valid).is_zero()
        {
            self.set(model, header.valid, Int::ZERO);
            self.length = self.length.wrapping_sub(header.bytes as u32);
        }
    }

    /// Parses the headers; the rest remains as payload.
    pub(super) fn parse(&mut self, model: &Model) {
        let payload = std::mem::take(&mut self.payload);
        let (mut at, mut next) = (0, model.start);
        // A state is entered at most once: only header stacks, which are rejected, allow loops.
        for _ in 0..model.states.len() {
            let Some(state) = next.and_then(|state| model.states.get(state)) else { break };
            if !self.enter(model, state, &payload, &mut at) {
                self.set(model, model.standard.parser_error, model.too_short.into());
                break;
            }
            let key = self.key(model, state);
            let taken = state.transitions.iter().find(|transition| key & transition.mask == transition.value);
            next = taken.map_or(state.otherwise, |transition| transition.to);
        }
        self.payload = payload.get(at..).unwrap_or_default().to_vec();
    }

    /// Executes a state's operations; `false` if the packet is too short.
    fn enter(&mut self, model: &Model, state: &State, bytes: &[u8], at: &mut usize) -> bool {
        for operation in &state.operations {
            match operation {
                Operation::Set(to, value) => {
                    let value = value.value(&self.fields, &[]);
                    self.set(model, *to, value);
                }
                Operation::Extract(header) => {
                    let Some(header) = model.headers.get(*header) else { return false };
                    let Some(own) = bytes.get(*at..*at + header.bytes) else { return false };
                    self.extract(model, header, own);
                    *at += header.bytes;
                }
            }
        }
        true
    }

    fn extract(&mut self, model: &Model, header: &Header, bytes: &[u8]) {
        let mut at = 0;
        for index in header.fields.clone() {
            let Some(field) = model.fields.get(index) else { continue };
            self.set(model, index, bits::read(bytes, at, field.bits).into());
            at += field.bits as usize;
        }
        self.set(model, header.valid, true.into());
    }

    fn key(&self, model: &Model, state: &State) -> u128 {
        state.key.iter().fold(0, |key, field| {
            let bits = model.fields.get(*field).map_or(0, |field| field.bits.next_multiple_of(8));
            key.checked_shl(bits).unwrap_or(0) | self.get(*field).bits()
        })
    }

    pub(super) fn deparse(&self, model: &Model) -> Vec<u8> {
        let mut written = Bits::default();
        for header in model.deparser.iter().filter_map(|header| model.headers.get(*header)) {
            if self.get(header.valid).is_zero() {
                continue;
            }
            for index in header.fields.clone() {
                let bits = model.fields.get(index).map_or(0, |field| field.bits);
                written.push(self.get(index).bits(), bits);
            }
        }
        let mut bytes = written.bytes;
        bytes.extend_from_slice(&self.payload);
        // BMv2 resets a truncation when the packet is recirculated.
        if let Some(length) = self.truncate_to
            && self.recirculate_with.is_none()
        {
            bytes.truncate(length);
        }
        bytes
    }

    /// A copy with these metadata fields.
    pub(super) fn copied(&self, model: &Model, list: u32, instance_type: u32) -> Self {
        let mut copy = Self {
            fields: self.fields.clone(),
            payload: self.payload.clone(),
            truncate_to: None,
            recirculate_with: None,
            clone_to: None,
            ..*self
        };
        for field in
            model.headers.iter().filter(|header| header.is_metadata).flat_map(|header| header.fields.clone())
        {
            copy.set(model, field, Int::ZERO);
        }
        copy.copy_list(model, list, self);
        copy.set(model, model.standard.instance_type, instance_type.into());
        copy
    }

    pub(super) fn copy_list(&mut self, model: &Model, list: u32, from: &Self) {
        for field in model.field_lists.get(&list).into_iter().flatten() {
            self.set(model, *field, from.get(*field));
        }
    }
}
