//! Loading of the JSON: names become indices, and unsupported features are rejected.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;

use serde_json::Value;

use super::super::entry::{self, Entry, Match};
use super::super::error::{Error, Result};
use super::expression::Expression;
use super::format;
use super::integer::Int;
use super::model::{
    Action, Algorithm, Bound, Calculation, Conditional, Field, Header, Model, Next, Node, Operation,
    Primitive, Register, Standard, State, Table, Transition,
};

/// The supported version of the format. A higher minor number may only add features, which are rejected anyway.
const MAJOR_VERSION: u32 = 2;
/// Widest field and key of a transition, bits.
const MAX_BITS: u32 = 128;

/// Names read so far, and the current position.
pub(super) struct Load<'a> {
    location: String,
    fields: HashMap<(&'a str, &'a str), usize>,
    headers: HashMap<&'a str, usize>,
    registers: HashMap<&'a str, usize>,
    counters: HashMap<&'a str, usize>,
    calculations: HashMap<&'a str, usize>,
    field_lists: Vec<u32>,
    /// Number of parameters of the current action.
    parameters: usize,
}

impl<'a> Load<'a> {
    pub(super) fn refuse(&self, what: impl Display) -> Error {
        Error::NotInterpreted { location: self.location.clone(), what: what.to_string() }
    }

    /// A field by the names of its header and its own.
    pub(super) fn field(&self, json: &Value) -> Result<usize> {
        let name = |at: usize| json.get(at).and_then(Value::as_str).unwrap_or_default();
        let field = self.fields.get(&(name(0), name(1))).copied();
        field.ok_or_else(|| self.refuse(format_args!("the field {json}")))
    }

    fn typed_field(&self, json: &Value) -> Result<usize> {
        self.field(self.typed("field", json)?)
    }

    /// The value of a type value object of this type.
    fn typed<'j>(&self, kind: &str, json: &'j Value) -> Result<&'j Value> {
        if json.get("type").and_then(Value::as_str) == Some(kind) {
            return Ok(json.get("value").unwrap_or(&Value::Null));
        }
        Err(self.refuse(format_args!("{json} instead of a `{kind}`")))
    }

    /// The named object of a type value object.
    fn named(&self, kind: &str, names: &HashMap<&str, usize>, json: &Value) -> Result<usize> {
        let name = text(self, self.typed(kind, json)?)?;
        names.get(name).copied().ok_or_else(|| self.refuse(format_args!("the {kind} `{name}`")))
    }

    /// The named object, if there is a name.
    fn optional<T: Copy>(
        &self,
        kind: &str,
        names: &HashMap<&str, T>,
        name: &Option<String>,
    ) -> Result<Option<T>> {
        let Some(name) = name else { return Ok(None) };
        let found = names.get(name.as_str()).copied();
        found.map(Some).ok_or_else(|| self.refuse(format_args!("the {kind} `{name}`")))
    }

    fn constant(&self, json: &Value) -> Result<u32> {
        Ok(hexadecimal(self, text(self, self.typed("hexstr", json)?)?)?.small())
    }

    /// A list of fields that is copied, by its number.
    fn field_list(&self, json: &Value) -> Result<u32> {
        let id = self.constant(json)?;
        if self.field_lists.contains(&id) {
            Ok(id)
        } else {
            Err(self.refuse(format_args!("the field list {id}")))
        }
    }

    fn expression(&self, json: &Value) -> Result<Expression> {
        let value = json.get("value").unwrap_or(&Value::Null);
        match json.get("type").and_then(Value::as_str) {
            Some("field") => Ok(Expression::Field(self.field(value)?)),
            Some("hexstr") => Ok(Expression::Constant(hexadecimal(self, text(self, value)?)?)),
            Some("bool") => match value {
                Value::Bool(value) => Ok(Expression::Constant((*value).into())),
                _ => Err(self.refuse(format_args!("the truth value {value}"))),
            },
            Some("local" | "runtime_data") => match value.as_u64() {
                Some(index) if (index as usize) < self.parameters => {
                    Ok(Expression::Parameter(index as usize))
                }
                _ => Err(self.refuse(format_args!("the parameter {value}"))),
            },
            // The compiler wraps some expressions in another without an operator.
            Some("expression") if value.get("op").is_none() => self.expression(value),
            Some("expression") => self.operation(value),
            Some(kind) => Err(self.refuse(format_args!("the operand type `{kind}`"))),
            None => Err(self.refuse(format_args!("the operand {json}"))),
        }
    }

    fn operation(&self, json: &Value) -> Result<Expression> {
        let operand = |name: &str| self.expression(json.get(name).unwrap_or(&Value::Null));
        let unary = |operator: fn(Int) -> Int| Ok(Expression::Unary(operator, Box::new(operand("right")?)));
        let binary = |operator: fn(Int, Int) -> Int| {
            Ok(Expression::Binary(operator, Box::new([operand("left")?, operand("right")?])))
        };
        match json.get("op").and_then(Value::as_str).unwrap_or_default() {
            // Truth values are 0 and 1 here.
            "b2d" => operand("right"),
            "d2b" => unary(|value| (!value.is_zero()).into()),
            "not" => unary(|value| value.is_zero().into()),
            "~" => unary(Int::not),
            "+" => binary(Int::add),
            "-" => binary(Int::sub),
            "*" => binary(Int::mul),
            "<<" => binary(|value, by| value.shl(by.small())),
            ">>" => binary(|value, by| value.shr(by.small())),
            "&" | "and" => binary(Int::and),
            "|" | "or" => binary(Int::or),
            // A signed field, and the nearest value of an unsigned one, of this width.
            "two_comp_mod" => binary(|value, bits| value.stored(bits.small(), true)),
            "usat_cast" => binary(|value, bits| value.saturated(bits.small())),
            "==" => binary(|left, right| (left == right).into()),
            "!=" => binary(|left, right| (left != right).into()),
            "<" => binary(|left, right| (left < right).into()),
            "<=" => binary(|left, right| (left <= right).into()),
            ">" => binary(|left, right| (left > right).into()),
            ">=" => binary(|left, right| (left >= right).into()),
            "?" => Ok(Expression::Choice(Box::new([operand("cond")?, operand("left")?, operand("right")?]))),
            other => Err(self.refuse(format_args!("the operator `{other}`"))),
        }
    }

    fn primitive(&self, call: &format::Call) -> Result<Primitive> {
        let expression = |json| self.expression(json);
        let header = |json| self.named("header", &self.headers, json);
        let register = |json| self.named("register_array", &self.registers, json);
        Ok(match (call.op.as_str(), call.parameters.as_slice()) {
            ("assign", [to, value]) => Primitive::Assign(self.typed_field(to)?, expression(value)?),
            ("_jump", [to]) => Primitive::Jump(self.constant(to)? as usize),
            ("_jump_if_zero", [condition, to]) => {
                Primitive::JumpIfZero(expression(condition)?, self.constant(to)? as usize)
            }
            ("register_read", [to, array, index]) => {
                let array = register(array)?;
                Primitive::RegisterRead(self.typed_field(to)?, array, expression(index)?)
            }
            ("register_write", [array, index, value]) => {
                Primitive::RegisterWrite(register(array)?, expression(index)?, expression(value)?)
            }
            ("count", [counter, index]) => {
                Primitive::Count(self.named("counter_array", &self.counters, counter)?, expression(index)?)
            }
            ("modify_field_with_hash_based_offset", [to, base, calculation, size]) => {
                let calculation = self.named("calculation", &self.calculations, calculation)?;
                Primitive::Hash(self.typed_field(to)?, expression(base)?, calculation, expression(size)?)
            }
            ("modify_field_rng_uniform", [to, low, high]) => {
                Primitive::Random(self.typed_field(to)?, expression(low)?, expression(high)?)
            }
            ("mark_to_drop", [metadata]) => header(metadata).map(|_| Primitive::Drop)?,
            ("add_header", [json]) => Primitive::AddHeader(header(json)?),
            ("remove_header", [json]) => Primitive::RemoveHeader(header(json)?),
            ("truncate", [length]) => Primitive::Truncate(expression(length)?),
            ("recirculate", [list]) => Primitive::Recirculate(self.field_list(list)?),
            ("clone_egress_pkt_to_egress", [session, list]) => {
                Primitive::Clone(expression(session)?, self.field_list(list)?)
            }
            (other, parameters) => {
                let count = parameters.len();
                return Err(self.refuse(format_args!("the primitive `{other}` with {count} parameters")));
            }
        })
    }

    fn action(&self, action: &format::Action) -> Result<Action> {
        let code: Vec<Primitive> =
            action.primitives.iter().map(|call| self.primitive(call)).collect::<Result<_>>()?;
        // A backward jump might never end.
        for (at, primitive) in code.iter().enumerate() {
            if let Primitive::Jump(to) | Primitive::JumpIfZero(_, to) = primitive
                && *to <= at
            {
                return Err(self.refuse(format_args!("a jump from {at} back to {to}")));
            }
        }
        Ok(Action { parameters: self.parameters, code })
    }

    fn state(
        &self,
        state: &format::ParseState,
        states: &HashMap<&str, usize>,
        bits: &[Field],
    ) -> Result<State> {
        let mut operations = Vec::new();
        for call in &state.parser_ops {
            operations.push(match (call.op.as_str(), call.parameters.as_slice()) {
                ("extract", [header]) => Operation::Extract(self.named("regular", &self.headers, header)?),
                ("set", [to, value]) => Operation::Set(self.typed_field(to)?, self.expression(value)?),
                (other, _) => return Err(self.refuse(format_args!("the parser operation `{other}`"))),
            });
        }
        let key: Vec<usize> =
            state.transition_key.iter().map(|json| self.typed_field(json)).collect::<Result<_>>()?;
        let width = |field: &usize| bits.get(*field).map_or(0, |field| field.bits.next_multiple_of(8));
        if key.iter().map(width).sum::<u32>() > MAX_BITS {
            return Err(self.refuse(format_args!("a transition key of more than {MAX_BITS} bits")));
        }
        let mut transitions = Vec::new();
        let mut otherwise = None;
        for transition in &state.transitions {
            let to = self.optional("parser state", states, &transition.next_state)?;
            match (transition.kind.as_str(), &transition.value) {
                ("default", _) => otherwise = to,
                ("hexstr", Some(value)) => {
                    let mask = transition.mask.as_ref().map(|mask| hexadecimal(self, mask)).transpose()?;
                    let mask = mask.map_or(u128::MAX, |mask| mask.bits());
                    let value = hexadecimal(self, value)?.bits() & mask;
                    transitions.push(Transition { value, mask, to });
                }
                (other, _) => return Err(self.refuse(format_args!("the transition type `{other}`"))),
            }
        }
        Ok(State { operations, key, transitions, otherwise })
    }

    fn calculation(&self, calculation: &format::Calculation) -> Result<Calculation> {
        let algorithm = match calculation.algo.as_str() {
            "crc32" => Algorithm::Crc32,
            "csum16" => Algorithm::Csum16,
            other => return Err(self.refuse(format_args!("the algorithm `{other}`"))),
        };
        let input = calculation.input.iter().map(|json| self.typed_field(json)).collect::<Result<_>>()?;
        Ok(Calculation { algorithm, input })
    }
}

pub(super) fn load(json: &str) -> Result<Model> {
    let what = || "the compiled program".to_owned();
    let program: format::Program = serde_json::from_str(json)
        .map_err(|error| Error::NotInterpreted { location: what(), what: error.to_string() })?;
    let mut load = Load {
        location: what(),
        fields: HashMap::new(),
        headers: HashMap::new(),
        registers: names(&program.register_arrays, |array| &array.name),
        counters: names(&program.counter_arrays, |array| &array.name),
        calculations: names(&program.calculations, |calculation| &calculation.name),
        field_lists: program.field_lists.iter().map(|list| list.id).collect(),
        parameters: 0,
    };
    let [major, minor] = program.meta.version;
    if major != MAJOR_VERSION {
        return Err(load.refuse(format_args!("version {major}.{minor} of the format")));
    }
    for (section, items) in [
        ("header_union_types", &program.header_union_types),
        ("header_unions", &program.header_unions),
        ("header_union_stacks", &program.header_union_stacks),
        ("enums", &program.enums),
        ("parse_vsets", &program.parse_vsets),
        ("meter_arrays", &program.meter_arrays),
        ("learn_lists", &program.learn_lists),
        ("checksums", &program.checksums),
        ("extern_instances", &program.extern_instances),
        ("force_arith", &program.force_arith),
    ] {
        if !items.is_empty() {
            return Err(load.refuse(format_args!("`{section}`")));
        }
    }
    let mut model = Model::default();
    headers(&mut load, &program, &mut model)?;
    arrays(&mut load, &program, &mut model)?;

    let [parser] = program.parsers.as_slice() else { return Err(load.refuse("several parsers, or none")) };
    let states = names(&parser.parse_states, |state| &state.name);
    for state in &parser.parse_states {
        load.location = format!("parser state `{}`", state.name);
        model.states.push(load.state(state, &states, &model.fields)?);
    }
    model.start = states.get(parser.init_state.as_str()).copied();

    let [deparser] = program.deparsers.as_slice() else {
        return Err(load.refuse("several deparsers, or none"));
    };
    load.location = "the deparser".to_owned();
    if !deparser.primitives.is_empty() {
        return Err(load.refuse("primitives"));
    }
    for name in &deparser.order {
        let header = load.headers.get(name.as_str()).copied();
        model.deparser.push(header.ok_or_else(|| load.refuse(format_args!("the header `{name}`")))?);
    }
    for action in &program.actions {
        load.location = format!("action `{}`", action.name);
        load.parameters = action.runtime_data.len();
        model.actions.push(load.action(action)?);
    }
    load.parameters = 0;
    for pipeline in &program.pipelines {
        let start = pipeline_nodes(&mut load, &program, pipeline, &mut model)?;
        match pipeline.name.as_str() {
            "ingress" => model.ingress = start,
            "egress" => model.egress = start,
            other => return Err(load.refuse(format_args!("the pipeline `{other}`"))),
        }
    }
    Ok(model)
}

/// Flattens header instances into ranges of fields. Validity is an extra field of a header.
fn headers<'a>(load: &mut Load<'a>, program: &'a format::Program, model: &mut Model) -> Result<()> {
    for header in &program.headers {
        load.location = format!("header `{}`", header.name);
        let kind = program.header_types.iter().find(|kind| kind.name == header.header_type);
        let kind = kind.ok_or_else(|| load.refuse(format_args!("the type `{}`", header.header_type)))?;
        let first = model.fields.len();
        for (name, bits, is_signed) in &kind.fields {
            if !(1..=MAX_BITS).contains(bits) {
                return Err(load.refuse(format_args!("the field `{name}` of {bits} bits")));
            }
            load.fields.insert((&header.name, name), model.fields.len());
            model.fields.push(Field { bits: *bits, is_signed: *is_signed });
        }
        let fields = first..model.fields.len();
        let bits: u32 = kind.fields.iter().map(|(_, bits, _)| bits).sum();
        let valid = model.fields.len();
        load.fields.insert((&header.name, "$valid$"), valid);
        model.fields.push(Field { bits: 1, is_signed: false });
        load.headers.insert(&header.name, model.headers.len());
        let bytes = (bits / 8) as usize;
        model.headers.push(Header { fields, valid, bytes, is_metadata: header.metadata });
    }
    load.location = "header `standard_metadata`".to_owned();
    let standard = |name: &str| {
        let field = load.fields.get(&("standard_metadata", name)).copied();
        field.ok_or_else(|| load.refuse(format_args!("no field `{name}`")))
    };
    model.standard = Standard::new(standard)?;
    let too_short = program.errors.iter().find(|(name, _)| name == "PacketTooShort");
    model.too_short =
        too_short.map(|(_, code)| *code).ok_or_else(|| load.refuse("no error `PacketTooShort`"))?;
    Ok(())
}

fn arrays<'a>(load: &mut Load<'a>, program: &'a format::Program, model: &mut Model) -> Result<()> {
    for array in &program.register_arrays {
        load.location = format!("register `{}`", array.name);
        // Accessible to a controller.
        if !(1..=64).contains(&array.bitwidth) {
            return Err(load.refuse(format_args!("elements of {} bits", array.bitwidth)));
        }
        let &format::Array { ref name, size, bitwidth: bits, .. } = array;
        model.registers.push(Register { name: name.clone(), size, bits });
    }
    for array in &program.counter_arrays {
        load.location = format!("counter `{}`", array.name);
        if array.is_direct {
            return Err(load.refuse("counting by a table's entries"));
        }
        model.counters.push((array.name.clone(), array.size));
    }
    for calculation in &program.calculations {
        load.location = format!("calculation `{}`", calculation.name);
        model.calculations.push(load.calculation(calculation)?);
    }
    for list in &program.field_lists {
        load.location = format!("field list {}", list.id);
        let fields = list.elements.iter().map(|json| load.typed_field(json)).collect::<Result<_>>()?;
        model.field_lists.insert(list.id, fields);
    }
    Ok(())
}

/// Tables and conditions of a pipeline; returns where it starts.
fn pipeline_nodes<'a>(
    load: &mut Load<'a>,
    program: &'a format::Program,
    pipeline: &'a format::Pipeline,
    model: &mut Model,
) -> Result<Option<Node>> {
    load.location = format!("pipeline `{}`", pipeline.name);
    if !pipeline.action_profiles.is_empty() {
        return Err(load.refuse("action profiles"));
    }
    let tables = pipeline.tables.iter().zip(model.tables.len()..);
    let tables = tables.map(|(table, at)| (table.name.as_str(), Node::Table(at)));
    let conditionals = pipeline.conditionals.iter().zip(model.conditionals.len()..);
    let conditionals =
        conditionals.map(|(conditional, at)| (conditional.name.as_str(), Node::Conditional(at)));
    let nodes: HashMap<&str, Node> = tables.chain(conditionals).collect();
    let actions: HashMap<u32, usize> = program.actions.iter().map(|action| action.id).zip(0..).collect();
    for table in &pipeline.tables {
        load.location = format!("table `{}`", table.name);
        model.tables.push(load_table(load, table, &actions, &model.actions, &nodes)?);
    }
    for conditional in &pipeline.conditionals {
        load.location = format!("condition `{}`", conditional.name);
        let condition = load.expression(&conditional.expression)?;
        let node = |name: &Option<String>| load.optional("node", &nodes, name);
        let next = [node(&conditional.false_next)?, node(&conditional.true_next)?];
        model.conditionals.push(Conditional { condition, next });
    }
    load.location = format!("pipeline `{}`", pipeline.name);
    load.optional("node", &nodes, &pipeline.init_table)
}

fn load_table(
    load: &Load<'_>,
    table: &format::Table,
    ids: &HashMap<u32, usize>,
    all: &[Action],
    nodes: &HashMap<&str, Node>,
) -> Result<Table> {
    for (is_there, what) in [
        (table.kind != "simple", "another implementation than `simple`"),
        (table.with_counters, "counters of its entries"),
        (table.support_timeout, "entries that age"),
        (table.direct_meters.is_some(), "meters of its entries"),
        (table.key.iter().any(|key| key.mask.is_some()), "a mask over a key"),
    ] {
        if is_there {
            return Err(load.refuse(what));
        }
    }
    let node = |name: &Option<String>| load.optional("node", nodes, name);
    let action = |id: &u32| ids.get(id).copied().ok_or_else(|| load.refuse(format_args!("the action {id}")));
    let key = table.key.iter().map(|key| match key.match_type.as_str() {
        "exact" | "lpm" => load.field(&key.target),
        other => Err(load.refuse(format_args!("the match type `{other}`"))),
    });
    let actions: BTreeMap<String, usize> = table
        .actions
        .iter()
        .zip(&table.action_ids)
        .map(|(name, id)| Ok((name.clone(), action(id)?)))
        .collect::<Result<_>>()?;
    let next = if table.next_tables.contains_key("__HIT__") || table.next_tables.contains_key("__MISS__") {
        let of = |name: &str| table.next_tables.get(name).map_or(Ok(None), node);
        Next::ByHit([of("__MISS__")?, of("__HIT__")?])
    } else {
        let of = |(name, to): (&String, &Option<String>)| {
            let action = actions.get(name).ok_or_else(|| load.refuse(format_args!("the action `{name}`")))?;
            Ok((*action, node(to)?))
        };
        Next::ByAction(table.next_tables.iter().map(of).collect::<Result<_>>()?)
    };
    let bound = |id: &u32, data: &[String]| {
        let action = action(id)?;
        let parameters: Vec<Int> = data.iter().map(|data| hexadecimal(load, data)).collect::<Result<_>>()?;
        let wanted = all.get(action).map_or(0, |action| action.parameters);
        if wanted != parameters.len() {
            return Err(load.refuse(format_args!("{} parameters for the action {id}", parameters.len())));
        }
        Ok(Bound { action, parameters })
    };
    let name_of = |action: usize| {
        let named = actions.iter().find(|(_, there)| **there == action).map(|(name, _)| name.as_str());
        named.ok_or_else(|| load.refuse("an entry with another table's action"))
    };
    let mut entries = Vec::new();
    for constant in &table.entries {
        let bound = bound(&constant.action_entry.action_id, &constant.action_entry.action_data)?;
        let key = constant.match_key.iter().map(|key| match key.match_type.as_str() {
            "exact" => Ok(Match::Exact(entry::Value::Number(hexadecimal(load, &key.key)?.bits()))),
            other => Err(load.refuse(format_args!("a constant entry of match type `{other}`"))),
        });
        let parameters = bound.parameters.iter().map(|value| entry::Value::Number(value.bits())).collect();
        let key = key.collect::<Result<_>>()?;
        entries.push((Entry::new(&table.name, key, name_of(bound.action)?, parameters), bound));
    }
    let default = bound(&table.default_entry.action_id, &table.default_entry.action_data)?;
    name_of(default.action)?;
    Ok(Table {
        name: table.name.clone(),
        key: key.collect::<Result<_>>()?,
        size: table.max_size,
        actions,
        next,
        default,
        is_default_constant: table.default_entry.action_const,
        entries,
    })
}

fn names<T>(items: &[T], name: impl Fn(&T) -> &String) -> HashMap<&str, usize> {
    items.iter().map(|item| name(item).as_str()).zip(0..).collect()
}

pub(super) fn text<'j>(load: &Load<'_>, json: &'j Value) -> Result<&'j str> {
    json.as_str().ok_or_else(|| load.refuse(format_args!("{json} where a string is expected")))
}

/// A number in hexadecimal, as `0x1f` or `-0x1`.
pub(super) fn hexadecimal(load: &Load<'_>, text: &str) -> Result<Int> {
    let (sign, digits) = text.strip_prefix('-').map_or((false, text), |digits| (true, digits));
    let number = u128::from_str_radix(digits.strip_prefix("0x").unwrap_or(digits), 16);
    let number = Int::from(number.map_err(|_| load.refuse(format_args!("the number `{text}`")))?);
    Ok(if sign { Int::ZERO.sub(number) } else { number })
}
