//! Expressions and their values.

use std::cmp::Ordering;

use super::integer::Int;

/// An expression over the fields of a packet and the parameters of an action.
#[derive(Debug)]
pub(super) enum Expression {
    Constant(Int),
    Field(usize),
    Parameter(usize),
    Unary(Unary, Box<Self>),
    Binary(Binary, Box<[Self; 2]>),
    /// A condition, and the value if it is true and if it is not.
    Choice(Box<[Self; 3]>),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Unary {
    /// From a number to a truth value: 1 unless it is 0.
    Truth,
    /// The other truth value.
    Not,
    Invert,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Binary {
    Add,
    Sub,
    Mul,
    ShiftLeft,
    ShiftRight,
    And,
    Or,
    /// A signed field of this width in bits.
    Signed,
    /// The nearest value of an unsigned field of this width in bits.
    Saturated,
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Expression {
    /// The largest parameter index in the expression.
    pub(super) fn last_parameter(&self) -> Option<usize> {
        match self {
            Self::Constant(_) | Self::Field(_) => None,
            Self::Parameter(index) => Some(*index),
            Self::Unary(_, operand) => operand.last_parameter(),
            Self::Binary(_, operands) => operands.iter().filter_map(Self::last_parameter).max(),
            Self::Choice(operands) => operands.iter().filter_map(Self::last_parameter).max(),
        }
    }

    /// The value. Indices of fields and parameters were checked at loading.
    pub(super) fn value(&self, fields: &[Int], parameters: &[Int]) -> Int {
        let value = |operand: &Self| operand.value(fields, parameters);
        match self {
            Self::Constant(constant) => *constant,
            Self::Field(field) => fields.get(*field).copied().unwrap_or_default(),
            Self::Parameter(index) => parameters.get(*index).copied().unwrap_or_default(),
            Self::Unary(Unary::Truth, operand) => (!value(operand).is_zero()).into(),
            Self::Unary(Unary::Not, operand) => value(operand).is_zero().into(),
            Self::Unary(Unary::Invert, operand) => value(operand).not(),
            Self::Binary(operator, operands) => {
                let [left, right] = &**operands;
                operator.apply(value(left), value(right))
            }
            Self::Choice(operands) => {
                let [condition, yes, no] = &**operands;
                if value(condition).is_zero() { value(no) } else { value(yes) }
            }
        }
    }
}

impl Binary {
    fn apply(self, left: Int, right: Int) -> Int {
        match self {
            Self::Add => left.add(right),
            Self::Sub => left.sub(right),
            Self::Mul => left.mul(right),
            Self::ShiftLeft => left.shl(right.small()),
            Self::ShiftRight => left.shr(right.small()),
            Self::And => left.and(right),
            Self::Or => left.or(right),
            Self::Signed => left.stored(right.small(), true),
            Self::Saturated => left.saturated(right.small()),
            Self::Equal => left.compared(right, Ordering::is_eq),
            Self::NotEqual => left.compared(right, Ordering::is_ne),
            Self::Less => left.compared(right, Ordering::is_lt),
            Self::LessOrEqual => left.compared(right, Ordering::is_le),
            Self::Greater => left.compared(right, Ordering::is_gt),
            Self::GreaterOrEqual => left.compared(right, Ordering::is_ge),
        }
    }
}
