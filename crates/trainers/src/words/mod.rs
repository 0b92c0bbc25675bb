//! The words of trainers and of guides: keys of files and flags of programs. One table says for each word whether
//! estimates of a trainer's run count it, and which setting of Plimsoll it is.
//! Not here: words whose values an estimate uses (`keys/`), and Plimsoll's command line and its sentences (`cli/words` of
//! the program). Read next: `table.rs`.

pub(crate) mod notes;
mod reason;
mod setting;
mod table;

pub use reason::Reason;
pub use setting::Setting;

use notes::Note;
use table::WORDS;

/// A setting and its value.
pub type Assignment = (Setting, &'static str);

/// The layout of a trainer's settings: each has its own set of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    HuggingFace,
    Axolotl,
    LlamaFactory,
    /// The newer layout of LLaMA-Factory, with one map per plugin.
    LlamaFactoryV1,
    Torchtune,
    Unsloth,
}

/// How a word affects the GPU memory of a run with settings of these layouts.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Memory {
    /// Not at all.
    Ignored(&'static [Layout]),
    /// In this way, which is not modeled exactly.
    Unmodeled(&'static [Layout], Note),
}

/// What a word means in Plimsoll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meaning {
    /// Plimsoll's setting of the same name.
    Own,
    /// Nothing: Plimsoll doesn't know the word.
    Unknown,
    /// The setting, with the word's value.
    Name(Setting),
    /// The same, except for these values (`null` for no value), which mean other settings.
    Or(Setting, &'static [(&'static str, &'static [Assignment])]),
    /// The setting, if the value is a fraction. A count of samples, which the word may also hold, means nothing, for this
    /// reason.
    Part(Setting, Reason),
    /// Other settings, chosen by the word's value; no settings if the value asks for the default. Other values are
    /// unknown. A flag without a value is `true`.
    Choice(&'static [(&'static str, &'static [Assignment])]),
    /// Other settings, chosen by the word's value. Other values are not supported. The reason names the alternative.
    Supported(&'static [(&'static str, &'static [Assignment])], Reason),
    /// When to evaluate or save: a disabling value sets the setting to 0, `steps` is the default, and other values
    /// become steps.
    Strategy(Setting),
    /// Nothing for these values, in any case; other values are not supported. The reason names the alternative.
    Only(&'static [&'static str], Reason),
    /// The model; GPT-2 models may be named by their size alone.
    Size,
    /// The weights to start from, or the model if only its sizes are known.
    Weights,
    /// The folder of the weights to start from, given in addition to a key for the model.
    Folder,
    /// The model, by the name of torchtune's builder function.
    Model,
    /// The optimizer and the format of its state, by Hugging Face's name for both or by the name of its class.
    Optimizer,
    /// The project of W&B; naming one switches on logging for W&B.
    Project,
    /// β₁ and β₂, in a list.
    Betas,
    /// Files to train on.
    Data,
    /// A detail of adapters, which only the training of adapters uses.
    Adapter,
    /// Nothing, for this reason. The value does not matter.
    Nothing(Reason),
    /// Nothing for these values, in any case, which ask for what Plimsoll does; for any other value, Plimsoll does what
    /// the reason says instead.
    Instead(&'static [&'static str], Reason),
    /// Not supported, unless the value disables it. The reason names the alternative.
    Missing(Reason),
}

/// The words that mean settings under another name, with underscores.
pub fn words() -> impl Iterator<Item = &'static str> {
    use Meaning::{Adapter, Instead, Missing, Nothing, Own, Unknown};
    let is_used =
        |meaning: &Meaning| !matches!(meaning, Own | Unknown | Nothing(_) | Instead(..) | Missing(_) | Adapter);
    WORDS.iter().filter(move |(.., meaning)| is_used(meaning)).map(|(word, ..)| *word)
}

/// All rows: each word, and its meaning in Plimsoll.
pub fn meanings() -> impl Iterator<Item = (&'static str, Meaning)> {
    WORDS.iter().map(|(word, _, meaning)| (*word, *meaning))
}

/// The meaning in Plimsoll of a word (written with underscores), if it has one under another name.
pub fn meaning(word: &str) -> Option<Meaning> {
    most_specific(word, |_, meaning| {
        Some(meaning).filter(|meaning| !matches!(meaning, Meaning::Own | Meaning::Unknown))
    })
}

/// Whether there are words within this one, as in `optimizer.lr`, that Plimsoll knows.
pub fn has_parts(word: &str) -> bool {
    let is_part = |known: &str| known.strip_prefix(word).is_some_and(|rest| rest.starts_with('.'));
    WORDS.iter().any(|(known, _, meaning)| is_part(known) && *meaning != Meaning::Unknown)
}

/// How a word of this layout affects memory, if the table says so.
pub(crate) fn memory(layout: Layout, word: &str) -> Option<Memory> {
    most_specific(word, |memory, _| memory.iter().copied().find(|memory| memory.is_of(layout)))
}

/// The words of a layout with their effect on memory. Words may be patterns.
pub(crate) fn of_layout(layout: Layout) -> impl Iterator<Item = (&'static str, Memory)> {
    let of_layout = move |memory: &&Memory| memory.is_of(layout);
    WORDS.iter().filter_map(move |(word, memory, _)| Some((*word, *memory.iter().find(of_layout)?)))
}

impl Memory {
    fn is_of(self, layout: Layout) -> bool {
        let (Self::Ignored(layouts) | Self::Unmodeled(layouts, _)) = self;
        layouts.contains(&layout)
    }
}

/// The value of a column in the most specific row for a word that has one: the word's own row, or the row of the longest
/// pattern.
fn most_specific<T>(word: &str, column: impl Fn(&'static [Memory], Meaning) -> Option<T>) -> Option<T> {
    let rows = WORDS.iter().filter(|(known, ..)| fits(known, word));
    let values = rows.filter_map(|(known, memory, meaning)| Some((*known, column(memory, *meaning)?)));
    values.max_by_key(|(known, _)| (!known.ends_with('*'), known.len())).map(|(_, value)| value)
}

/// Whether a word equals a pattern, or starts with one that ends in `*`.
pub(crate) fn fits(pattern: &str, word: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => word.starts_with(beginning),
        None => pattern == word,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_in_order_and_each_has_one_row() {
        assert!(WORDS.is_sorted_by(|(a, ..), (b, ..)| a < b), "readers would miss some");
        for (word, memory, meaning) in WORDS {
            assert!(!memory.is_empty() || *meaning != Meaning::Unknown, "{word}: its row says nothing");
        }
    }

    #[test]
    fn each_column_has_its_most_specific_row() {
        let is_ignored = |layout, word| matches!(memory(layout, word), Some(Memory::Ignored(_)));
        // A pattern of axolotl has the effect; the word's own row has only the meaning.
        assert!(
            is_ignored(Layout::Axolotl, "eval_table_size") && memory(Layout::Torchtune, "eval_table_size").is_none()
        );
        assert_eq!(meaning("eval_table_size"), Some(Meaning::Nothing(Reason::HeldOut)));
        // A key within a map that is not modeled.
        assert!(is_ignored(Layout::LlamaFactoryV1, "peft_config.lora_alpha"));
        assert!(matches!(memory(Layout::LlamaFactoryV1, "peft_config.other"), Some(Memory::Unmodeled(..))));
        for unknown in ["seed", "tfdata", "xla_flags", "no_such_word"] {
            assert_eq!(meaning(unknown), None, "{unknown}");
        }
    }
}
