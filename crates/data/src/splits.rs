//! Folders laid out like Hugging Face's `datasets`: tables or rows in files named after their splits, with a README and
//! metadata files that are not data. Selects the files of the training split.
//!
//! ```text
//!   README.md  dataset_infos.json  data/train-00000-of-00002.parquet  data/test-00000-of-00001.parquet
//!                                       ▔▔▔▔▔
//! ```

use std::path::{Path, PathBuf};

const DESCRIPTIONS: &[&str] = &["dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"];
const TRAIN: &[&str] = &["train", "training"];
const OTHERS: &[&str] = &["validation", "valid", "val", "dev", "test", "testing", "eval", "evaluation"];
const ROWS: &[&str] = &["parquet", "jsonl", "ndjson", "jsonlines", "json", "gz", "zst"];

/// The training files of a data set.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TrainingFiles {
    pub files: Vec<PathBuf>,
    /// Number of row files in other splits.
    pub left_out: usize,
}

/// Selects from the files below a folder; `None` if it is not laid out like this.
pub(crate) fn training_files(folder: &Path, paths: &[PathBuf]) -> Option<TrainingFiles> {
    let is_description = |path: &PathBuf| path.file_name().is_some_and(|name| DESCRIPTIONS.iter().any(|d| name == *d));
    let has_extension = |path: &PathBuf, wanted: &[&str]| {
        path.extension().is_some_and(|e| wanted.contains(&e.to_string_lossy().to_ascii_lowercase().as_str()))
    };
    if !paths.iter().any(|path| is_description(path) || has_extension(path, &["parquet"])) {
        return None;
    }
    let of_rows = |path: &&PathBuf| has_extension(path, ROWS) && !is_description(path);
    let files: Vec<&PathBuf> = paths.iter().filter(of_rows).collect();
    let is_train = |path: &&&PathBuf| split_of(path.strip_prefix(folder).unwrap_or(path)) == Some(true);
    let train: Vec<&PathBuf> = files.iter().filter(is_train).copied().collect();
    let taken = if train.is_empty() { files.clone() } else { train };
    Some(TrainingFiles { left_out: files.len() - taken.len(), files: taken.into_iter().cloned().collect() })
}

/// True if a path names the training split, false if another split, `None` if it names no split. The name nearest to
/// the file wins.
fn split_of(path: &Path) -> Option<bool> {
    let names = path.components().rev().map(|component| component.as_os_str().to_string_lossy().to_ascii_lowercase());
    let split = |name: String| {
        let mut words = name.split(|c: char| !c.is_ascii_alphanumeric());
        words.find_map(|word| TRAIN.contains(&word).then_some(true).or(OTHERS.contains(&word).then_some(false)))
    };
    names.into_iter().find_map(split)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(paths: &[&str]) -> Option<(Vec<String>, usize)> {
        let folder = Path::new("test/set");
        let paths: Vec<PathBuf> = paths.iter().map(|path| folder.join(path)).collect();
        let found = training_files(folder, &paths)?;
        let name = |path: &PathBuf| path.strip_prefix(folder).unwrap().to_string_lossy().replace('\\', "/");
        Some((found.files.iter().map(name).collect(), found.left_out))
    }

    #[test]
    fn only_the_training_split_is_taken() {
        let parts = ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"];
        let all = [&parts[..], &["README.md", "data/test-00000-of-00001.parquet", "data/validation.parquet"]].concat();
        assert_eq!(taken(&all), Some((parts.map(str::to_owned).to_vec(), 2)));
        let json = ["dataset_infos.json", "train/0000.json", "dev/0000.json", "LICENSE.txt"];
        assert_eq!(taken(&json), Some((vec!["train/0000.json".to_owned()], 1)));
        assert_eq!(taken(&["README.md", "part.parquet"]), Some((vec!["part.parquet".to_owned()], 0)));
        assert_eq!(taken(&["latest.parquet", "trainer.parquet"]).unwrap().0.len(), 2, "words, not parts of them");
        assert_eq!(taken(&["state.json", "dataset_info.json", "data-00000-of-00001.arrow"]), Some((vec![], 0)));
        assert_eq!(taken(&["README.md", "train.jsonl", "test.jsonl"]), None);
    }
}
