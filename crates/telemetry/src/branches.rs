//! The branches of a run. A run that is resumed from a checkpoint which is not its newest begins a branch; what the
//! older branches did after that step is left behind. Which branch began where is kept beside the checkpoints; each
//! checkpoint, and each record of the journal, says which branch it is of.
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

/// The file with the branches, in the folder of the checkpoints. A run that never branched has none.
pub const BRANCHES_FILE: &str = "branches.json";

/// Room for far more branches than anybody begins.
const LONGEST: Bytes = Bytes(1 << 20);

/// Why branches can't be read or written.
#[derive(Debug, thiserror::Error)]
pub enum BranchesError {
    /// The system refused.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// What is there makes no sense.
    #[error("{path} is damaged: {problem}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
}

/// All branches of a run. The first, number 0, is not written down.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Branches {
    /// Each with the number after the one before, from 1.
    branches: Vec<Branch>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Branch {
    number: u64,
    /// Where it began; none if from scratch.
    from: Option<Origin>,
}

/// A checkpoint that a branch begins at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Its branch.
    pub branch: u64,
    /// Its step.
    pub step: u64,
}

impl Branches {
    /// Reads the branches of a run whose checkpoints lie here. Errors: `Io`, `Damaged`.
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

    /// Begins a branch; it is not written yet.
    pub fn begin(&mut self, from: Option<Origin>) {
        self.branches.push(Branch { number: self.current() + 1, from });
    }

    /// Makes the branches durable. Errors: `Io`.
    pub fn write(&self, disk: &Disk, checkpoints: &Path) -> Result<(), BranchesError> {
        let path = checkpoints.join(BRANCHES_FILE);
        let text = serde_json::to_string_pretty(self).expect("branches are plain data");
        disk.replace(&path, text.as_bytes()).map_err(|source| BranchesError::Io { path, source })
    }

    /// Which steps of which branches make up the newest.
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

/// The steps after one and up to another, of a branch. One from scratch has step 0 too: a run that was stopped before its
/// first step has a checkpoint of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    branch: u64,
    after: Option<u64>,
    until: u64,
}

/// A branch with what it has in common with those that it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lineage(Vec<Span>);

impl Lineage {
    /// Whether what a branch did in a step is a part of it.
    pub fn has(&self, branch: u64, step: u64) -> bool {
        let is_in = |span: &Span| span.after.is_none_or(|after| after < step) && step <= span.until;
        self.0.iter().any(|span| span.branch == branch && is_in(span))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lineage_is_a_branch_and_what_it_came_from() {
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
    fn branches_that_make_no_sense_are_refused() {
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
