//! Makes the batches of the next steps on its own thread, while the caller works on the current step. If the system
//! refuses the thread, the caller makes each batch when it needs it.
//! Not here: the contents of a batch (`dataset.rs`). The loader returns the batches of `Dataset::step`, in the order of
//! the steps.

use crate::quiet::message_of;
use crate::{DataError, Dataset, StepBatches};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::thread::JoinHandle;

/// Makes the batches of a step.
type Fill = Box<dyn FnMut(u64, &mut StepBatches) -> Result<(), DataError> + Send>;

/// Batches from a given step on. Dropping it ends its thread.
pub struct Loader(Maker);

/// Where batches are made.
enum Maker {
    Thread(LoaderThread),
    Caller {
        fill: Fill,
        next_step: u64,
        /// Memory to reuse.
        spent: StepBatches,
    },
}

struct LoaderThread {
    /// `None` only during drop.
    ready: Option<Receiver<Result<StepBatches, DataError>>>,
    spent: Sender<StepBatches>,
    thread: Option<JoinHandle<()>>,
}

impl Loader {
    /// Makes batches from `first_step` (counted from 0) on, up to `ahead` steps ahead of the caller.
    /// Panics unless `micro_batch` divides `global_batch` and neither is 0.
    pub fn start(
        dataset: Arc<Dataset>,
        first_step: u64,
        global_batch: usize,
        micro_batch: usize,
        ahead: usize,
    ) -> Self {
        assert!(micro_batch > 0 && global_batch.is_multiple_of(micro_batch), "{micro_batch} of {global_batch}");
        Self::start_with(first_step, ahead, move |step, batches| {
            dataset.fill_step(step, global_batch, micro_batch, batches)
        })
    }

    fn start_with(
        first_step: u64,
        ahead: usize,
        fill: impl FnMut(u64, &mut StepBatches) -> Result<(), DataError> + Clone + Send + 'static,
    ) -> Self {
        match LoaderThread::start(first_step, ahead, Box::new(fill.clone())) {
            Ok(thread) => Self(Maker::Thread(thread)),
            Err(_) => Self::in_caller(first_step, Box::new(fill)),
        }
    }

    fn in_caller(next_step: u64, fill: Fill) -> Self {
        Self(Maker::Caller { fill, next_step, spent: StepBatches::default() })
    }

    /// Returns the batches of the next step; waits for them if necessary.
    /// Errors: those of the dataset, once; after that `LoaderFailed`.
    pub fn next_step(&mut self) -> Result<StepBatches, DataError> {
        match &mut self.0 {
            Maker::Thread(thread) => thread.next_step(),
            Maker::Caller { fill, next_step, spent } => {
                let batches = filled(fill, *next_step, std::mem::take(spent))?;
                *next_step += 1;
                Ok(batches)
            }
        }
    }

    /// Returns batches to the loader, which reuses their memory.
    pub fn give_back(&mut self, batches: StepBatches) {
        match &mut self.0 {
            // If the thread has ended, the memory is not needed.
            Maker::Thread(thread) => drop(thread.spent.send(batches)),
            Maker::Caller { spent, .. } => *spent = batches,
        }
    }
}

/// The batches of a step. A panic is an error.
fn filled(fill: &mut Fill, step: u64, mut batches: StepBatches) -> Result<StepBatches, DataError> {
    catch_unwind(AssertUnwindSafe(|| fill(step, &mut batches)))
        .unwrap_or_else(|panic| Err(DataError::LoaderFailed { message: message_of(&*panic) }))?;
    Ok(batches)
}

impl LoaderThread {
    fn start(first_step: u64, ahead: usize, mut fill: Fill) -> std::io::Result<Self> {
        let (to_caller, ready) = sync_channel(ahead.max(1));
        let (spent, returned) = channel::<StepBatches>();
        let work = move || {
            for step in first_step.. {
                let batches = filled(&mut fill, step, returned.try_recv().unwrap_or_default());
                let failed = batches.is_err();
                if to_caller.send(batches).is_err() || failed {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("loader".to_owned()).spawn(work)?;
        Ok(Self { ready: Some(ready), spent, thread: Some(thread) })
    }

    fn next_step(&self) -> Result<StepBatches, DataError> {
        let ended = || DataError::LoaderFailed { message: "it has ended after an earlier failure".to_owned() };
        self.ready.as_ref().and_then(|ready| ready.recv().ok()).unwrap_or_else(|| Err(ended()))
    }
}

impl Drop for LoaderThread {
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
        let there = Arc::clone(&dataset);
        let fill = move |step, batches: &mut StepBatches| there.fill_step(step, 6, 2, batches);
        for mut loader in [Loader::start(Arc::clone(&dataset), 40, 6, 2, 2), Loader::in_caller(40, Box::new(fill))] {
            for step in 40..90 {
                let batches = loader.next_step().unwrap();
                assert_eq!(batches, dataset.step(step, 6, 2).unwrap());
                loader.give_back(batches);
            }
        }
        assert_eq!(Arc::strong_count(&dataset), 1, "the thread has ended");
    }

    #[test]
    fn a_failure_reaches_the_caller() {
        let fill = |step: u64, _: &mut StepBatches| match step {
            0..3 => Ok(()),
            _ => Err(DataError::NothingNamed),
        };
        let mut loader = Loader::start_with(1, 1, fill);
        assert!(loader.next_step().is_ok() && loader.next_step().is_ok());
        assert!(matches!(loader.next_step(), Err(DataError::NothingNamed)));
        assert!(matches!(loader.next_step(), Err(DataError::LoaderFailed { .. })));
    }

    #[test]
    fn a_panic_reaches_the_caller() {
        let fill = |step, _: &mut StepBatches| panic!("step {step} is cursed");
        for mut loader in [Loader::start_with(0, 1, fill), Loader::in_caller(0, Box::new(fill))] {
            assert!(loader.next_step().unwrap_err().to_string().contains("step 0 is cursed"));
        }
    }
}
