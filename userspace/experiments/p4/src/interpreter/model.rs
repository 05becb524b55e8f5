//! A loaded program, with references as indices.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use super::super::entry::Entry;
use super::super::error::Result;
use super::expression::Expression;
use super::integer::Int;

#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) fields: Vec<Field>,
    pub(super) headers: Vec<Header>,
    pub(super) standard: Standard,
    pub(super) states: Vec<State>,
    pub(super) start: Option<usize>,
    /// The parser error of a packet that is shorter than its headers.
    pub(super) too_short: u32,
    /// Headers in the order in which they are written.
    pub(super) deparser: Vec<usize>,
    pub(super) actions: Vec<Action>,
    pub(super) tables: Vec<Table>,
    pub(super) conditionals: Vec<Conditional>,
    pub(super) ingress: Option<Node>,
    pub(super) egress: Option<Node>,
    pub(super) registers: Vec<Register>,
    pub(super) counters: Vec<(String, usize)>,
    pub(super) calculations: Vec<Calculation>,
    pub(super) field_lists: HashMap<u32, Vec<usize>>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    pub(super) bits: u32,
    pub(super) is_signed: bool,
}

#[derive(Debug)]
pub(super) struct Header {
    pub(super) fields: Range<usize>,
    /// The field that is 1 if the packet has this header.
    pub(super) valid: usize,
    pub(super) bytes: usize,
    pub(super) is_metadata: bool,
}

macro_rules! standard {
    ($($field:ident)+) => {
        /// Fields of `standard_metadata` that the switch itself accesses.
        #[derive(Debug, Default)]
        pub(super) struct Standard {
            $(pub(super) $field: usize,)+
        }

        impl Standard {
            /// With the index of each field by its name.
            pub(super) fn new(index: impl Fn(&str) -> Result<usize>) -> Result<Self> {
                Ok(Self { $($field: index(stringify!($field))?,)+ })
            }
        }
    };
}

standard! {
    ingress_port egress_spec egress_port instance_type packet_length enq_timestamp enq_qdepth deq_timedelta
    deq_qdepth ingress_global_timestamp egress_global_timestamp mcast_grp parser_error priority
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) operations: Vec<Operation>,
    /// Fields, each zero-padded at the front to whole bytes.
    pub(super) key: Vec<usize>,
    pub(super) transitions: Vec<Transition>,
    pub(super) otherwise: Option<usize>,
}

#[derive(Debug)]
pub(super) enum Operation {
    Extract(usize),
    Set(usize, Expression),
}

#[derive(Debug)]
pub(super) struct Transition {
    pub(super) value: u128,
    pub(super) mask: u128,
    pub(super) to: Option<usize>,
}

#[derive(Debug)]
pub(super) struct Action {
    pub(super) parameters: usize,
    pub(super) code: Vec<Primitive>,
}

/// A step of an action. Destination fields come first.
#[derive(Debug)]
pub(super) enum Primitive {
    Assign(usize, Expression),
    Jump(usize),
    JumpIfZero(Expression, usize),
    /// Field, register, index.
    RegisterRead(usize, usize, Expression),
    /// Register, index, value.
    RegisterWrite(usize, Expression, Expression),
    Count(usize, Expression),
    /// Field, base, calculation, size: base + result modulo size.
    Hash(usize, Expression, usize, Expression),
    /// Field, smallest and largest number.
    Random(usize, Expression, Expression),
    Drop,
    AddHeader(usize),
    RemoveHeader(usize),
    Truncate(Expression),
    /// At the end of egress, with this list of fields.
    Recirculate(u32),
    /// At the end of egress: mirror session, list of fields.
    Clone(Expression, u32),
}

/// The next table or condition; `None` is the end of the pipeline.
#[derive(Clone, Copy, Debug)]
pub(super) enum Node {
    Table(usize),
    Conditional(usize),
}

#[derive(Debug)]
pub(super) struct Conditional {
    pub(super) condition: Expression,
    /// If it is false, if it is true.
    pub(super) next: [Option<Node>; 2],
}

#[derive(Debug)]
pub(super) struct Table {
    pub(super) name: String,
    pub(super) key: Vec<usize>,
    pub(super) size: usize,
    /// Actions by their control plane names.
    pub(super) actions: BTreeMap<String, usize>,
    pub(super) next: Next,
    pub(super) default: Bound,
    pub(super) is_default_constant: bool,
    /// Constant entries, which exclude others.
    pub(super) entries: Vec<(Entry, Bound)>,
}

#[derive(Debug)]
pub(super) enum Next {
    /// Without and with an entry for the packet.
    ByHit([Option<Node>; 2]),
    ByAction(HashMap<usize, Option<Node>>),
}

/// An action with its parameters.
#[derive(Clone, Debug)]
pub(super) struct Bound {
    pub(super) action: usize,
    pub(super) parameters: Vec<Int>,
}

#[derive(Debug)]
pub(super) struct Register {
    pub(super) name: String,
    pub(super) size: usize,
    pub(super) bits: u32,
}

#[derive(Debug)]
pub(super) struct Calculation {
    pub(super) algorithm: Algorithm,
    /// Fields, bit by bit one after the other.
    pub(super) input: Vec<usize>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Algorithm {
    Crc32,
    Csum16,
}
