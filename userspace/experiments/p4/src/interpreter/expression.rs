//! Expressions and their values.

use super::integer::Int;

/// An expression over the fields of a packet and the parameters of an action.
#[derive(Debug)]
pub(super) enum Expression {
    Constant(Int),
    Field(usize),
    Parameter(usize),
    Unary(fn(Int) -> Int, Box<Self>),
    Binary(fn(Int, Int) -> Int, Box<[Self; 2]>),
    /// A condition, and the value if it is true and if it is not.
    Choice(Box<[Self; 3]>),
}

impl Expression {
    /// The value. Indices of fields and parameters were checked at loading.
    pub(super) fn value(&self, fields: &[Int], parameters: &[Int]) -> Int {
        let value = |operand: &Self| operand.value(fields, parameters);
        match self {
            Self::Constant(constant) => *constant,
            Self::Field(field) => fields.get(*field).copied().unwrap_or_default(),
            Self::Parameter(index) => parameters.get(*index).copied().unwrap_or_default(),
            Self::Unary(operator, operand) => operator(value(operand)),
            Self::Binary(operator, operands) => {
                let [left, right] = &**operands;
                operator(value(left), value(right))
            }
            Self::Choice(operands) => {
                let [condition, yes, no] = &**operands;
                if value(condition).is_zero() { value(no) } else { value(yes) }
            }
        }
    }
}
