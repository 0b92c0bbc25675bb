//! `plimsoll export`: a model or its adapters as a GGUF file, and Ollama's Modelfile for it.
//! Not here: the format (`plimsoll-gguf`).

use super::adapters::Below;
use super::chats::today;
use super::failure::{exit_code, io_failure, line};
use super::model::{CONFIG_BYTES_MAX, Chosen};
use super::options::positive_size;
use super::weights::Trained;
use super::{Failure, in_pool};
use crate::streams::{talk, write_data};
use ::plimsoll_train::checkpoint::CONFIG_FILE;
use clap::{Args, ValueEnum};
use plimsoll_data::{AnswerEnds, ChatTemplate, ModelFile, Tokenizer, TokenizerSpec, generation_ends, model_files};
use plimsoll_files::{read_text, write_whole};
use plimsoll_gguf::{
    AdapterFileType, Contents, FileType, GgufError, ModelParts, Modelfile, Summary, TokenizerParts, adapter, supported,
};
use plimsoll_units::Bytes;
use serde_json::json;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
pub(super) struct ExportArgs {
    /// A run, a checkpoint, a folder saved by `transformers`, or a name in the Hugging Face cache
    #[arg(long, value_name = "PATH|NAME")]
    checkpoint: PathBuf,
    /// Fetch the weights that `--checkpoint` names from the Hugging Face hub if they are not in the cache
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true",
        default_value = "false", action = clap::ArgAction::Set)]
    download: bool,
    /// Type of the file; adapters have `F32`, `F16` or `BF16`
    #[arg(long, value_name = "TYPE", value_enum, ignore_case = true)]
    gguf: TypeName,
    /// File to write; an existing one is replaced
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Use the moving average of the weights, if the run kept one
    #[arg(long)]
    ema: bool,
    /// `bytes`, `gpt2`, or the path of a tokenizer.json [default: the tokenizer of the run]
    #[arg(long, value_name = "NAME|PATH")]
    tokenizer: Option<String>,
    /// Also write a Modelfile for Ollama next to the file
    #[arg(long)]
    ollama: bool,
    /// Number of threads [default: all cores]
    #[arg(long, value_name = "N", value_parser = positive_size)]
    threads: Option<usize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// `--gguf`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TypeName {
    #[value(name = "F32")]
    F32,
    #[value(name = "F16")]
    F16,
    #[value(name = "BF16")]
    Bf16,
    #[value(name = "Q8_0")]
    Q8_0,
    #[value(name = "Q4_K_M")]
    Q4KM,
}

impl From<TypeName> for FileType {
    fn from(name: TypeName) -> Self {
        match name {
            TypeName::F32 => Self::F32,
            TypeName::F16 => Self::F16,
            TypeName::Bf16 => Self::Bf16,
            TypeName::Q8_0 => Self::Q8_0,
            TypeName::Q4KM => Self::Q4KM,
        }
    }
}

pub(super) fn run(args: ExportArgs) -> Result<u8, Failure> {
    let threads = super::budget::threads(args.threads)?;
    in_pool(threads, || args.export())
}

/// A tokenizer, and what ends an answer.
struct Vocabulary {
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    ends: AnswerEnds,
}

impl ExportArgs {
    fn export(&self) -> Result<u8, Failure> {
        let trained = Trained::open(&self.checkpoint, self.download)?;
        trained.check_averages(self.ema)?;
        let Trained { folder, of_model, chosen, below, .. } = trained;
        let vocabulary = self.vocabulary(&chosen, &of_model)?;
        let contents = match &below {
            Some(below) => self.adapters(&chosen, below, &folder)?,
            None => self.model(&chosen, &vocabulary, &folder)?,
        };
        let bytes = contents.bytes();
        let summary = contents.write(&self.out).map_err(|error| self.failure(error))?;
        if summary.not_finite > 0 {
            talk(format_args!("warning: {} weights are NaN or infinite", summary.not_finite));
        }
        let modelfile = match self.ollama {
            true => Some(self.write_modelfile(&vocabulary, below.as_ref())?),
            false => None,
        };
        self.report(bytes, &summary, modelfile.as_deref())
    }

    fn vocabulary(&self, chosen: &Chosen, folder: &Path) -> Result<Vocabulary, Failure> {
        let spec = match &self.tokenizer {
            Some(spec) => spec.parse::<TokenizerSpec>()?,
            None => chosen.default_tokenizer(Some(folder))?,
        };
        let tokenizer = Tokenizer::open(&spec)?;
        let template = ChatTemplate::own(&tokenizer, today())?;
        let mut ends = template.as_ref().map_or_else(|| AnswerEnds::of(&tokenizer), |own| own.answer_ends(&tokenizer));
        generation_ends(folder)?.into_iter().for_each(|id| ends.add(id));
        Ok(Vocabulary { tokenizer, template, ends })
    }

    fn model(&self, chosen: &Chosen, vocabulary: &Vocabulary, folder: &Path) -> Result<Contents, Failure> {
        let Vocabulary { tokenizer, template, ends } = vocabulary;
        let end = tokenizer.end_token();
        let parts = TokenizerParts {
            json: tokenizer_json(tokenizer, folder)?,
            template: template.as_ref().map(|template| template.text().to_owned()),
            begin: tokenizer.begin_token(),
            end,
            end_of_answer: ends.ids.iter().copied().find(|id| Some(*id) != end),
            pad: tokenizer.pad_token(),
        };
        let parts = ModelParts { name: self.name(), tokenizer: parts, pooling: pooling(folder)? };
        plimsoll_gguf::model(&chosen.config, folder, self.ema, &parts, self.gguf.into())
            .map_err(|error| self.failure(error))
    }

    fn adapters(&self, chosen: &Chosen, below: &Below, folder: &Path) -> Result<Contents, Failure> {
        let Some(file) = AdapterFileType::of(self.gguf.into()) else {
            let name = FileType::from(self.gguf).name();
            let message = format!("{} has adapters, which have no `--gguf {name}`", folder.display());
            return Err(Failure::bad_flag(message).hint("`--gguf F16` is half as large as `F32`"));
        };
        adapter(&chosen.config, &below.adapters, folder, self.ema, &self.name(), file)
            .map_err(|error| self.failure(error))
    }

    /// The name of the run, or of the folder.
    fn name(&self) -> String {
        let absolute = std::path::absolute(&self.checkpoint).unwrap_or_else(|_| self.checkpoint.clone());
        absolute.file_name().map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
    }

    /// Writes a Modelfile next to the file, and returns its path.
    fn write_modelfile(&self, vocabulary: &Vocabulary, below: Option<&Below>) -> Result<PathBuf, Failure> {
        let path = self.out.with_file_name("Modelfile");
        let own = format!("./{}", self.out.file_name().unwrap_or_default().to_string_lossy());
        let Vocabulary { tokenizer, template, ends } = vocabulary;
        let is_chatml = |template: &ChatTemplate| template.text() == ChatTemplate::chatml(today()).text();
        let texts = ends.ids.iter().map(|&id| String::from_utf8_lossy(&tokenizer.decode(&[id])).into_owned());
        let modelfile = Modelfile {
            from: below.map_or(own.clone(), |below| below.base.clone()),
            adapter: below.map(|_| own),
            is_chatml: template.as_ref().is_some_and(is_chatml),
            // A Modelfile is text: other ends are in the file itself.
            stops: texts.filter(|text| !text.is_empty() && !text.contains(char::is_control)).collect(),
        };
        write_whole(&path, modelfile.to_string().as_bytes()).map_err(io_failure(path.display()))?;
        if below.is_some() {
            talk(format_args!(
                "note: FROM in {} needs the base model as a GGUF file, or its name in Ollama",
                path.display()
            ));
        }
        Ok(path)
    }

    fn report(&self, bytes: Bytes, summary: &Summary, modelfile: Option<&Path>) -> Result<u8, Failure> {
        let tensors = summary.tensors.values().sum::<usize>();
        if self.json {
            let value = json!({
                "out": self.out,
                "bytes": bytes.0,
                "type": FileType::from(self.gguf).name(),
                "tensors": summary.tensors,
                "modelfile": modelfile,
            });
            write_data(serde_json::to_string_pretty(&value).expect("plain data"))?;
        } else {
            let kinds = summary.tensors.iter().map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>();
            write_data(format_args!("{}: {bytes}, {tensors} tensors ({})", self.out.display(), kinds.join(", ")))?;
            if let Some(modelfile) = modelfile {
                write_data(format_args!("{}: `ollama create NAME -f {0}`", modelfile.display()))?;
            }
        }
        Ok(exit_code::DONE)
    }

    fn failure(&self, error: GgufError) -> Failure {
        let message = line(&error);
        match error {
            GgufError::Checkpoint(error) => error.into(),
            GgufError::Unsupported { .. } => Failure::bad_input(message).hint(format!(
                "llama.cpp runs {}; other programs open the folder of the checkpoint itself",
                supported().collect::<Vec<_>>().join(", ")
            )),
            GgufError::Tokenizer { .. } => {
                Failure::bad_input(message).hint("`--tokenizer PATH` takes another tokenizer.json with the same ids")
            }
            GgufError::Adapters { .. } => Failure::bad_input(message)
                .hint("`plimsoll merge` adds them to the model, which can be exported; PEFT opens the folder of the checkpoint itself"),
            GgufError::NoRoom { .. } => {
                Failure::device(message).hint("free some space, or write `--out` to another disk")
            }
            GgufError::Io { source, .. } if source.kind() == ErrorKind::NotFound => {
                Failure::device(message).hint("create the folder of `--out` first")
            }
            GgufError::Io { .. } => {
                Failure::device(message).hint("`--out` needs a file in a folder that you can write")
            }
        }
    }
}

/// The text of a tokenizer.json, also for a built-in tokenizer.
fn tokenizer_json(tokenizer: &Tokenizer, folder: &Path) -> Result<String, Failure> {
    let files = model_files(tokenizer, None, None, Some(folder))?;
    let file = files.iter().find(|file: &&ModelFile| file.name == "tokenizer.json");
    let mut text = Vec::new();
    file.expect("a tokenizer has its file").write(&mut text).map_err(io_failure("tokenizer.json"))?;
    String::from_utf8(text).map_err(|error| Failure::bad_input(format!("tokenizer.json: {error}")))
}

/// The text of the configuration in which sentence-transformers says how a vector is made of a text's tokens.
fn pooling(folder: &Path) -> Result<Option<String>, Failure> {
    let path = folder.join("1_Pooling").join(CONFIG_FILE);
    match read_text(&path, CONFIG_BYTES_MAX) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io_failure(path.display())(error)),
    }
}
