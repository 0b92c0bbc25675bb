//! Folders as Hugging Face's `datasets` lays them out: tables or rows in files that are named after their splits, beside a
//! README and descriptions that are no data. Of these, what is to be trained on is taken.
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

/// The files of a data set that are trained on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TrainingFiles {
    pub files: Vec<PathBuf>,
    /// How many files of rows are of other splits.
    pub left_out: usize,
}

/// Those of the files below a folder; none if it is not laid out like this.
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

/// Whether a path names the split to train on, or another; none if it names no split. The nearest name counts.
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
    fn the_split_to_train_on_is_taken_without_what_is_beside_it() {
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
