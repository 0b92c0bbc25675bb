//! Resolves each name to a variable, by the rules of Jinja2's compiler (its `idtracking.py`).
//!
//! A scope knows all names of its statements before it runs: a name that is assigned anywhere in a scope is a variable
//! of that scope, which starts as a copy of an outer one. A name that is only read refers to the nearest outer
//! variable, or otherwise to the template's variables. Loops, `with`, macros and blocks have scopes; `if` has none.
//! Macros, call blocks, tests of loops and recursive loops are also functions: they have their own variables, and see
//! those of the enclosing functions.

mod names;

pub(crate) use names::bodies;

use crate::ast::{
    ArgumentExprs, Body, Call, Expr, Filter, For, Load, Macro, Name, Scope, Slot, Statement, StatementKind, Target,
};
use crate::error::{Error, Result};
use crate::filters::filter_function;
use crate::predicates::test_function;
use names::{assigns, for_each_name, for_each_name_of_call, for_each_target, reads};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Sets the slots of all names of a template. Returns the template's scope and its number of variables.
/// Errors: a name can't be assigned; a filter or test is unknown and Jinja2 checks it at compile time.
pub(crate) fn resolve(body: &mut Body) -> Result<(Scope, usize)> {
    let mut resolver = Resolver { scopes: Vec::new(), functions: vec![HashMap::new()] };
    resolver.enter();
    resolver.analyze(body);
    resolver.body(body)?;
    let scope = resolver.leave();
    Ok((scope, resolver.functions[0].len()))
}

/// A variable: the level of its function, counted from the template, and its index there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Variable {
    function: usize,
    index: usize,
}

#[derive(Default)]
struct Symbols {
    function: usize,
    variables: HashMap<Arc<str>, Variable>,
    /// Initial values of variables that are not parameters.
    loads: Vec<(Arc<str>, Load)>,
    /// The index of a name's load in `loads`.
    load_of: HashMap<Arc<str>, usize>,
    stored: HashSet<Arc<str>>,
    /// The names of `stored`, in order.
    stores: Vec<Arc<str>>,
}

struct Resolver {
    scopes: Vec<Symbols>,
    /// The variables of each open function, by the depth of their scope and their name.
    functions: Vec<HashMap<(usize, Arc<str>), usize>>,
}

impl Resolver {
    fn enter(&mut self) {
        self.scopes.push(Symbols { function: self.functions.len() - 1, ..Symbols::default() });
    }

    fn leave(&mut self) -> Scope {
        let symbols = self.scopes.pop().expect("a scope was entered");
        let indices = |(name, load): (Arc<str>, Load)| (symbols.variables[&name].index, load);
        Scope { loads: symbols.loads.into_iter().map(indices).collect() }
    }

    fn top(&mut self) -> &mut Symbols {
        self.scopes.last_mut().expect("a scope was entered")
    }

    fn find(&self, name: &str) -> Option<Variable> {
        self.scopes.iter().rev().find_map(|symbols| symbols.variables.get(name)).copied()
    }

    fn find_outside(&self, name: &str) -> Option<Variable> {
        self.scopes.iter().rev().skip(1).find_map(|symbols| symbols.variables.get(name)).copied()
    }

    /// A variable's slot, relative to the innermost function.
    fn slot(&self, variable: Variable) -> Slot {
        Slot { up: self.functions.len() - 1 - variable.function, index: variable.index }
    }

    fn define(&mut self, name: &Arc<str>, load: Option<Load>) -> usize {
        let depth = self.scopes.len();
        let function = self.top().function;
        let indices = &mut self.functions[function];
        let next = indices.len();
        let index = *indices.entry((depth, Arc::clone(name))).or_insert(next);
        let top = self.top();
        top.variables.insert(Arc::clone(name), Variable { function, index });
        if let Some(load) = load {
            top.load_of.insert(Arc::clone(name), top.loads.len());
            top.loads.push((Arc::clone(name), load));
        } else if let Some(at) = top.load_of.remove(name) {
            // It was read before it became a parameter.
            top.loads.remove(at);
            top.load_of.values_mut().filter(|other| **other > at).for_each(|other| *other -= 1);
        }
        index
    }

    // First pass: collects the names that a scope's statements read and assign.

    fn load(&mut self, name: &Arc<str>) {
        if self.find(name).is_none() {
            self.define(name, Some(Load::Global(Arc::clone(name))));
        }
    }

    fn store(&mut self, name: &Arc<str>) {
        let top = self.top();
        if top.stored.insert(Arc::clone(name)) {
            top.stores.push(Arc::clone(name));
        }
        if !top.variables.contains_key(name) {
            let load = self.find_outside(name).map_or(Load::Missing, |outer| Load::Copy(self.slot(outer)));
            self.define(name, Some(load));
        }
    }

    fn parameter(&mut self, name: &Arc<str>) -> usize {
        let top = self.top();
        if top.stored.insert(Arc::clone(name)) {
            top.stores.push(Arc::clone(name));
        }
        self.define(name, None)
    }

    fn store_target(&mut self, target: &Target) {
        match target {
            Target::Name(name) => self.store(&name.name),
            Target::Tuple(targets) => targets.iter().for_each(|target| self.store_target(target)),
            Target::Attribute(name, _) => self.load(&name.name),
        }
    }

    fn parameter_target(&mut self, target: &Target) {
        match target {
            Target::Name(name) | Target::Attribute(name, _) => {
                self.parameter(&name.name);
            }
            Target::Tuple(targets) => targets.iter().for_each(|target| self.parameter_target(target)),
        }
    }

    fn load_expr(&mut self, expr: &Expr) {
        for_each_name(expr, &mut |name| self.load(name));
    }

    fn analyze(&mut self, body: &[Statement]) {
        for statement in body {
            match &statement.kind {
                StatementKind::Text(_) | StatementKind::Generation(_) => {}
                StatementKind::Break | StatementKind::Continue => {}
                StatementKind::Print(expr) => self.load_expr(expr),
                StatementKind::If(branches) => self.analyze_branches(branches),
                StatementKind::For(node) => self.load_expr(&node.items),
                StatementKind::Set(target, expr) => {
                    self.load_expr(expr);
                    self.store_target(target);
                }
                StatementKind::SetBlock(node) => self.store_target(&node.target),
                StatementKind::With(node) => node.targets.iter().for_each(|(_, value)| self.load_expr(value)),
                StatementKind::Macro(name, _) => self.store(&name.name),
                StatementKind::CallBlock(node) => for_each_name_of_call(&node.0, &mut |name| self.load(name)),
                StatementKind::FilterBlock(node) => self.load_expr(&node.filter),
            }
        }
    }

    /// A variable assigned in a branch may stay unassigned, so it starts with the outer value.
    fn analyze_branches(&mut self, branches: &[(Expr, Body)]) {
        let known = self.top().stores.len();
        for (test, body) in branches {
            self.load_expr(test);
            self.analyze(body);
        }
        for name in self.top().stores.split_off(known) {
            let outer = self.find_outside(&name).map(|outer| Load::Copy(self.slot(outer)));
            let top = self.top();
            if let Some(&at) = top.load_of.get(&name) {
                top.loads[at].1 = outer.unwrap_or_else(|| Load::Global(Arc::clone(&name)));
            }
            top.stores.push(name);
        }
    }

    // Second pass: resolves the collected names.

    fn name(&self, name: &mut Name) -> Result<()> {
        let unknown = || Error::raised(format!("`{}` is not known to the block of this filter", name.name));
        name.slot = self.slot(self.find(&name.name).ok_or_else(unknown)?);
        Ok(())
    }

    fn target(&self, target: &mut Target) -> Result<()> {
        match target {
            Target::Name(name) | Target::Attribute(name, _) => self.name(name),
            Target::Tuple(targets) => targets.iter_mut().try_for_each(|target| self.target(target)),
        }
    }

    /// `is_soft`: whether an unknown filter or test is an error only when it runs, as inside `if`.
    fn expr(&self, expr: &mut Expr, is_soft: bool) -> Result<()> {
        match expr {
            Expr::Const(_) => Ok(()),
            Expr::Name(name) => self.name(name),
            Expr::List(items) | Expr::Tuple(items) | Expr::Concat(items) => self.exprs(items, is_soft),
            Expr::Dict(pairs) => pairs.iter_mut().try_for_each(|(key, value)| {
                self.expr(key, is_soft)?;
                self.expr(value, is_soft)
            }),
            Expr::Negative(of) | Expr::Positive(of) | Expr::Not(of) | Expr::Attribute(of, _) => self.expr(of, is_soft),
            Expr::Binary(_, parts) | Expr::And(parts) | Expr::Or(parts) | Expr::Item(parts) => {
                self.expr(&mut parts.0, is_soft)?;
                self.expr(&mut parts.1, is_soft)
            }
            Expr::Compare(first, others) => {
                self.expr(first, is_soft)?;
                others.iter_mut().try_for_each(|(_, other)| self.expr(other, is_soft))
            }
            Expr::Conditional(node) => {
                self.expr(&mut node.test, true)?;
                self.expr(&mut node.then, true)?;
                node.otherwise.as_mut().map_or(Ok(()), |otherwise| self.expr(otherwise, true))
            }
            Expr::Slice(of, parts) => {
                self.expr(of, is_soft)?;
                parts.iter_mut().flatten().try_for_each(|part| self.expr(part, is_soft))
            }
            Expr::Filter(node) => self.filter(node, is_soft),
            Expr::Test(node) => {
                if test_function(&node.name).is_none() && !is_soft {
                    return Err(Error::raised(format!("unknown test `{}`", node.name)).at(node.line));
                }
                self.expr(&mut node.of, is_soft)?;
                self.arguments(&mut node.arguments, is_soft)
            }
            Expr::Call(node) => self.call(node, is_soft),
        }
    }

    fn exprs(&self, exprs: &mut [Expr], is_soft: bool) -> Result<()> {
        exprs.iter_mut().try_for_each(|expr| self.expr(expr, is_soft))
    }

    fn filter(&self, node: &mut Filter, is_soft: bool) -> Result<()> {
        if filter_function(&node.name).is_none() && !is_soft {
            return Err(Error::raised(format!("unknown filter `{}`", node.name)).at(node.line));
        }
        node.of.as_mut().map_or(Ok(()), |of| self.expr(of, is_soft))?;
        self.arguments(&mut node.arguments, is_soft)
    }

    fn call(&self, node: &mut Call, is_soft: bool) -> Result<()> {
        self.expr(&mut node.of, is_soft)?;
        self.arguments(&mut node.arguments, is_soft)
    }

    fn arguments(&self, arguments: &mut ArgumentExprs, is_soft: bool) -> Result<()> {
        self.exprs(&mut arguments.positional, is_soft)?;
        arguments.named.iter_mut().try_for_each(|(_, value)| self.expr(value, is_soft))?;
        let others = [&mut arguments.all_positional, &mut arguments.all_named];
        others.into_iter().flatten().try_for_each(|value| self.expr(value, is_soft))
    }

    fn body(&mut self, body: &mut Body) -> Result<()> {
        self.statements(body, false)
    }

    fn statements(&mut self, body: &mut Body, is_soft: bool) -> Result<()> {
        body.iter_mut().try_for_each(|statement| {
            self.statement(&mut statement.kind, is_soft).map_err(|error| error.at(statement.line))
        })
    }

    fn statement(&mut self, kind: &mut StatementKind, is_soft: bool) -> Result<()> {
        match kind {
            StatementKind::Text(_) | StatementKind::Break | StatementKind::Continue => Ok(()),
            StatementKind::Print(expr) => self.expr(expr, is_soft),
            StatementKind::If(branches) => branches.iter_mut().try_for_each(|(test, body)| {
                self.expr(test, true)?;
                self.statements(body, true)
            }),
            StatementKind::For(node) => self.for_loop(node, is_soft),
            StatementKind::Set(target, expr) => {
                self.target(target)?;
                self.expr(expr, is_soft)
            }
            StatementKind::SetBlock(node) => {
                self.enter();
                self.analyze(&node.body);
                self.body(&mut node.body)?;
                if let Some(filter) = &mut node.filter {
                    self.expr(filter, false)?;
                }
                node.scope = self.leave();
                self.target(&mut node.target)
            }
            StatementKind::With(node) => {
                node.targets.iter_mut().try_for_each(|(_, value)| self.expr(value, is_soft))?;
                self.enter();
                node.targets.iter().for_each(|(target, _)| self.parameter_target(target));
                self.analyze(&node.body);
                node.targets.iter_mut().try_for_each(|(target, _)| self.target(target))?;
                self.body(&mut node.body)?;
                node.scope = self.leave();
                Ok(())
            }
            StatementKind::Macro(name, node) => {
                self.function(node)?;
                self.name(name)
            }
            StatementKind::CallBlock(node) => {
                self.function(&mut node.1)?;
                self.call(&mut node.0, is_soft)
            }
            StatementKind::Generation(node) => self.function(node),
            StatementKind::FilterBlock(node) => {
                self.enter();
                self.analyze(&node.body);
                self.load_expr(&node.filter);
                self.body(&mut node.body)?;
                self.expr(&mut node.filter, false)?;
                node.scope = self.leave();
                Ok(())
            }
        }
    }

    fn for_loop(&mut self, node: &mut For, is_soft: bool) -> Result<()> {
        self.expr(&mut node.items, is_soft)?;
        let mut assigns_loop = false;
        for_each_target(&node.target, &mut |name| assigns_loop |= name == "loop");
        if assigns_loop || node.body.iter().chain(&node.otherwise).any(|statement| assigns(statement, "loop")) {
            return Err(Error::raised("can't assign to `loop` in a loop"));
        }
        if let Some(test) = &mut node.test {
            self.functions.push(HashMap::new());
            self.enter();
            self.parameter_target(&test.target);
            self.load_expr(&test.test);
            self.target(&mut test.target)?;
            self.expr(&mut test.test, false)?;
            test.scope = self.leave();
            test.slots = self.functions.pop().expect("a function was entered").len();
        }
        if node.recursive.is_some() {
            self.functions.push(HashMap::new());
        }
        self.enter();
        if node.recursive.is_some() || reads(&node.body, "loop") {
            node.loop_slot = Some(self.parameter(&"loop".into()));
        }
        self.parameter_target(&node.target);
        self.analyze(&node.body);
        self.target(&mut node.target)?;
        self.body(&mut node.body)?;
        node.scope = self.leave();
        self.enter();
        self.analyze(&node.otherwise);
        self.body(&mut node.otherwise)?;
        node.otherwise_scope = self.leave();
        if node.recursive.is_some() {
            node.recursive = self.functions.pop().map(|variables| variables.len());
        }
        Ok(())
    }

    /// A macro, or a block that is compiled like one.
    fn function(&mut self, node: &mut Macro) -> Result<()> {
        self.functions.push(HashMap::new());
        self.enter();
        node.parameters.iter().for_each(|parameter| _ = self.parameter(&parameter.name.name));
        let has = |node: &Macro, name: &str| node.parameters.iter().any(|parameter| &*parameter.name.name == name);
        if reads(&node.body, "caller") {
            if !has(node, "caller") {
                node.caller = Some(self.parameter(&"caller".into()));
            } else if node.parameters.iter().any(|p| &*p.name.name == "caller" && p.default.is_none()) {
                return Err(Error::raised("the parameter `caller` of a macro needs a default"));
            }
        }
        if reads(&node.body, "kwargs") && !has(node, "kwargs") {
            node.kwargs = Some(self.parameter(&"kwargs".into()));
        }
        if reads(&node.body, "varargs") && !has(node, "varargs") {
            node.varargs = Some(self.parameter(&"varargs".into()));
        }
        for parameter in &node.parameters {
            parameter.default.iter().for_each(|default| self.load_expr(default));
        }
        self.analyze(&node.body);
        for parameter in &mut node.parameters {
            self.name(&mut parameter.name)?;
            if let Some(default) = &mut parameter.default {
                self.expr(default, false)?;
            }
        }
        self.body(&mut node.body)?;
        node.scope = self.leave();
        node.slots = self.functions.pop().expect("a function was entered").len();
        Ok(())
    }
}
