//! The owner of memory: the line of the program that allocated it.

use crate::replay::Replay;
use crate::snapshot::{Frame, StackId, Stacks};
use rustc_hash::FxHashMap;
use std::fmt;

/// The line that allocated memory, or the best substitute.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Owner {
    /// A line of Python: the program's, if the stack has one, otherwise a library's.
    Line {
        /// The function.
        function: String,
        /// The file, with its path.
        file: String,
        /// The line.
        line: u32,
    },
    /// The backward pass, which runs outside Python: the autograd function.
    Backward(String),
    /// C++ without Python or autograd: the innermost function.
    Native(String),
    /// No stack was recorded: the allocation is older than the recording, or stacks were turned off.
    Unknown,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line { function, file, line } => {
                let name = file.rsplit(['/', '\\']).next().unwrap_or(file);
                write!(f, "{function} ({name}:{line})")
            }
            Self::Backward(name) => write!(f, "backward: {name}"),
            Self::Native(name) => write!(f, "{name}"),
            Self::Unknown => write!(f, "(no stack recorded)"),
        }
    }
}

/// The owners of a snapshot's stacks.
#[derive(Debug)]
pub struct Owners {
    owners: Vec<Owner>,
    of_stack: Vec<u32>,
}

impl Owners {
    /// Finds the owner of each stack.
    pub fn of(stacks: &Stacks) -> Self {
        let mut known = FxHashMap::default();
        let mut owners = vec![];
        let of_stack = (0..stacks.count()).map(|stack| {
            let owner = owner(&stacks.frames(StackId(stack as u32)).collect::<Vec<_>>());
            *known.entry(owner.clone()).or_insert_with(|| {
                owners.push(owner);
                owners.len() as u32 - 1
            })
        });
        let of_stack = of_stack.collect();
        Self { owners, of_stack }
    }

    /// The index of a stack's owner.
    pub fn index(&self, stack: StackId) -> usize {
        self.of_stack[stack.0 as usize] as usize
    }

    /// An owner by index.
    pub fn get(&self, index: usize) -> &Owner {
        &self.owners[index]
    }

    /// Number of owners.
    pub fn count(&self) -> usize {
        self.owners.len()
    }
}

/// The innermost frame decides; the program's own code has priority.
fn owner(frames: &[&Frame]) -> Owner {
    let python = || frames.iter().filter(|frame| frame.file.ends_with(".py"));
    if let Some(frame) = python().find(|frame| !is_library(&frame.file)) {
        return line(frame);
    }
    if let Some(name) = frames.iter().find_map(|frame| backward(&frame.name)) {
        return Owner::Backward(name);
    }
    if let Some(frame) = python().next() {
        return line(frame);
    }
    // The recording's own functions and the allocator's are in every stack.
    let tells = |frame: &&&Frame| {
        let own = ["unwind", "CapturedTraceback", "gather_with_cpp", "CUDACachingAllocator", "empty_"];
        !frame.name.is_empty() && !own.iter().any(|own| frame.name.contains(own))
    };
    frames.iter().find(tells).map_or(Owner::Unknown, |frame| Owner::Native(short(&frame.name)))
}

fn line(frame: &Frame) -> Owner {
    Owner::Line { function: frame.name.clone(), file: frame.file.clone(), line: frame.line }
}

/// Whether a file is not part of the program: installed packages, Python's own files.
pub(super) fn is_library(file: &str) -> bool {
    let parts = ["site-packages", "dist-packages", "/lib/python", "<frozen", "/torch/"];
    parts.iter().any(|part| file.contains(part))
}

/// `MmBackward0` from `torch::autograd::generated::MmBackward0::apply(…)`, or another autograd node.
pub(super) fn backward(name: &str) -> Option<String> {
    let before = name.split("::apply(").next().filter(|before| before.len() < name.len())?;
    let class = before.rsplit("::").next()?;
    (class.contains("Backward") || class == "AccumulateGrad").then(|| class.to_owned())
}

/// A C++ name without arguments.
fn short(name: &str) -> String {
    let name = name.replace("(anonymous namespace)::", "");
    name.split(['(', '<']).next().unwrap_or(&name).chars().take(80).collect()
}

/// One owner's memory at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnedAtPeak {
    /// Index of the owner.
    pub owner: usize,
    /// Size of its blocks.
    pub bytes: u64,
    /// Number of its blocks.
    pub blocks: usize,
}

/// The first moment of peak use, as a number of events; 0 is before the first event.
pub fn peak_event(replay: &Replay) -> usize {
    let most = replay.memory.iter().map(|moment| moment.in_use).max();
    replay.memory.iter().position(|moment| Some(moment.in_use) == most).unwrap_or(0)
}

/// Memory by owner at a moment, numbered like [`peak_event`]; largest first.
pub fn at_event(replay: &Replay, owners: &Owners, moment: usize) -> Vec<OwnedAtPeak> {
    let mut owned = (0..owners.count()).map(|owner| OwnedAtPeak { owner, bytes: 0, blocks: 0 }).collect::<Vec<_>>();
    for life in replay.lives.iter().filter(|life| life.is_there(moment)) {
        let owned = &mut owned[owners.index(life.stack)];
        owned.bytes += life.bytes;
        owned.blocks += 1;
    }
    owned.retain(|owned| owned.blocks > 0);
    owned.sort_by_key(|owned| (std::cmp::Reverse(owned.bytes), owned.owner));
    owned
}
