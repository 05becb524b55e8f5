//! Schema of the compiled JSON. All keys are listed, so that unknown ones are rejected.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Program {
    #[serde(rename = "__meta__")]
    pub(super) meta: Meta,
    #[serde(rename = "program")]
    _program: Value,
    pub(super) header_types: Vec<HeaderType>,
    pub(super) headers: Vec<Header>,
    /// Unused: elements of a stack are headers too, and operations on a stack are rejected.
    #[serde(rename = "header_stacks")]
    _header_stacks: Value,
    pub(super) errors: Vec<(String, u32)>,
    pub(super) parsers: Vec<Parser>,
    pub(super) deparsers: Vec<Deparser>,
    pub(super) counter_arrays: Vec<Array>,
    pub(super) register_arrays: Vec<Array>,
    pub(super) calculations: Vec<Calculation>,
    pub(super) actions: Vec<Action>,
    pub(super) pipelines: Vec<Pipeline>,
    pub(super) field_lists: Vec<FieldList>,
    /// Other names of fields of `standard_metadata`.
    #[serde(rename = "field_aliases")]
    _field_aliases: Value,
    pub(super) header_union_types: Vec<Value>,
    pub(super) header_unions: Vec<Value>,
    pub(super) header_union_stacks: Vec<Value>,
    pub(super) enums: Vec<Value>,
    pub(super) parse_vsets: Vec<Value>,
    pub(super) meter_arrays: Vec<Value>,
    pub(super) learn_lists: Vec<Value>,
    pub(super) checksums: Vec<Value>,
    pub(super) extern_instances: Vec<Value>,
    pub(super) force_arith: Vec<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Meta {
    pub(super) version: [u32; 2],
    #[serde(rename = "compiler")]
    _compiler: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HeaderType {
    pub(super) name: String,
    #[serde(rename = "id")]
    _id: Value,
    /// Name, width and signedness of each field. A field of variable length has no number for a width.
    pub(super) fields: Vec<(String, u32, bool)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Header {
    pub(super) name: String,
    #[serde(rename = "id")]
    _id: Value,
    pub(super) header_type: String,
    pub(super) metadata: bool,
    #[serde(rename = "pi_omit")]
    _pi_omit: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Parser {
    #[serde(rename = "name")]
    _name: Value,
    #[serde(rename = "id")]
    _id: Value,
    pub(super) init_state: String,
    pub(super) parse_states: Vec<ParseState>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ParseState {
    pub(super) name: String,
    #[serde(rename = "id")]
    _id: Value,
    pub(super) parser_ops: Vec<Call>,
    pub(super) transition_key: Vec<Value>,
    pub(super) transitions: Vec<Transition>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Transition {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) value: Option<String>,
    pub(super) mask: Option<String>,
    pub(super) next_state: Option<String>,
}

/// An operation of a parser, or a primitive of an action.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Call {
    pub(super) op: String,
    pub(super) parameters: Vec<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Deparser {
    #[serde(rename = "name")]
    _name: Value,
    #[serde(rename = "id")]
    _id: Value,
    pub(super) order: Vec<String>,
    pub(super) primitives: Vec<Value>,
}

/// A register or a counter array.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Array {
    pub(super) name: String,
    #[serde(rename = "id")]
    _id: Value,
    pub(super) size: usize,
    /// Registers only.
    #[serde(default)]
    pub(super) bitwidth: u32,
    /// Counters only.
    #[serde(default)]
    pub(super) is_direct: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Calculation {
    pub(super) name: String,
    #[serde(rename = "id")]
    _id: Value,
    pub(super) algo: String,
    pub(super) input: Vec<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Action {
    pub(super) name: String,
    pub(super) id: u32,
    pub(super) runtime_data: Vec<Parameter>,
    pub(super) primitives: Vec<Call>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Parameter {
    #[serde(rename = "name")]
    _name: Value,
    pub(super) bitwidth: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FieldList {
    pub(super) id: u32,
    #[serde(rename = "name")]
    _name: Value,
    pub(super) elements: Vec<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Pipeline {
    pub(super) name: String,
    #[serde(rename = "id")]
    _id: Value,
    pub(super) init_table: Option<String>,
    pub(super) tables: Vec<Table>,
    pub(super) action_profiles: Vec<Value>,
    pub(super) conditionals: Vec<Conditional>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Table {
    pub(super) name: String,
    #[serde(rename = "id")]
    _id: Value,
    /// Unused: each key has its own match type.
    #[serde(rename = "match_type")]
    _match_type: Value,
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) max_size: usize,
    pub(super) with_counters: bool,
    pub(super) support_timeout: bool,
    pub(super) direct_meters: Option<String>,
    pub(super) key: Vec<Key>,
    pub(super) actions: Vec<String>,
    pub(super) action_ids: Vec<u32>,
    /// Unused: next node of a table without a default action.
    #[serde(rename = "base_default_next")]
    _base_default_next: Value,
    pub(super) next_tables: BTreeMap<String, Option<String>>,
    pub(super) default_entry: DefaultEntry,
    #[serde(default)]
    pub(super) entries: Vec<ConstantEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Key {
    pub(super) match_type: String,
    #[serde(rename = "name")]
    _name: Value,
    pub(super) target: Value,
    pub(super) mask: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DefaultEntry {
    pub(super) action_id: u32,
    pub(super) action_const: bool,
    pub(super) action_data: Vec<String>,
    /// Unused: equals `action_const` with this compiler.
    #[serde(rename = "action_entry_const")]
    _action_entry_const: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ConstantEntry {
    pub(super) match_key: Vec<ConstantKey>,
    pub(super) action_entry: ActionEntry,
    /// Unused: needed only if several entries can match, in rejected tables.
    #[serde(rename = "priority")]
    _priority: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ConstantKey {
    pub(super) match_type: String,
    pub(super) key: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ActionEntry {
    pub(super) action_id: u32,
    pub(super) action_data: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Conditional {
    pub(super) name: String,
    #[serde(rename = "id")]
    _id: Value,
    pub(super) expression: Value,
    pub(super) true_next: Option<String>,
    pub(super) false_next: Option<String>,
}
