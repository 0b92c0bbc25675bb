//! Call stacks, each stored once.

use rustc_hash::FxHashMap;

/// A call stack of a snapshot. The default is the empty one.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StackId(pub u32);

/// A function on a call stack, with its position.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The function's name.
    pub name: String,
    /// Its file; empty or `??` if unknown.
    pub file: String,
    /// The current line; 0 if unknown.
    pub line: u32,
}

/// All stacks of a snapshot.
#[derive(Debug, Clone)]
pub struct Stacks {
    frames: Vec<Frame>,
    known_frames: FxHashMap<Frame, u32>,
    /// Innermost function first.
    stacks: Vec<Vec<u32>>,
    known_stacks: FxHashMap<Vec<u32>, StackId>,
}

impl Default for Stacks {
    fn default() -> Self {
        let known_stacks = FxHashMap::from_iter([(vec![], StackId(0))]);
        Self { frames: vec![], known_frames: FxHashMap::default(), stacks: vec![vec![]], known_stacks }
    }
}

impl Stacks {
    /// The functions of a stack, innermost first.
    pub fn frames(&self, stack: StackId) -> impl DoubleEndedIterator<Item = &Frame> {
        self.stacks[stack.0 as usize].iter().map(|frame| &self.frames[*frame as usize])
    }

    /// Number of stacks; all ids are smaller.
    pub fn count(&self) -> usize {
        self.stacks.len()
    }

    /// The index of a frame, for building a stack.
    pub(crate) fn frame(&mut self, frame: Frame) -> u32 {
        if let Some(known) = self.known_frames.get(&frame) {
            return *known;
        }
        let index = u32::try_from(self.frames.len()).expect("a pickle has fewer values");
        self.frames.push(frame.clone());
        self.known_frames.insert(frame, index);
        index
    }

    /// The id of a stack of these frames.
    pub(crate) fn stack(&mut self, frames: Vec<u32>) -> StackId {
        if let Some(known) = self.known_stacks.get(&frames) {
            return *known;
        }
        let id = StackId(u32::try_from(self.stacks.len()).expect("a pickle has fewer values"));
        self.stacks.push(frames.clone());
        self.known_stacks.insert(frames, id);
        id
    }
}
