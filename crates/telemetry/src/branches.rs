//! The branches of a run. A run that is resumed from a checkpoint other than its newest starts a branch; the steps that
//! older branches made after that checkpoint are abandoned. A file next to the checkpoints records where each branch
//! started; each checkpoint, and each record of the journal, stores its branch.
//!
//! ```text
//!   branch 0   1 ──── 5 ──── 10 ──── 15     resumed from step 5:
//!   branch 1          └───── 10 ──── 15     the lineage of branch 1 is 0 up to step 5, then 1
//! ```

use plimsoll_files::{Disk, read_text_inside};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// The file with the branches, in the folder of the checkpoints. Absent if the run never branched.
pub const BRANCHES_FILE: &str = "branches.json";

/// Enough for far more branches than any run has.
const LONGEST: Bytes = Bytes(1 << 20);

/// Why branches can't be read or written.
#[derive(Debug, thiserror::Error)]
pub enum BranchesError {
    /// The system refused.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The file's content is invalid.
    #[error("{path} is damaged: {problem}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
}

/// All branches of a run. The first, number 0, is not stored.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Branches {
    /// Numbered consecutively from 1.
    branches: Vec<Branch>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Branch {
    number: u64,
    /// Where it started; `None` if from scratch.
    from: Option<Origin>,
}

/// The checkpoint where a branch starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Its branch.
    pub branch: u64,
    /// Its step.
    pub step: u64,
}

impl Branches {
    /// Reads the branches of a run from its folder of checkpoints. Errors: `Io`, `Damaged`.
    pub fn read(checkpoints: &Path) -> Result<Self, BranchesError> {
        let path = checkpoints.join(BRANCHES_FILE);
        let text = match read_text_inside(&path, 1, LONGEST) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::default()),
            Err(source) => return Err(BranchesError::Io { path, source }),
        };
        let damaged = |problem: String| BranchesError::Damaged { path: path.clone(), problem };
        let read = serde_json::from_str::<Self>(&text).map_err(|error| damaged(error.to_string()))?;
        let is_sound =
            |(i, b): (usize, &Branch)| b.number == i as u64 + 1 && b.from.is_none_or(|from| from.branch < b.number);
        match read.branches.iter().enumerate().all(is_sound) {
            true => Ok(read),
            false => Err(damaged("its branches are not in order".to_owned())),
        }
    }

    /// The newest branch.
    pub fn current(&self) -> u64 {
        self.branches.len() as u64
    }

    /// Starts a branch in memory; call `write` to store it.
    pub fn begin(&mut self, from: Option<Origin>) {
        self.branches.push(Branch { number: self.current() + 1, from });
    }

    /// Makes the branches durable. Errors: `Io`.
    pub fn write(&self, disk: &Disk, checkpoints: &Path) -> Result<(), BranchesError> {
        let path = checkpoints.join(BRANCHES_FILE);
        let text = serde_json::to_string_pretty(self).expect("branches are plain data");
        disk.replace(&path, text.as_bytes()).map_err(|source| BranchesError::Io { path, source })
    }

    /// The steps of all branches that lead to the newest one.
    pub fn lineage(&self) -> Lineage {
        let mut spans = Vec::new();
        let (mut branch, mut until) = (self.current(), u64::MAX);
        loop {
            let from = branch.checked_sub(1).and_then(|index| self.branches[index as usize].from);
            let after = from.map(|from| from.step.min(until));
            spans.push(Span { branch, after, until });
            let (Some(from), Some(after)) = (from, after) else { return Lineage(spans) };
            (branch, until) = (from.branch, after);
        }
    }
}

/// The steps of a branch after `from` and up to `to`. A branch from scratch includes step 0: a run that was stopped
/// before its first step has a checkpoint of step 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    branch: u64,
    after: Option<u64>,
    until: u64,
}

/// A branch, with the parts of its ancestors up to where it started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lineage(Vec<Span>);

impl Lineage {
    /// Whether a branch's step belongs to the lineage.
    pub fn has(&self, branch: u64, step: u64) -> bool {
        let is_in = |span: &Span| span.after.is_none_or(|after| after < step) && step <= span.until;
        self.0.iter().any(|span| span.branch == branch && is_in(span))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lineage_is_a_branch_with_its_ancestors() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut branches = Branches::read(folder.path()).expect("no branches yet");
        assert!([0, 1, u64::MAX].iter().all(|step| branches.lineage().has(0, *step)));
        let begins = [Some((0, 10)), Some((1, 20)), Some((0, 15)), None, Some((2, 12))];
        let begins = begins.map(|from| from.map(|(branch, step)| Origin { branch, step }));
        let steps = |branches: &Branches| {
            let lineage = branches.lineage();
            (0..=branches.current()).map(|b| (1..=30).filter(|s| lineage.has(b, *s)).count()).collect::<Vec<_>>()
        };
        let expected: [&[usize]; 5] =
            [&[10, 20], &[10, 10, 10], &[15, 0, 0, 15], &[0, 0, 0, 0, 30], &[10, 2, 0, 0, 0, 18]];
        for (from, expected) in begins.into_iter().zip(expected) {
            branches.begin(from);
            branches.write(&Disk::default(), folder.path()).expect("written");
            assert_eq!(steps(&branches), expected, "{from:?}");
            let roots = (0..=branches.current()).filter(|b| branches.lineage().has(*b, 0)).collect::<Vec<_>>();
            assert_eq!(roots, [if branches.current() == 4 { 4 } else { 0 }], "{from:?}");
            assert_eq!(Branches::read(folder.path()).expect("what was written"), branches);
        }
    }

    #[test]
    fn invalid_branches_are_refused() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for text in [
            "",
            "[]",
            r#"{"branches":[{"number":2,"from":null}]}"#,
            r#"{"branches":[{"number":1,"from":{"branch":1,"step":3}}]}"#,
            r#"{"branches":[{"number":1,"from":{"branch":0,"step":-3}}]}"#,
        ] {
            std::fs::write(folder.path().join(BRANCHES_FILE), text).expect("written");
            assert!(matches!(Branches::read(folder.path()), Err(BranchesError::Damaged { .. })), "{text}");
        }
    }
}
