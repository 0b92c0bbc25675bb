//! Chats: rows of messages, or of instructions and outputs → a chat template's text → tokens, each trained on or not.
//! Read next: `format.rs` for the input, `template.rs` for the text, `spans.rs` and `answers.rs` for the trained parts,
//! `preferences.rs` for pairs of answers, `prepare.rs` for the cache. `../packed.rs` packs chats into rows.

mod answers;
mod completion;
mod date;
mod detect;
mod format;
mod habits;
mod judged;
mod marks;
mod preference_data;
mod preferences;
mod prepare;
mod prompt;
mod render_error;
mod spans;
mod store;
mod template;
mod template_file;

pub(crate) use detect::is_record;
pub(crate) use template_file::TEMPLATE_NAME;

pub use date::Date;
pub use detect::{DataFormat, detect_format, detect_preferences};
pub use format::ChatFormat;
pub use habits::TemplateHabits;
pub use preference_data::PreferenceData;
pub use prepare::{ChatSettings, prepare_chats, prepare_preferences};
pub use prompt::{AnswerEnds, Chat};
pub use spans::TrainOn;
pub use store::ChatStore;
pub use template::ChatTemplate;
