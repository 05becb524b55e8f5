//! Schema of the compiled JSON. All keys are listed, so that unknown ones are rejected.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// Objects: their keys, and after `;` those that are not used.
macro_rules! objects {
    ($($(#[$doc:meta])* $object:ident {
        $($(#[$attribute:meta])* $key:ident: $type:ty),* $(,)? $(; $($unused:ident = $name:literal),+)?
    })+) => {
        $(
            $(#[$doc])*
            #[derive(Deserialize)]
            #[serde(deny_unknown_fields)]
            pub(super) struct $object {
                $($(#[$attribute])* pub(super) $key: $type,)*
                $($(#[serde(rename = $name)] $unused: Value,)+)?
            }
        )+
    };
}

objects! {
    Program {
        #[serde(rename = "__meta__")]
        meta: Meta,
        header_types: Vec<HeaderType>,
        headers: Vec<Header>,
        errors: Vec<(String, u32)>,
        parsers: Vec<Parser>,
        deparsers: Vec<Deparser>,
        counter_arrays: Vec<Array>,
        register_arrays: Vec<Array>,
        calculations: Vec<Calculation>,
        actions: Vec<Action>,
        pipelines: Vec<Pipeline>,
        field_lists: Vec<FieldList>,
        header_union_types: Vec<Value>,
        header_unions: Vec<Value>,
        header_union_stacks: Vec<Value>,
        enums: Vec<Value>,
        parse_vsets: Vec<Value>,
        meter_arrays: Vec<Value>,
        learn_lists: Vec<Value>,
        checksums: Vec<Value>,
        extern_instances: Vec<Value>,
        force_arith: Vec<Value>,
        // Elements of a stack are headers too, and operations on a stack are rejected. Aliases are other
        // names of fields of `standard_metadata`.
        ; _program = "program", _header_stacks = "header_stacks", _field_aliases = "field_aliases"
    }

    Meta { version: [u32; 2]; _compiler = "compiler" }

    HeaderType {
        name: String,
        /// Name, width and signedness of each field. A field of variable length has no number for a width.
        fields: Vec<(String, u32, bool)>,
        ; _id = "id"
    }

    Header { name: String, header_type: String, metadata: bool; _id = "id", _pi_omit = "pi_omit" }

    Parser { init_state: String, parse_states: Vec<ParseState>; _name = "name", _id = "id" }

    ParseState {
        name: String,
        parser_ops: Vec<Call>,
        transition_key: Vec<Value>,
        transitions: Vec<Transition>,
        ; _id = "id"
    }

    Transition {
        #[serde(rename = "type")]
        kind: String,
        value: Option<String>,
        mask: Option<String>,
        next_state: Option<String>,
    }

    /// An operation of a parser, or a primitive of an action.
    Call { op: String, parameters: Vec<Value> }

    Deparser { order: Vec<String>, primitives: Vec<Value>; _name = "name", _id = "id" }

    /// A register or a counter array.
    Array {
        name: String,
        size: usize,
        /// Registers only.
        #[serde(default)]
        bitwidth: u32,
        /// Counters only.
        #[serde(default)]
        is_direct: bool,
        ; _id = "id"
    }

    Calculation { name: String, algo: String, input: Vec<Value>; _id = "id" }

    /// Names and widths of the parameters are in [`super::super::program`].
    Action { name: String, id: u32, runtime_data: Vec<Value>, primitives: Vec<Call> }

    FieldList { id: u32, elements: Vec<Value>; _name = "name" }

    Pipeline {
        name: String,
        init_table: Option<String>,
        tables: Vec<Table>,
        action_profiles: Vec<Value>,
        conditionals: Vec<Conditional>,
        ; _id = "id"
    }

    Table {
        name: String,
        #[serde(rename = "type")]
        kind: String,
        max_size: usize,
        with_counters: bool,
        support_timeout: bool,
        direct_meters: Option<String>,
        key: Vec<Key>,
        actions: Vec<String>,
        action_ids: Vec<u32>,
        next_tables: BTreeMap<String, Option<String>>,
        default_entry: DefaultEntry,
        #[serde(default)]
        entries: Vec<ConstantEntry>,
        // Each key has its own match type; the base default is for tables without a default action.
        ; _id = "id", _match_type = "match_type", _base_default_next = "base_default_next"
    }

    Key { match_type: String, target: Value, mask: Option<String>; _name = "name" }

    DefaultEntry {
        action_id: u32,
        action_const: bool,
        action_data: Vec<String>,
        // Equals `action_const` with this compiler.
        ; _action_entry_const = "action_entry_const"
    }

    ConstantEntry {
        match_key: Vec<ConstantKey>,
        action_entry: ActionEntry,
        // Needed only if several entries can match, in rejected tables.
        ; _priority = "priority"
    }

    ConstantKey { match_type: String, key: String }

    ActionEntry { action_id: u32, action_data: Vec<String> }

    Conditional {
        name: String,
        expression: Value,
        true_next: Option<String>,
        false_next: Option<String>,
        ; _id = "id"
    }
}
