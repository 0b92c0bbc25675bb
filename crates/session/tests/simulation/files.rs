//! The run's disk between sessions: what was reported as saved, and what a power cut leaves.

use crate::checks;
use crate::rng::Rng;
use crate::world::World;
use plimsoll_fake_disk::{Model, Recorder, UnsyncedData, write_tree};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The run's disk.
pub struct Files {
    model: Model,
    /// Records operations on it.
    pub recorder: Arc<Recorder>,
    /// The folder that stands for it.
    pub root: PathBuf,
    /// The newest step that was reported as saved.
    pub promised: Option<u64>,
    cuts: u32,
}

impl Files {
    /// An empty disk in this folder.
    pub fn new(parent: &Path) -> Self {
        let root = parent.join("disk-0");
        std::fs::create_dir(&root).expect("a new folder");
        Self { model: Model::new(&root), recorder: Arc::default(), root, promised: None, cuts: 0 }
    }

    /// The run's folder.
    pub fn run(&self) -> PathBuf {
        self.root.join("run")
    }

    /// Brings the model up to date with the disk.
    fn catch_up(&mut self) {
        let recorded = self.recorder.take();
        for (done, operation) in recorded.iter().enumerate() {
            self.model.apply(operation, &recorded[done + 1..]);
        }
    }

    /// Records that a checkpoint was reported as saved, and checks that it is durable.
    pub fn keep_promise(&mut self, world: &World, step: u64, checkpoint: &Path) {
        self.catch_up();
        self.promised = Some(step);
        let tree = self.model.after_a_cut(&vec![false; self.model.pending()], |_| UnsyncedData::Nothing);
        let lost = world.lock().trace.iter().any(|line| line.contains("journal.jsonl"));
        let problem = checks::promise(&tree, step, checkpoint, lost);
        world.check(problem);
    }

    /// Replaces the disk by what a power cut leaves of it.
    pub fn cut(&mut self, rng: &mut Rng) {
        self.catch_up();
        let there = (0..self.model.pending()).map(|_| rng.chance(0.5)).collect::<Vec<_>>();
        let amounts = [UnsyncedData::Nothing, UnsyncedData::Half, UnsyncedData::All];
        let tree = self.model.after_a_cut(&there, |_| rng.pick(&amounts));
        self.cuts += 1;
        self.root = self.root.with_file_name(format!("disk-{}", self.cuts));
        std::fs::create_dir(&self.root).expect("a new folder");
        write_tree(&tree, &self.root).expect("a disk in memory");
        self.model = Model::of(&self.root, &tree);
    }
}
