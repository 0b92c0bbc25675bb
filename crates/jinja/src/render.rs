//! Executes the statements of a template.
//! Not here: its state (`state.rs`), expressions (`evaluate.rs`), calls (`calls.rs`), iterators (`iterate.rs`).

use crate::Value;
use crate::arguments::Arguments;
use crate::ast::{For, Load, Macro, Scope, Slot, Statement, StatementKind, Target};
use crate::error::{Error, Result};
use crate::host::Marks;
use crate::state::{Iter, LoopState, Object, Render};
use crate::value::{Function, ObjectId};
use std::sync::Arc;

/// How statements ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    Normal,
    Break,
    Continue,
}

impl<'t> Render<'t> {
    /// Renders a whole template.
    pub(crate) fn template(mut self, body: &'t [Statement], scope: &'t Scope, slots: usize) -> Result<String> {
        let frame = self.open_frame(slots, 0)?;
        self.enter(scope, frame)?;
        self.run(body, frame)?;
        Ok(self.out)
    }

    /// Sets the variables of a scope to their initial values.
    pub(crate) fn enter(&mut self, scope: &'t Scope, frame: usize) -> Result<()> {
        for (index, load) in &scope.loads {
            self.meter.step()?;
            let value = match load {
                Load::Missing => None,
                Load::Copy(slot) => self.variable(*slot, frame).cloned(),
                Load::Global(name) => self.global(name)?,
            };
            self.set_variable(Slot { up: 0, index: *index }, frame, value);
        }
        Ok(())
    }

    fn global(&self, name: &str) -> Result<Option<Value>> {
        let given = self.variables.iter().find(|(other, _)| *other == name).map(|(_, value)| value.clone());
        match given.or_else(|| Function::named(name).map(Value::Function)) {
            None if name == "self" => Err(Error::unsupported("`self`")),
            value => Ok(value),
        }
    }

    pub(crate) fn run(&mut self, body: &'t [Statement], frame: usize) -> Result<Flow> {
        self.deeper(|render| {
            for statement in body {
                render.meter.step()?;
                let flow = render.run_statement(&statement.kind, frame).map_err(|error| error.at(statement.line))?;
                if flow != Flow::Normal {
                    return Ok(flow);
                }
            }
            Ok(Flow::Normal)
        })
    }

    fn run_statement(&mut self, kind: &'t StatementKind, frame: usize) -> Result<Flow> {
        match kind {
            StatementKind::Text(text) => self.write(text)?,
            StatementKind::Print(expr) => {
                let value = self.evaluate(expr, frame)?;
                self.write_value(&value)?;
            }
            StatementKind::If(branches) => {
                for (test, body) in branches {
                    if self.evaluate(test, frame)?.is_true() {
                        return self.run(body, frame);
                    }
                }
            }
            StatementKind::For(node) => return self.run_loop(node, frame),
            StatementKind::Set(target, expr) => {
                self.check_namespaces(target, frame)?;
                let value = self.evaluate(expr, frame)?;
                self.assign(target, value, frame)?;
            }
            StatementKind::SetBlock(node) => {
                self.enter(&node.scope, frame)?;
                let (text, flow) = self.captured(|render| render.run(&node.body, frame))?;
                if flow != Flow::Normal {
                    return Ok(flow);
                }
                let mut value = Value::from(text);
                if let Some(filter) = &node.filter {
                    value = self.evaluate_block_filter(filter, value, frame)?;
                }
                self.assign(&node.target, value, frame)?;
            }
            StatementKind::With(node) => {
                self.enter(&node.scope, frame)?;
                for (target, expr) in &node.targets {
                    let value = self.evaluate(expr, frame)?;
                    self.assign(target, value, frame)?;
                }
                return self.run(&node.body, frame);
            }
            StatementKind::Macro(name, node) => {
                let value = self.macro_value(node, frame)?;
                self.set_variable(name.slot, frame, Some(value));
            }
            StatementKind::CallBlock(node) => {
                let caller = self.macro_value(&node.1, frame)?;
                let value = self.call(&node.0, frame, Some(caller))?;
                self.write_value(&value)?;
            }
            StatementKind::FilterBlock(node) => {
                self.enter(&node.scope, frame)?;
                let (text, flow) = self.captured(|render| render.run(&node.body, frame))?;
                if flow != Flow::Normal {
                    return Ok(flow);
                }
                let value = self.evaluate_block_filter(&node.filter, Value::from(text), frame)?;
                self.write_value(&value)?;
            }
            StatementKind::Generation(node) => self.run_generation(node, frame)?,
            StatementKind::Break => return Ok(Flow::Break),
            StatementKind::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Normal)
    }

    fn run_generation(&mut self, node: &'t Macro, frame: usize) -> Result<()> {
        let text = self.call_macro(node, frame, Arguments::default())?;
        let Some(Marks { generation: [begin, end], .. }) = self.host.marks else { return self.write(&text) };
        self.out.push(begin);
        self.write(&text)?;
        self.out.push(end);
        Ok(())
    }

    fn run_loop(&mut self, node: &'t For, frame: usize) -> Result<Flow> {
        let items = self.evaluate(&node.items, frame)?;
        if node.recursive.is_some() {
            let text = self.run_recursion(node, frame, &items, 0)?;
            self.write(&text)?;
            return Ok(Flow::Normal);
        }
        let marks = self.host.marks.filter(|_| self.captures == 0).map(|marks| marks.iterations);
        if let Some([begin, ..]) = marks {
            self.out.push(begin);
        }
        let flow = self.iterate(node, frame, frame, &items, marks.map(|[_, turn, _]| turn), 0)?;
        if let Some([.., end]) = marks {
            self.out.push(end);
        }
        Ok(flow)
    }

    /// Renders a recursive loop over items. `frame` belongs to the function that contains the loop.
    pub(crate) fn run_recursion(&mut self, node: &'t For, frame: usize, items: &Value, depth: usize) -> Result<String> {
        let inner = self.open_frame(node.recursive.unwrap_or(0), frame)?;
        let (text, _) = self.captured(|render| render.iterate(node, frame, inner, items, None, depth))?;
        self.close_frame(inner);
        Ok(text)
    }

    /// Runs a loop's body, with its variables in `inner`, for each item.
    fn iterate(
        &mut self,
        node: &'t For,
        frame: usize,
        inner: usize,
        items: &Value,
        turn: Option<char>,
        depth: usize,
    ) -> Result<Flow> {
        let mut iter = self.iter(items)?;
        let mut len = self.len_of(items).ok();
        let mut test_frame = None;
        if let Some(test) = &node.test {
            let frame = self.open_frame(test.slots, frame)?;
            self.enter(&test.scope, frame)?;
            iter = Iter::Tested { source: Box::new(iter), test, frame };
            (len, test_frame) = (None, Some(frame));
        }
        let mut state = None;
        if let Some(slot) = node.loop_slot {
            let recursion = node.recursive.map(|_| (node, frame));
            let id =
                self.object(Object::Loop(Box::new(LoopState::new(std::mem::take(&mut iter), len, recursion, depth))))?;
            state = Some((id, Slot { up: 0, index: slot }));
        }
        let mut is_empty = true;
        loop {
            self.meter.step()?;
            let item = match state {
                Some((id, _)) => self.next_of_loop(id)?,
                None => self.next(&mut iter)?,
            };
            let Some(item) = item else { break };
            self.assign(&node.target, item, inner)?;
            if let Some((id, slot)) = state {
                self.set_variable(slot, inner, Some(Value::Object(id)));
            }
            self.enter(&node.scope, inner)?;
            if let Some(turn) = turn {
                self.out.push(turn);
            }
            let flow = self.run(&node.body, inner)?;
            // As in Jinja2, which records after an iteration that there was one.
            is_empty &= flow != Flow::Normal;
            if flow == Flow::Break {
                break;
            }
        }
        if let (Some((id, _)), Some(_)) = (state, test_frame) {
            self.end_loop(id);
        }
        if let Some(frame) = test_frame {
            self.close_frame(frame);
        }
        if is_empty && !node.otherwise.is_empty() {
            self.enter(&node.otherwise_scope, inner)?;
            return self.run(&node.otherwise, inner);
        }
        Ok(Flow::Normal)
    }

    /// Errors: a target is an attribute of a value that is not a namespace.
    fn check_namespaces(&self, target: &Target, frame: usize) -> Result<()> {
        match target {
            Target::Name(_) => Ok(()),
            Target::Tuple(targets) => targets.iter().try_for_each(|target| self.check_namespaces(target, frame)),
            Target::Attribute(name, attribute) => self.namespace(name.slot, frame).map(|_| ()).ok_or_else(|| {
                Error::raised(format!("can't assign to `{}.{attribute}`: it is not a namespace", name.name))
            }),
        }
    }

    fn namespace(&self, slot: Slot, frame: usize) -> Option<ObjectId> {
        match self.variable(slot, frame) {
            Some(Value::Object(id)) if matches!(self.objects[id.0], Object::Namespace(_)) => Some(*id),
            _ => None,
        }
    }

    pub(crate) fn assign(&mut self, target: &'t Target, value: Value, frame: usize) -> Result<()> {
        match target {
            Target::Name(name) => self.set_variable(name.slot, frame, Some(value)),
            Target::Attribute(name, attribute) => {
                if attribute.starts_with('_') {
                    return Err(Error::raised(format!("`{attribute}` of a namespace begins with `_`")));
                }
                let id = self.namespace(name.slot, frame).ok_or_else(|| Error::raised("it is not a namespace"))?;
                self.set_attribute(id, attribute, value)?;
            }
            Target::Tuple(targets) => {
                let mut iter = self.iter(&value)?;
                let mut items = Vec::new();
                let count = |found: &str| format!("{found} values for {} names", targets.len());
                while let Some(item) = self.next(&mut iter)? {
                    if items.len() == targets.len() {
                        return Err(Error::raised(count("too many")));
                    }
                    items.push(item);
                }
                if items.len() < targets.len() {
                    return Err(Error::raised(count("not enough")));
                }
                for (target, item) in targets.iter().zip(items) {
                    self.assign(target, item, frame)?;
                }
            }
        }
        Ok(())
    }

    /// The value of a target after an item was assigned to it: Jinja2 turns an unpacked item into a tuple.
    pub(crate) fn assigned(&self, target: &Target, item: Value, frame: usize) -> Value {
        match target {
            Target::Name(_) | Target::Attribute(..) => item,
            Target::Tuple(targets) => Value::tuple(
                targets
                    .iter()
                    .map(|target| match target {
                        Target::Name(name) => self.variable(name.slot, frame).cloned().unwrap_or(Value::None),
                        nested => self.assigned(nested, Value::None, frame),
                    })
                    .collect(),
            ),
        }
    }

    fn set_attribute(&mut self, id: ObjectId, name: &Arc<str>, value: Value) -> Result<()> {
        let Object::Namespace(attributes) = &mut self.objects[id.0] else { return Ok(()) };
        self.meter.charge(16 * attributes.len())?;
        match attributes.iter_mut().find(|(key, _)| key.as_str() == Some(name)) {
            Some((_, old)) => *old = value,
            None => attributes.push((Value::from(Arc::clone(name)), value)),
        }
        Ok(())
    }
}
