//! A parsed template.

use crate::Value;
use std::sync::Arc;

/// The location of a variable: the number of function levels outward, and its index in that function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Slot {
    pub(crate) up: usize,
    pub(crate) index: usize,
}

#[derive(Debug)]
pub(crate) struct Name {
    pub(crate) name: Arc<str>,
    /// Set by `scopes.rs`.
    pub(crate) slot: Slot,
}

#[derive(Debug)]
pub(crate) enum Expr {
    Const(Value),
    Name(Name),
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    Negative(Box<Expr>),
    Positive(Box<Expr>),
    Not(Box<Expr>),
    Binary(BinaryOperator, Box<(Expr, Expr)>),
    And(Box<(Expr, Expr)>),
    Or(Box<(Expr, Expr)>),
    Compare(Box<Expr>, Vec<(CompareOperator, Expr)>),
    Concat(Vec<Expr>),
    /// `then if test else otherwise`.
    Conditional(Box<Conditional>),
    Attribute(Box<Expr>, Arc<str>),
    Item(Box<(Expr, Expr)>),
    /// Start, stop and step.
    Slice(Box<Expr>, Box<[Option<Expr>; 3]>),
    Filter(Box<Filter>),
    Test(Box<Test>),
    Call(Box<Call>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BinaryOperator {
    Add,
    Subtract,
    Multiply,
    Divide,
    FloorDivide,
    Modulo,
    Power,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CompareOperator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    NotIn,
}

#[derive(Debug)]
pub(crate) struct Conditional {
    pub(crate) test: Expr,
    pub(crate) then: Expr,
    pub(crate) otherwise: Option<Expr>,
}

#[derive(Debug)]
pub(crate) struct Filter {
    /// `None` for the text of a block.
    pub(crate) of: Option<Expr>,
    pub(crate) name: Arc<str>,
    pub(crate) arguments: ArgumentExprs,
    pub(crate) line: usize,
}

#[derive(Debug)]
pub(crate) struct Test {
    pub(crate) of: Expr,
    pub(crate) name: Arc<str>,
    pub(crate) arguments: ArgumentExprs,
    pub(crate) line: usize,
}

#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) of: Expr,
    pub(crate) arguments: ArgumentExprs,
    pub(crate) line: usize,
}

#[derive(Debug, Default)]
pub(crate) struct ArgumentExprs {
    pub(crate) positional: Vec<Expr>,
    pub(crate) named: Vec<(Arc<str>, Expr)>,
    /// After `*`.
    pub(crate) all_positional: Option<Expr>,
    /// After `**`.
    pub(crate) all_named: Option<Expr>,
}

/// The target of an assignment.
#[derive(Debug)]
pub(crate) enum Target {
    Name(Name),
    Tuple(Vec<Target>),
    /// An attribute of a namespace.
    Attribute(Name, Arc<str>),
}

#[derive(Debug)]
pub(crate) struct Statement {
    pub(crate) line: usize,
    pub(crate) kind: StatementKind,
}

pub(crate) type Body = Vec<Statement>;

#[derive(Debug)]
pub(crate) enum StatementKind {
    Text(String),
    Print(Expr),
    /// Tests with their bodies; `else` is a last test that is always true.
    If(Vec<(Expr, Body)>),
    For(Box<For>),
    Set(Target, Expr),
    SetBlock(Box<SetBlock>),
    With(Box<With>),
    Macro(Name, Box<Macro>),
    CallBlock(Box<(Call, Macro)>),
    FilterBlock(Box<FilterBlock>),
    /// `{% generation %}`, which Jinja compiles as a macro that is called at once.
    Generation(Box<Macro>),
    Break,
    Continue,
}

/// The initial value of a variable when a scope is entered.
#[derive(Debug, Clone)]
pub(crate) enum Load {
    /// From the template's variables or the global functions.
    Global(Arc<str>),
    /// From a variable of an outer scope.
    Copy(Slot),
    Missing,
}

/// The variables of a scope within a function. Set by `scopes.rs`.
#[derive(Debug, Default)]
pub(crate) struct Scope {
    pub(crate) loads: Vec<(usize, Load)>,
}

#[derive(Debug)]
pub(crate) struct For {
    pub(crate) target: Target,
    pub(crate) items: Expr,
    pub(crate) test: Option<LoopTest>,
    pub(crate) body: Body,
    pub(crate) otherwise: Body,
    pub(crate) scope: Scope,
    pub(crate) otherwise_scope: Scope,
    /// The slot of the variable `loop`, if the body uses it.
    pub(crate) loop_slot: Option<usize>,
    /// Number of variables of its function, if it is recursive.
    pub(crate) recursive: Option<usize>,
}

/// The `if` of a loop, which Jinja compiles as a function with its own variables.
#[derive(Debug)]
pub(crate) struct LoopTest {
    pub(crate) test: Expr,
    /// The loop's target, with the slots of the test's function.
    pub(crate) target: Target,
    pub(crate) scope: Scope,
    pub(crate) slots: usize,
}

#[derive(Debug)]
pub(crate) struct SetBlock {
    pub(crate) target: Target,
    pub(crate) filter: Option<Expr>,
    pub(crate) body: Body,
    pub(crate) scope: Scope,
}

#[derive(Debug)]
pub(crate) struct With {
    pub(crate) targets: Vec<(Target, Expr)>,
    pub(crate) body: Body,
    pub(crate) scope: Scope,
}

#[derive(Debug)]
pub(crate) struct FilterBlock {
    pub(crate) filter: Expr,
    pub(crate) body: Body,
    pub(crate) scope: Scope,
}

/// A macro, or the body of a call block or generation block.
#[derive(Debug, Default)]
pub(crate) struct Macro {
    /// `None` for a block.
    pub(crate) name: Option<Arc<str>>,
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) body: Body,
    pub(crate) scope: Scope,
    pub(crate) slots: usize,
    /// The slots of `caller`, `kwargs` and `varargs`, if the body uses them.
    pub(crate) caller: Option<usize>,
    pub(crate) kwargs: Option<usize>,
    pub(crate) varargs: Option<usize>,
}

#[derive(Debug)]
pub(crate) struct Parameter {
    pub(crate) name: Name,
    pub(crate) default: Option<Expr>,
}
