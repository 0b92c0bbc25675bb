//! The state of a render: variables, mutable objects, and the text so far.
//! One file, because these types contain each other: a render has objects, an object may be an iterator, and an iterator
//! applies functions to the render. The statements (`render.rs`), expressions (`evaluate.rs`), calls (`calls.rs`), iterators
//! (`iterate.rs`), loops (`objects.rs`) and filters (`filters/`) are built on it, and none of them is needed here.

use crate::Value;
use crate::arguments::Arguments;
use crate::ast::{For, LoopTest, Macro, Slot};
use crate::error::{Error, Meter, Result};
use crate::host::Host;
use crate::value::Dict;
use crate::value::{Items, ObjectId, Range, View};
use std::sync::Arc;

/// The function of a filter: its operand and other arguments.
pub(crate) type FilterFunction = for<'r, 't> fn(&'r mut Render<'t>, Value, Arguments) -> Result<Value>;

/// The function of a test: its operand and other arguments.
pub(crate) type TestFunction = for<'r, 't> fn(&'r mut Render<'t>, Value, Arguments) -> Result<bool>;

/// Maximum nesting of expressions and blocks, including those of called macros: 250 calls of a small macro, where
/// Python allows 200. It bounds the stack to about 1 MiB.
const DEPTH_MAX: usize = 600;

/// The variables of a function call.
struct Frame {
    slots: Vec<Option<Value>>,
    /// The frame of the enclosing function.
    parent: usize,
    /// Whether a macro refers to its variables.
    is_captured: bool,
}

/// A render of a template.
pub(crate) struct Render<'t> {
    pub(crate) host: &'t Host<'t>,
    pub(crate) variables: &'t [(&'t str, Value)],
    pub(crate) meter: Meter,
    frames: Vec<Frame>,
    pub(crate) objects: Vec<Object<'t>>,
    pub(crate) out: String,
    /// Number of open blocks whose text becomes a value.
    pub(crate) captures: usize,
    depth: usize,
}

/// A mutable object of a render.
pub(crate) enum Object<'t> {
    /// Its attributes.
    Namespace(Vec<(Value, Value)>),
    /// An iterator, which yields each item once.
    Generator(Generator<'t>),
    Loop(Box<LoopState<'t>>),
    /// A macro, and the frame of the function that defines it.
    Macro(&'t Macro, usize),
    /// Its items, and the position of the current one.
    Cycler(Vec<Value>, usize),
    /// Its separator, and whether it has been called.
    Joiner(Value, bool),
}

/// The state of a loop.
pub(crate) struct LoopState<'t> {
    pub(crate) iter: Iter<'t>,
    /// Number of items; `None` if it is known only at the end.
    pub(crate) len: Option<usize>,
    /// Number of the current iteration, counted from 1; 0 before the first.
    pub(crate) index: usize,
    /// The next item, if it was read ahead.
    pub(crate) next: Option<Value>,
    pub(crate) current: Option<Value>,
    pub(crate) previous: Option<Value>,
    pub(crate) last_changed: Option<Vec<Value>>,
    /// The loop to run when called, and the frame of the function that contains it.
    pub(crate) recursion: Option<(&'t For, usize)>,
    pub(crate) depth: usize,
}

impl<'t> LoopState<'t> {
    pub(crate) fn new(iter: Iter<'t>, len: Option<usize>, recursion: Option<(&'t For, usize)>, depth: usize) -> Self {
        let (next, current, previous, last_changed) = (None, None, None, None);
        Self { iter, len, index: 0, next, current, previous, last_changed, recursion, depth }
    }
}

/// A position in an iteration.
#[derive(Default)]
pub(crate) enum Iter<'t> {
    #[default]
    Empty,
    Items(Arc<Items>, usize),
    /// A text, and the byte offset of the next character.
    Characters(Arc<str>, usize),
    Entries(View, Arc<Dict>, usize),
    Range(Range, usize),
    Values(std::vec::IntoIter<Value>),
    Generator(ObjectId),
    /// Filters the items by the `if` of a loop.
    Tested {
        source: Box<Iter<'t>>,
        test: &'t LoopTest,
        frame: usize,
    },
}

/// An iterator as a value, such as the result of `map`.
pub(crate) enum Generator<'t> {
    Iter(Iter<'t>),
    /// A filter that computes all items on the first access.
    Whole(fn(&mut Render<'t>, Value, Arguments) -> Result<Vec<Value>>, Value, Arguments),
    /// `map` before its first item.
    Map(Value, Arguments),
    Mapped(Iter<'t>, Each),
    /// `select` or a similar filter before its first item.
    Select(Kept, Value, Arguments),
    Selected(Iter<'t>, Kept, Each),
}

/// The items that `select` and similar filters keep.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kept {
    /// Whether to keep items for which the test holds, or the others.
    pub(crate) if_true: bool,
    /// Whether to test an attribute of each item.
    pub(crate) by_attribute: bool,
}

/// An operation on each item.
pub(crate) struct Each {
    pub(crate) attribute: Option<Path>,
    pub(crate) apply: Apply,
}

/// What an operation does with an item or its attribute.
pub(crate) enum Apply {
    Nothing,
    Filter(FilterFunction, Arguments),
    Test(TestFunction, Arguments),
    /// The value if the attribute is absent.
    Default(Value),
}

/// An attribute with dots, such as `function.name` or `0.name`.
pub(crate) struct Path(pub(crate) Vec<Value>);

impl<'t> Render<'t> {
    pub(crate) fn new(variables: &'t [(&'t str, Value)], host: &'t Host<'t>) -> Self {
        Self {
            host,
            variables,
            meter: Meter::new(host.limits.steps),
            frames: Vec::new(),
            objects: Vec::new(),
            out: String::new(),
            captures: 0,
            depth: 0,
        }
    }

    /// Adds an object.
    pub(crate) fn object(&mut self, object: Object<'t>) -> Result<ObjectId> {
        self.meter.charge(if matches!(object, Object::Loop(_)) { 512 } else { 256 })?;
        self.objects.push(object);
        Ok(ObjectId(self.objects.len() - 1))
    }

    pub(crate) fn open_frame(&mut self, slots: usize, parent: usize) -> Result<usize> {
        self.meter.charge_items(slots + 2)?;
        self.frames.push(Frame { slots: vec![None; slots], parent, is_captured: false });
        Ok(self.frames.len() - 1)
    }

    pub(crate) fn close_frame(&mut self, frame: usize) {
        let is_last = frame + 1 == self.frames.len();
        match self.frames[frame].is_captured {
            true => {}
            false if is_last => _ = self.frames.pop(),
            false => self.frames[frame].slots.clear(),
        }
    }

    pub(crate) fn capture_frame(&mut self, frame: usize) {
        let mut at = frame;
        while !std::mem::replace(&mut self.frames[at].is_captured, true) {
            at = self.frames[at].parent;
        }
    }

    fn frame_of(&self, slot: Slot, frame: usize) -> usize {
        (0..slot.up).fold(frame, |at, _| self.frames[at].parent)
    }

    pub(crate) fn variable(&self, slot: Slot, frame: usize) -> Option<&Value> {
        self.frames[self.frame_of(slot, frame)].slots[slot.index].as_ref()
    }

    pub(crate) fn set_variable(&mut self, slot: Slot, frame: usize, value: Option<Value>) {
        let frame = self.frame_of(slot, frame);
        self.frames[frame].slots[slot.index] = value;
    }

    /// Runs `inside` one level deeper. Errors: the nesting is too deep.
    pub(crate) fn deeper<T>(&mut self, inside: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.deeper_by(1, inside)
    }

    /// Runs `inside`, which uses the stack of several levels.
    pub(crate) fn deeper_by<T>(&mut self, levels: usize, inside: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.depth += levels;
        if self.depth > DEPTH_MAX {
            return Err(Error::over_budget("its macros, blocks and expressions are nested too deep"));
        }
        let result = inside(self);
        self.depth -= levels;
        result
    }

    pub(crate) fn write(&mut self, text: &str) -> Result<()> {
        self.meter.charge(text.len())?;
        self.out.push_str(text);
        Ok(())
    }

    /// Captures the text that `write` produces, and returns it with the result.
    pub(crate) fn captured<T>(&mut self, write: impl FnOnce(&mut Self) -> Result<T>) -> Result<(String, T)> {
        let outer = std::mem::take(&mut self.out);
        self.captures += 1;
        let result = write(self)?;
        self.captures -= 1;
        Ok((std::mem::replace(&mut self.out, outer), result))
    }
}
