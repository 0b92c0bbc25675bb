//! Loops and iterators of a render. Not here: what they consist of (`state.rs`).

use crate::Value;
use crate::error::{Error, Result};
use crate::state::{Generator, Iter, LoopState, Object, Render};
use crate::value::ObjectId;

impl<'t> Render<'t> {
    pub(crate) fn generator(&mut self, generator: Generator<'t>) -> Result<Value> {
        Ok(Value::Object(self.object(Object::Generator(generator))?))
    }

    fn loop_state(&mut self, id: ObjectId) -> &mut LoopState<'t> {
        let Object::Loop(state) = &mut self.objects[id.0] else { unreachable!("an object keeps its type") };
        state
    }

    fn pull(&mut self, id: ObjectId) -> Result<Option<Value>> {
        let mut iter = std::mem::take(&mut self.loop_state(id).iter);
        let item = self.next(&mut iter);
        self.loop_state(id).iter = iter;
        item
    }

    /// Begins the next iteration of a loop; `None` at the end.
    pub(crate) fn next_of_loop(&mut self, id: ObjectId) -> Result<Option<Value>> {
        let item = match self.loop_state(id).next.take() {
            Some(item) => Some(item),
            None => self.pull(id)?,
        };
        let state = self.loop_state(id);
        if let Some(item) = &item {
            state.index += 1;
            state.previous = state.current.replace(item.clone());
        }
        Ok(item)
    }

    pub(crate) fn end_loop(&mut self, id: ObjectId) {
        self.loop_state(id).iter = Iter::default();
    }

    fn peek(&mut self, id: ObjectId) -> Result<Option<Value>> {
        if self.loop_state(id).next.is_none() {
            let item = self.pull(id)?;
            self.loop_state(id).next = item;
        }
        Ok(self.loop_state(id).next.clone())
    }

    pub(crate) fn loop_len(&mut self, id: ObjectId) -> Result<usize> {
        if let Some(len) = self.loop_state(id).len {
            return Ok(len);
        }
        let mut rest = Vec::new();
        while let Some(item) = self.pull(id)? {
            self.meter.charge_items(1)?;
            rest.push(item);
        }
        let state = self.loop_state(id);
        let len = rest.len() + state.index + usize::from(state.next.is_some());
        state.iter = Iter::Values(rest.into_iter());
        state.len = Some(len);
        Ok(len)
    }

    /// An attribute of a loop; `None` if it does not exist.
    pub(crate) fn loop_attribute(&mut self, id: ObjectId, name: &str) -> Result<Option<Value>> {
        let (index, depth) = (self.loop_state(id).index, self.loop_state(id).depth);
        let number = |number: usize| Ok(Some(Value::from(number)));
        match name {
            "index" => number(index),
            "index0" => Ok(Some(Value::Int(index as i128 - 1))),
            "first" => Ok(Some(Value::Bool(index == 1))),
            "depth" => number(depth + 1),
            "depth0" => number(depth),
            "length" => self.loop_len(id).map(|len| Some(Value::from(len))),
            "revindex" => Ok(Some(Value::Int(self.loop_len(id)? as i128 - index as i128 + 1))),
            "revindex0" => Ok(Some(Value::Int(self.loop_len(id)? as i128 - index as i128))),
            "last" => Ok(Some(Value::Bool(self.peek(id)?.is_none()))),
            "nextitem" => Ok(Some(self.peek(id)?.unwrap_or(Value::undefined("there is no next item")))),
            "previtem" => {
                let previous = self.loop_state(id).previous.clone();
                Ok(Some(previous.unwrap_or(Value::undefined("there is no previous item"))))
            }
            _ => Ok(None),
        }
    }

    /// `loop.changed(…)`.
    pub(crate) fn loop_changed(&mut self, id: ObjectId, values: Vec<Value>) -> Result<bool> {
        let mut is_same = false;
        if let Some(last) = self.loop_state(id).last_changed.take() {
            is_same =
                crate::value::compare::equal(&mut self.meter, &Value::tuple(last), &Value::tuple(values.clone()))?;
        }
        self.loop_state(id).last_changed = Some(values);
        Ok(!is_same)
    }

    /// `loop(…)`: renders a recursive loop over other items.
    pub(crate) fn loop_call(&mut self, id: ObjectId, items: &Value) -> Result<Value> {
        let state = self.loop_state(id);
        let (recursion, depth) = (state.recursion, state.depth);
        let (node, frame) = recursion.ok_or_else(|| Error::raised("the loop is not `recursive`"))?;
        self.deeper(|render| render.run_recursion(node, frame, items, depth + 1)).map(Value::from)
    }
}
