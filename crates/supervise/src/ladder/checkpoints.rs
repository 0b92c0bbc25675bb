//! Finds a trainer's newest complete checkpoint by checking its files: a kill or a full disk may leave an incomplete
//! one.
//! Not here: resuming from it (`resume.rs`).

use plimsoll_files::{open_regular, read_text};
use plimsoll_units::Bytes;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Size limit of a state or index file; real ones are far smaller.
const LONGEST_TEXT: Bytes = Bytes::mib(256);
/// Limit on the number of checkpoints to look at.
const MOST: usize = 1000;

/// The newest complete checkpoint in a folder, and the incomplete ones that were skipped.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckpointSearch {
    /// The newest complete one, and its step or epoch.
    pub newest: Option<(PathBuf, u64)>,
    /// Newer, incomplete ones with the reason; the newest first.
    pub damaged: Vec<(PathBuf, String)>,
}

/// Checkpoints of the Hugging Face trainer, which axolotl and LLaMA-Factory also use: `checkpoint-STEP`.
pub fn hugging_face(folder: &Path) -> CheckpointSearch {
    newest(folder, "checkpoint-", hugging_face_problem)
}

/// Checkpoints of torchtune: `epoch_N`, with the recipe state in the same folder.
pub fn torchtune(folder: &Path) -> CheckpointSearch {
    newest(folder, "epoch_", |path, _| {
        weights_problem(path)?;
        archive_problem(&folder.join("recipe_state/recipe_state.pt"))
    })
}

fn newest(folder: &Path, prefix: &str, problem: impl Fn(&Path, u64) -> Result<(), String>) -> CheckpointSearch {
    let names = fs::read_dir(folder).into_iter().flatten().flatten().take(MOST);
    let mut all: Vec<(u64, PathBuf)> = names
        .filter_map(|entry| Some((entry.file_name().to_str()?.strip_prefix(prefix)?.parse().ok()?, entry.path())))
        .collect();
    all.sort();
    let mut found = CheckpointSearch::default();
    for (step, path) in all.into_iter().rev() {
        match problem(&path, step) {
            Ok(()) => {
                found.newest = Some((path, step));
                break;
            }
            Err(what) => found.damaged.push((path, what)),
        }
    }
    found
}

fn hugging_face_problem(path: &Path, step: u64) -> Result<(), String> {
    let state = json(&path.join("trainer_state.json"))?;
    match state.get("global_step").and_then(Value::as_u64) {
        Some(stored) if stored == step => {}
        stored => {
            return Err(format!(
                "trainer_state.json is from step {}",
                stored.map_or("?".to_owned(), |t| t.to_string())
            ));
        }
    } // DeepSpeed stores weights and moments in its own folder, and names the folder in `latest` once it is complete.
    if path.join("latest").exists() {
        let latest = read_text(&path.join("latest"), Bytes(4096)).map_err(|error| format!("latest: {error}"))?;
        return deepspeed_problem(&path.join(latest.trim()));
    }
    weights_problem(path)?;
    let optimizer = ["optimizer.pt", "optimizer.bin"].iter().map(|name| path.join(name)).find(|path| path.exists());
    match optimizer {
        Some(optimizer) => archive_problem(&optimizer),
        // FSDP stores a folder of shards and writes its index last.
        None if path.join("optimizer_0/.metadata").exists() => Ok(()),
        None => Err("optimizer.pt is missing: only the model was saved".to_owned()),
    }
}

fn deepspeed_problem(folder: &Path) -> Result<(), String> {
    let files = fs::read_dir(folder).map_err(|error| format!("{}: {error}", name(folder)))?;
    let mut states = 0;
    for file in files.flatten().filter(|file| file.file_name().to_string_lossy().ends_with(".pt")) {
        archive_problem(&file.path())?;
        states += 1;
    }
    if states == 0 { Err(format!("{} has no state files", name(folder))) } else { Ok(()) }
}

/// Checks the weights of a model or an adapter: one file, or the shards of an index.
fn weights_problem(path: &Path) -> Result<(), String> {
    const SINGLE: [&str; 4] =
        ["model.safetensors", "adapter_model.safetensors", "pytorch_model.bin", "adapter_model.bin"];
    const INDEXES: [&str; 2] = ["model.safetensors.index.json", "pytorch_model.bin.index.json"];
    if let Some(index) = INDEXES.iter().map(|index| path.join(index)).find(|index| index.exists()) {
        let index = json(&index)?;
        let shards = index.get("weight_map").and_then(Value::as_object).ok_or("the index lists no shards")?;
        let shards: BTreeSet<&str> = shards.values().filter_map(Value::as_str).collect();
        // Use only the file name: a path could point outside the checkpoint.
        return shards.into_iter().try_for_each(|shard| file_problem(&path.join(name(Path::new(shard)))));
    }
    match SINGLE.iter().map(|name| path.join(name)).find(|path| path.exists()) {
        Some(file) => file_problem(&file),
        None if path.join("pytorch_model_fsdp_0/.metadata").exists() => Ok(()),
        None => Err("the weights are missing".to_owned()),
    }
}

fn file_problem(path: &Path) -> Result<(), String> {
    if path.extension().is_some_and(|extension| extension == "safetensors") {
        safetensors_problem(path)
    } else {
        archive_problem(path)
    }
}

/// Checks a safetensors file: the length of the header, the header, and the bytes of its tensors.
/// Source: the format description by Hugging Face.
fn safetensors_problem(path: &Path) -> Result<(), String> {
    let check = || -> io::Result<bool> {
        let mut file = open_regular(path)?;
        let length = file.metadata()?.len();
        let mut start = [0; 8];
        file.read_exact(&mut start)?;
        let header = u64::from_le_bytes(start);
        if header > LONGEST_TEXT.0 {
            return Ok(false);
        }
        let mut text = Vec::new();
        file.take(header).read_to_end(&mut text)?;
        let tensors: Value = serde_json::from_slice(&text)?;
        let ends =
            tensors.as_object().into_iter().flatten().filter_map(|(_, tensor)| tensor["data_offsets"][1].as_u64());
        Ok(ends.max().unwrap_or(0).checked_add(8 + header) == Some(length))
    };
    verdict(path, check())
}

/// Checks a PyTorch file: a ZIP archive since 1.6, whose directory is at the end. Accepts older formats unchecked.
fn archive_problem(path: &Path) -> Result<(), String> {
    let check = || -> io::Result<bool> {
        let mut file = open_regular(path)?;
        let mut start = [0; 2];
        file.read_exact(&mut start)?;
        Ok(start != *b"PK" || has_directory(&mut file)?)
    };
    verdict(path, check())
}

/// Whether the file ends with a complete end-of-central-directory record, including its comment.
/// Source: PKWARE's APPNOTE, 4.3.16.
fn has_directory(file: &mut File) -> io::Result<bool> {
    const RECORD: usize = 22;
    const LONGEST: u64 = RECORD as u64 + 65_535;
    let length = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(length.saturating_sub(LONGEST)))?;
    let mut tail = Vec::new();
    file.take(LONGEST).read_to_end(&mut tail)?;
    let mut records = tail.windows(RECORD).enumerate().filter(|(_, record)| record.starts_with(b"PK\x05\x06"));
    Ok(records.any(|(at, record)| {
        let comment = u16::from_le_bytes([record[20], record[21]]);
        at + RECORD + usize::from(comment) == tail.len()
    }))
}

fn verdict(path: &Path, check: io::Result<bool>) -> Result<(), String> {
    match check {
        Ok(true) => Ok(()),
        Ok(false) => Err(format!("{} is truncated", name(path))),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(format!("{} is truncated", name(path))),
        Err(error) => Err(format!("{}: {error}", name(path))),
    }
}

fn json(path: &Path) -> Result<Value, String> {
    let text = read_text(path, LONGEST_TEXT).map_err(|error| format!("{}: {error}", name(path)))?;
    serde_json::from_str(&text).map_err(|_| format!("{} is truncated", name(path)))
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARCHIVE: &[u8] = b"PK\x03\x04 data PK\x05\x06\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

    fn tensors() -> Vec<u8> {
        let header = br#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
        [&(header.len() as u64).to_le_bytes()[..], header, &[0; 8]].concat()
    }

    fn write(path: &Path, bytes: &[u8]) {
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, bytes).expect("written");
    }

    fn checkpoint(folder: &Path, step: u64) -> PathBuf {
        let path = folder.join(format!("checkpoint-{step}"));
        write(&path.join("trainer_state.json"), format!("{{\"global_step\": {step}}}").as_bytes());
        write(&path.join("model.safetensors"), &tensors());
        write(&path.join("optimizer.pt"), ARCHIVE);
        path
    }

    #[test]
    fn the_newest_complete_checkpoint_is_found_by_number() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        assert_eq!(hugging_face(&folder.path().join("none")), CheckpointSearch::default());
        for step in [90, 100, 1000] {
            checkpoint(folder.path(), step);
        }
        write(&folder.path().join("checkpoint-last/x"), b"");
        let found = hugging_face(folder.path());
        assert_eq!(
            found,
            CheckpointSearch { newest: Some((folder.path().join("checkpoint-1000"), 1000)), damaged: vec![] }
        );
    }

    /// The states in which a kill can leave a checkpoint, and the reason reported for each.
    #[test]
    fn an_incomplete_checkpoint_is_skipped_and_reported() {
        let (tensors, half) = (tensors(), |bytes: &[u8]| bytes[..bytes.len() - 3].to_vec());
        let breaks: [(&str, Option<Vec<u8>>, &str); 8] = [
            ("trainer_state.json", None, "trainer_state.json: "),
            ("trainer_state.json", Some(b"{\"glob".to_vec()), "trainer_state.json is truncated"),
            ("trainer_state.json", Some(b"{\"global_step\": 7}".to_vec()), "trainer_state.json is from step 7"),
            ("model.safetensors", None, "the weights are missing"),
            ("model.safetensors", Some(half(&tensors)), "model.safetensors is truncated"),
            ("model.safetensors", Some(vec![]), "model.safetensors is truncated"),
            ("optimizer.pt", Some(half(ARCHIVE)), "optimizer.pt is truncated"),
            ("optimizer.pt", None, "optimizer.pt is missing"),
        ];
        for (file, contents, reason) in breaks {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let (whole, broken) = (checkpoint(folder.path(), 10), checkpoint(folder.path(), 20));
            match contents {
                Some(bytes) => fs::write(broken.join(file), bytes).expect("written"),
                None => fs::remove_file(broken.join(file)).expect("removed"),
            }
            let found = hugging_face(folder.path());
            assert_eq!(found.newest, Some((whole, 10)), "{file}");
            assert!(
                found.damaged.len() == 1 && found.damaged[0].1.starts_with(reason),
                "{:?}, not {reason}",
                found.damaged
            );
        }
    }

    #[test]
    fn all_shards_and_deepspeeds_folder_must_be_complete() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = checkpoint(folder.path(), 5);
        fs::remove_file(path.join("model.safetensors")).expect("removed");
        let index = br#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "../model-2.safetensors"}}"#;
        write(&path.join("model.safetensors.index.json"), index);
        write(&path.join("model-1.safetensors"), &tensors());
        assert_eq!(hugging_face(folder.path()).newest, None, "a shard is missing");
        write(&path.join("model-2.safetensors"), &tensors());
        assert!(hugging_face(folder.path()).newest.is_some());
        write(&path.join("latest"), b"global_step5\n");
        assert_eq!(hugging_face(folder.path()).newest, None, "DeepSpeed's states are missing");
        write(&path.join("global_step5/zero_pp_rank_0_mp_rank_00_optim_states.pt"), ARCHIVE);
        assert!(hugging_face(folder.path()).newest.is_some());
    }

    #[test]
    fn torchtune_epochs_need_the_recipe_state() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        write(&folder.path().join("epoch_0/model.safetensors"), &tensors());
        assert_eq!(torchtune(folder.path()).newest, None);
        write(&folder.path().join("recipe_state/recipe_state.pt"), ARCHIVE);
        assert_eq!(torchtune(folder.path()).newest, Some((folder.path().join("epoch_0"), 0)));
    }
}
