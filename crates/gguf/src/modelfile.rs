//! Ollama's Modelfile for an exported file.
//! Source: ollama's docs/modelfile.md.

use std::fmt::{self, Display, Formatter};

/// ChatML as a template of Go, which Ollama has; it recognizes other templates in the file by itself.
const CHATML: &str = "{{- range .Messages }}<|im_start|>{{ .Role }}
{{ .Content }}<|im_end|>
{{ end }}<|im_start|>assistant
";

/// A Modelfile.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Modelfile {
    /// The model's file, or the name of a model in Ollama.
    pub from: String,
    /// The adapters' file.
    pub adapter: Option<String>,
    /// Whether messages are written in ChatML.
    pub is_chatml: bool,
    /// Texts that end an answer.
    pub stops: Vec<String>,
}

impl Display for Modelfile {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "FROM {}", self.from)?;
        if let Some(adapter) = &self.adapter {
            writeln!(f, "ADAPTER {adapter}")?;
        }
        if self.is_chatml {
            writeln!(f, "TEMPLATE \"\"\"{CHATML}\"\"\"")?;
        }
        self.stops.iter().try_for_each(|stop| writeln!(f, "PARAMETER stop {}", quoted(stop)))
    }
}

/// A text in quotes. A text with quotes needs three of them, since a Modelfile has no escapes.
fn quoted(text: &str) -> String {
    if text.contains('"') { format!("\"\"\"{text}\"\"\"") } else { format!("\"{text}\"") }
}
