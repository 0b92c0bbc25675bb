//! The names that statements and expressions use.

use crate::ast::{ArgumentExprs, Body, Call, Expr, Macro, Statement, StatementKind, Target};
use std::sync::Arc;

pub(super) fn for_each_name(expr: &Expr, see: &mut impl FnMut(&Arc<str>)) {
    match expr {
        Expr::Const(_) => {}
        Expr::Name(name) => see(&name.name),
        Expr::List(items) | Expr::Tuple(items) | Expr::Concat(items) => {
            items.iter().for_each(|item| for_each_name(item, see));
        }
        Expr::Dict(pairs) => pairs.iter().for_each(|(key, value)| {
            for_each_name(key, see);
            for_each_name(value, see);
        }),
        Expr::Negative(of) | Expr::Positive(of) | Expr::Not(of) | Expr::Attribute(of, _) => for_each_name(of, see),
        Expr::Binary(_, parts) | Expr::And(parts) | Expr::Or(parts) | Expr::Item(parts) => {
            for_each_name(&parts.0, see);
            for_each_name(&parts.1, see);
        }
        Expr::Compare(first, others) => {
            for_each_name(first, see);
            others.iter().for_each(|(_, other)| for_each_name(other, see));
        }
        Expr::Conditional(node) => {
            for_each_name(&node.test, see);
            for_each_name(&node.then, see);
            node.otherwise.iter().for_each(|otherwise| for_each_name(otherwise, see));
        }
        Expr::Slice(of, parts) => {
            for_each_name(of, see);
            parts.iter().flatten().for_each(|part| for_each_name(part, see));
        }
        Expr::Filter(node) => {
            node.of.iter().for_each(|of| for_each_name(of, see));
            for_each_name_of_arguments(&node.arguments, see);
        }
        Expr::Test(node) => {
            for_each_name(&node.of, see);
            for_each_name_of_arguments(&node.arguments, see);
        }
        Expr::Call(node) => for_each_name_of_call(node, see),
    }
}

pub(super) fn for_each_name_of_call(node: &Call, see: &mut impl FnMut(&Arc<str>)) {
    for_each_name(&node.of, see);
    for_each_name_of_arguments(&node.arguments, see);
}

pub(super) fn for_each_name_of_arguments(arguments: &ArgumentExprs, see: &mut impl FnMut(&Arc<str>)) {
    arguments.positional.iter().for_each(|value| for_each_name(value, see));
    arguments.named.iter().for_each(|(_, value)| for_each_name(value, see));
    [&arguments.all_positional, &arguments.all_named].into_iter().flatten().for_each(|value| for_each_name(value, see));
}

pub(super) fn for_each_target(target: &Target, see: &mut impl FnMut(&str)) {
    match target {
        Target::Name(name) => see(&name.name),
        Target::Tuple(targets) => targets.iter().for_each(|target| for_each_target(target, see)),
        Target::Attribute(..) => {}
    }
}

/// The bodies of a statement.
pub(crate) fn bodies(statement: &Statement) -> Vec<&Body> {
    match &statement.kind {
        StatementKind::If(branches) => branches.iter().map(|(_, body)| body).collect(),
        StatementKind::For(node) => vec![&node.body, &node.otherwise],
        StatementKind::SetBlock(node) => vec![&node.body],
        StatementKind::With(node) => vec![&node.body],
        StatementKind::Macro(_, node) | StatementKind::Generation(node) => vec![&node.body],
        StatementKind::CallBlock(node) => vec![&node.1.body],
        StatementKind::FilterBlock(node) => vec![&node.body],
        _ => Vec::new(),
    }
}

/// Whether a statement, or a nested one, assigns to a name.
pub(super) fn assigns(statement: &Statement, wanted: &str) -> bool {
    let mut found = false;
    let mut see = |name: &str| found |= name == wanted;
    match &statement.kind {
        StatementKind::Set(target, _) => for_each_target(target, &mut see),
        StatementKind::SetBlock(node) => for_each_target(&node.target, &mut see),
        StatementKind::For(node) => for_each_target(&node.target, &mut see),
        _ => {}
    }
    found || bodies(statement).into_iter().flatten().any(|statement| assigns(statement, wanted))
}

/// Whether statements, including nested ones, read a name before they assign to it.
pub(super) fn reads(body: &[Statement], wanted: &str) -> bool {
    first_use(body, wanted) == Some(true)
}

/// Whether the first use of a name reads it; `None` if it is not used.
pub(super) fn first_use(body: &[Statement], wanted: &str) -> Option<bool> {
    let of_expr = |expr: &Expr| {
        let mut is_read = false;
        for_each_name(expr, &mut |name| is_read |= &**name == wanted);
        is_read.then_some(true)
    };
    let of_target = |target: &Target| {
        let mut is_assigned = false;
        for_each_target(target, &mut |name| is_assigned |= name == wanted);
        is_assigned.then_some(false)
    };
    let of_call = |call: &Call| {
        let mut is_read = false;
        for_each_name_of_call(call, &mut |name| is_read |= &**name == wanted);
        is_read.then_some(true)
    };
    // In the order in which Jinja2 visits the parts of its nodes.
    body.iter().find_map(|statement| match &statement.kind {
        StatementKind::Text(_) | StatementKind::Break | StatementKind::Continue => None,
        StatementKind::Print(expr) => of_expr(expr),
        StatementKind::If(branches) => {
            branches.iter().find_map(|(test, body)| of_expr(test).or_else(|| first_use(body, wanted)))
        }
        StatementKind::For(node) => of_target(&node.target)
            .or_else(|| of_expr(&node.items))
            .or_else(|| first_use(&node.body, wanted))
            .or_else(|| first_use(&node.otherwise, wanted))
            .or_else(|| node.test.as_ref().and_then(|test| of_expr(&test.test))),
        StatementKind::Set(target, expr) => of_target(target).or_else(|| of_expr(expr)),
        StatementKind::SetBlock(node) => of_target(&node.target)
            .or_else(|| node.filter.as_ref().and_then(of_expr))
            .or_else(|| first_use(&node.body, wanted)),
        StatementKind::With(node) => node
            .targets
            .iter()
            .find_map(|(target, _)| of_target(target))
            .or_else(|| node.targets.iter().find_map(|(_, value)| of_expr(value)))
            .or_else(|| first_use(&node.body, wanted)),
        StatementKind::Macro(_, node) | StatementKind::Generation(node) => first_use_in_macro(node, wanted),
        StatementKind::CallBlock(node) => of_call(&node.0).or_else(|| first_use_in_macro(&node.1, wanted)),
        StatementKind::FilterBlock(node) => first_use(&node.body, wanted).or_else(|| of_expr(&node.filter)),
    })
}

pub(super) fn first_use_in_macro(node: &Macro, wanted: &str) -> Option<bool> {
    if node.parameters.iter().any(|parameter| &*parameter.name.name == wanted) {
        return Some(false);
    }
    let is_read = node.parameters.iter().filter_map(|parameter| parameter.default.as_ref()).any(|default| {
        let mut found = false;
        for_each_name(default, &mut |name| found |= &**name == wanted);
        found
    });
    if is_read { Some(true) } else { first_use(&node.body, wanted) }
}
