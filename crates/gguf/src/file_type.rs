//! The types of a model's file, and the encoding that each gives a tensor.

use crate::Encoding;
use std::collections::HashMap;

/// The type of a file, which most of its tensors have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileType {
    /// All tensors in single precision.
    F32,
    /// Matrices in half precision.
    F16,
    /// Matrices in bfloat16.
    Bf16,
    /// Matrices in Q8_0.
    Q8_0,
    /// Matrices in Q4_K, some in Q5_K, Q6_K or Q8_0.
    Q4KM,
}

/// Tensors that llama.cpp needs in single precision, by the ends of their names: norms, routers, positions, types of tokens
/// and biases by distance. Source: `tensor_allows_quantization` of llama.cpp and the converter's list.
const SINGLE: [&str; 6] = [
    "_norm.weight",
    "ffn_gate_inp.weight",
    "position_embd.weight",
    "token_types.weight",
    "attn_rel_b.weight",
    "rope_freqs.weight",
];

impl FileType {
    /// llama.cpp's number of the type. Source: `enum llama_ftype` in `llama.h`.
    pub(crate) fn code(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q8_0 => 7,
            Self::Q4KM => 15,
            Self::Bf16 => 32,
        }
    }

    /// llama.cpp's name of the type.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::Q8_0 => "Q8_0",
            Self::Q4KM => "Q4_K_M",
        }
    }

    /// Whether it has integers.
    pub(crate) fn is_quantized(self) -> bool {
        matches!(self, Self::Q8_0 | Self::Q4KM)
    }

    /// The encodings of a model's tensors, by their names in the file and their shapes.
    pub fn encodings(self, tensors: &[(&str, &[usize])]) -> Vec<Encoding> {
        let mut mix = Mix::of(tensors);
        let encodings = tensors.iter().map(|(name, shape)| {
            let [.., _, columns] = **shape else { return Encoding::F32 };
            let wanted = match self {
                _ if is_single(name) => Encoding::F32,
                Self::F32 => Encoding::F32,
                Self::F16 => Encoding::F16,
                Self::Bf16 => Encoding::Bf16,
                Self::Q8_0 => Encoding::Q8_0,
                Self::Q4KM => mix.encoding(name),
            };
            fitting(wanted, columns)
        });
        encodings.collect()
    }
}

fn is_single(name: &str) -> bool {
    !name.ends_with(".weight") || SINGLE.iter().any(|end| name.ends_with(end))
}

/// The encoding for rows of this length: an encoding of blocks of 256 becomes one of blocks of 32 with at least as many bits if
/// rows are not whole blocks, and F16 if they are not whole blocks of 32 either. Source: `tensor_type_fallback` of llama.cpp.
fn fitting(wanted: Encoding, columns: usize) -> Encoding {
    let smaller = match wanted {
        Encoding::Q4K => Encoding::Q5_0,
        Encoding::Q5K | Encoding::Q6K => Encoding::Q8_0,
        other => other,
    };
    [wanted, smaller].into_iter().find(|encoding| encoding.fits(columns)).unwrap_or(Encoding::F16)
}

/// Which tensors Q4_K_M raises to more bits: the output head, and those of values and of the layer down in the first and the
/// last eighth of the layers and in every third one between. Source: `llama_tensor_get_type` of llama.cpp.
struct Mix {
    has_head: bool,
    experts: usize,
    /// Of the tensors whose names have a stem: how many there are, and how many were seen.
    counts: HashMap<&'static str, [usize; 2]>,
}

/// The stems of the names of tensors that are raised in some layers.
const RAISED: [&str; 2] = ["attn_v.weight", "ffn_down"];

/// Models with this number of experts share attention among them, and its tensors are raised.
const MIXTRAL_EXPERTS: usize = 8;

impl Mix {
    fn of(tensors: &[(&str, &[usize])]) -> Self {
        let count = |stem: &str| tensors.iter().filter(|(name, _)| is_raised(name, stem)).count();
        let of_experts = tensors.iter().find(|(name, _)| name.contains("_exps."));
        Self {
            has_head: tensors.iter().any(|(name, _)| *name == "output.weight"),
            experts: of_experts.map_or(0, |(_, shape)| shape[0]),
            counts: RAISED.map(|stem| (stem, [count(stem), 0])).into(),
        }
    }

    fn encoding(&mut self, name: &str) -> Encoding {
        let is_head = name == "output.weight" || !self.has_head && name == "token_embd.weight";
        if is_head {
            return Encoding::Q6K;
        }
        let is_of_many = self.experts == MIXTRAL_EXPERTS;
        let raised = RAISED.into_iter().find(|stem| is_raised(name, stem)).is_some_and(|stem| self.next(stem));
        match name {
            _ if is_of_many && (name.contains("attn_v.weight") || name.contains("attn_k.weight")) => Encoding::Q8_0,
            _ if raised => Encoding::Q6K,
            _ if is_of_many && name.contains("attn_output.weight") => Encoding::Q5K,
            _ if name.contains("attn_qkv.weight") => Encoding::Q5K,
            _ => Encoding::Q4K,
        }
    }

    /// Whether the next tensor with this stem is raised.
    fn next(&mut self, stem: &'static str) -> bool {
        let [count, seen] = self.counts.get_mut(stem).expect("a stem of the list");
        let layer = *seen;
        *seen += 1;
        let eighth = *count / 8;
        layer < eighth || layer >= 7 * *count / 8 || (layer - eighth) % 3 == 2
    }
}

fn is_raised(name: &str, stem: &str) -> bool {
    name.contains(stem) && name.ends_with(".weight")
}
