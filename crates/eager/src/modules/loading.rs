//! The order in which transformers, bitsandbytes and PEFT load a model with 4-bit weights, and what they free again. It
//! decides which free blocks the allocator has before the first step.
//! Source: transformers 5.24's `modeling_utils.py` (`caching_allocator_warmup`) and `core_model_loading.py`
//! (`convert_and_load_state_dict_in_model`), bitsandbytes' `quantize_4bit`, PEFT's `prepare_model_for_kbit_training`.
//!
//! ```text
//!   one block for all weights, which is freed
//!   ─► by name: each weight in the checkpoint's type; linear layers' are quantized, and the original is freed
//!   ─► in the model's order: each other weight is cast to single precision, and the original is freed
//! ```
//!
//! Not modeled: PEFT 0.21 empties the allocator's cache after this, and the first versions of transformers 5 load weights
//! in several threads before they are quantized, which reserves more (huggingface/transformers#44576).

use crate::runtime::{DType, Event, Record, Trace};
use crate::usage::Kind;
use std::ops::Range;
use std::rc::Rc;

/// A weight of the model in the type of the checkpoint, before it is quantized or cast.
pub(super) struct Original {
    pub name: String,
    pub elements: u64,
    pub dtype: DType,
    /// The records of the stored weight: the one that replaces the original, or the packed elements and their tables.
    pub stored: Range<u32>,
    pub is_packed: bool,
}

impl Original {
    fn bytes(&self) -> u64 {
        self.elements * self.dtype.bytes()
    }

    /// Whether the stored weight is the original.
    fn stays(&self) -> bool {
        !self.is_packed && self.dtype == DType::F32
    }
}

/// Replaces the events of a trace of the stored weights with those of loading the originals.
pub(super) fn replay(trace: &mut Trace, originals: &[Original]) {
    let others = std::mem::take(&mut trace.events);
    let loaded = originals.iter().map(|original| match original.is_packed {
        true => original.elements.div_ceil(2),
        false => original.bytes(),
    });
    let all = temporary(trace, "caching_allocator_warmup", "", loaded.sum());
    trace.free(all);
    let mut by_name = originals.iter().enumerate().collect::<Vec<_>>();
    by_name.sort_by_cached_key(|(_, original)| key(&original.name));
    let mut whole = vec![None; originals.len()];
    for (index, original) in by_name {
        if original.stays() {
            store(trace, original);
            continue;
        }
        let loaded = temporary(trace, "checkpoint", &original.name, original.bytes());
        if original.is_packed {
            store(trace, original);
            trace.free(loaded);
        } else {
            whole[index] = Some(loaded);
        }
    }
    for (original, loaded) in originals.iter().zip(whole) {
        if let Some(loaded) = loaded {
            store(trace, original);
            trace.free(loaded);
        }
    }
    let is_stored = |id: &u32| originals.iter().any(|original| original.stored.contains(id));
    let others = others.into_iter().filter(|event| !matches!(event, Event::Allocate(id) if is_stored(id)));
    trace.events.extend(others);
}

fn temporary(trace: &mut Trace, op: &'static str, module: &str, bytes: u64) -> u32 {
    let (shape, dtype, kind) = (vec![bytes], DType::U8, Kind::Temporary);
    trace.allocate(Record { bytes, shape, dtype, op, module: Rc::from(module), kind })
}

fn store(trace: &mut Trace, original: &Original) {
    trace.events.extend(original.stored.clone().map(Event::Allocate));
}

/// A part of a name: numbers come before words.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Number(u64),
    Word(String),
}

/// The order of names in a checkpoint: numbers by their value.
fn key(name: &str) -> Vec<Part> {
    name.split('.').map(|part| part.parse().map_or_else(|_| Part::Word(part.to_owned()), Part::Number)).collect()
}
