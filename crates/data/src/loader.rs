//! Makes the batches of the next steps on its own thread, while the caller works on the current step.
//! Not here: the contents of a batch (`dataset.rs`). The loader returns the batches of `Dataset::step`, in the order of
//! the steps.

use crate::quiet::message_of;
use crate::{DataError, Dataset, StepBatches};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::thread::JoinHandle;

/// Batches from a given step on. Dropping it ends its thread.
#[derive(Debug)]
pub struct Loader {
    /// `None` only during drop.
    ready: Option<Receiver<Result<StepBatches, DataError>>>,
    spent: Sender<StepBatches>,
    thread: Option<JoinHandle<()>>,
}

impl Loader {
    /// Makes batches from `first_step` (counted from 0) on, up to `ahead` steps ahead of the caller.
    /// Errors: `LoaderFailed` if no thread can be started.
    /// Panics unless `micro_batch` divides `global_batch` and neither is 0.
    pub fn start(
        dataset: Arc<Dataset>,
        first_step: u64,
        global_batch: usize,
        micro_batch: usize,
        ahead: usize,
    ) -> Result<Self, DataError> {
        assert!(micro_batch > 0 && global_batch.is_multiple_of(micro_batch), "{micro_batch} of {global_batch}");
        Self::start_with(first_step, ahead, move |step, batches| {
            dataset.fill_step(step, global_batch, micro_batch, batches)
        })
    }

    fn start_with(
        first_step: u64,
        ahead: usize,
        mut fill: impl FnMut(u64, &mut StepBatches) -> Result<(), DataError> + Send + 'static,
    ) -> Result<Self, DataError> {
        let (to_caller, ready) = sync_channel(ahead.max(1));
        let (spent, returned) = channel::<StepBatches>();
        let work = move || {
            for step in first_step.. {
                let mut batches = returned.try_recv().unwrap_or_default();
                let filled = catch_unwind(AssertUnwindSafe(|| fill(step, &mut batches)))
                    .unwrap_or_else(|panic| Err(DataError::LoaderFailed { message: message_of(&*panic) }));
                let failed = filled.is_err();
                if to_caller.send(filled.map(|()| batches)).is_err() || failed {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("loader".to_owned()).spawn(work);
        let thread = thread.map_err(|error| DataError::NoThread { what: "loading data", reason: error.to_string() })?;
        Ok(Self { ready: Some(ready), spent, thread: Some(thread) })
    }

    /// Returns the batches of the next step; waits for them if necessary.
    /// Errors: the thread's error, once; after that `LoaderFailed`.
    pub fn next_step(&self) -> Result<StepBatches, DataError> {
        let ended = || DataError::LoaderFailed { message: "it has ended after an earlier failure".to_owned() };
        self.ready.as_ref().and_then(|ready| ready.recv().ok()).unwrap_or_else(|| Err(ended()))
    }

    /// Returns batches to the loader, which reuses their memory.
    pub fn give_back(&self, batches: StepBatches) {
        // If the thread has ended, the memory is not needed.
        let _ = self.spent.send(batches);
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        // The thread may be blocked on a full channel; without a receiver, it ends.
        self.ready = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Batches, TokenStore};
    use plimsoll_units::Bytes;

    #[test]
    fn loaded_batches_equal_those_of_the_dataset() {
        let ids: Vec<u32> = (0..5000).collect();
        let store = TokenStore::in_memory(&ids, 5000, Bytes(0));
        let dataset = Arc::new(Dataset::Windows(Batches::new(store, 16, 3).unwrap()));
        let loader = Loader::start(Arc::clone(&dataset), 40, 6, 2, 2).unwrap();
        for step in 40..90 {
            let batches = loader.next_step().unwrap();
            assert_eq!(batches, dataset.step(step, 6, 2).unwrap());
            loader.give_back(batches);
        }
        drop(loader);
        assert_eq!(Arc::strong_count(&dataset), 1, "the thread has ended");
    }

    #[test]
    fn a_failure_reaches_the_caller() {
        let fill = |step: u64, _: &mut StepBatches| match step {
            0..3 => Ok(()),
            _ => Err(DataError::NothingNamed),
        };
        let loader = Loader::start_with(1, 1, fill).unwrap();
        assert!(loader.next_step().is_ok() && loader.next_step().is_ok());
        assert!(matches!(loader.next_step(), Err(DataError::NothingNamed)));
        assert!(matches!(loader.next_step(), Err(DataError::LoaderFailed { .. })));
    }

    #[test]
    fn a_panic_reaches_the_caller() {
        let loader = Loader::start_with(0, 1, |step, _| panic!("step {step} is cursed")).unwrap();
        assert!(loader.next_step().unwrap_err().to_string().contains("step 0 is cursed"));
    }
}
