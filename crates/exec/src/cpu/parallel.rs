//! Distribution of work to the workers of the current rayon pool.

use rayon::iter::{IndexedParallelIterator, IntoParallelIterator, ParallelIterator};
use rayon::slice::{ParallelSlice, ParallelSliceMut};
use std::sync::{Mutex, PoisonError};

/// Elements per work item of kernels that pass over flat tensors: few enough to stay in the first-level cache between
/// two loops over them.
pub(super) const CHUNK: usize = 1 << 12;

/// Least number of elements for which a second worker saves more than waking it costs.
const SMALL: usize = 1 << 15;

/// Runs `work` on every part, in parallel if the parts access enough `elements` in total.
pub(super) fn for_each<I: IndexedParallelIterator>(elements: usize, parts: I, work: impl Fn(I::Item) + Sync + Send) {
    let fewest_parts = if elements < SMALL { usize::MAX } else { 1 };
    parts.with_min_len(fewest_parts).for_each(work);
}

/// Copies a slice. Panics if the lengths differ.
pub(super) fn copy<T: Copy + Send + Sync>(into: &mut [T], from: &[T]) {
    assert_eq!(into.len(), from.len(), "elements of a copy");
    let chunk = CHUNK * size_of::<f32>() / size_of::<T>();
    let elements = size_of_val(from) / size_of::<f32>();
    let parts = into.par_chunks_mut(chunk).zip(from.par_chunks(chunk));
    for_each(elements, parts, |(into, from)| into.copy_from_slice(from));
}

/// Chunks of samples of `sample_size` elements: the sample's number, the chunk's first element in it, and the elements.
pub(super) fn chunks_of_samples<T>(values: &mut [T], sample_size: usize) -> Vec<(usize, usize, &mut [T])> {
    let samples = <[T]>::chunks_exact_mut(values, sample_size).enumerate();
    let chunks = samples.flat_map(|(sample, values)| {
        <[T]>::chunks_mut(values, CHUNK).enumerate().map(move |(n, values)| (sample, n * CHUNK, values))
    });
    chunks.collect()
}

/// Runs `work` on every item, on at most `workers` workers; each takes the next item when it is free.
pub(super) fn for_each_of<T>(items: impl Iterator<Item = T> + Send, workers: usize, work: impl Fn(T) + Sync + Send) {
    if workers == 1 {
        return items.for_each(work);
    }
    let items = Mutex::new(items);
    // The guard is dropped at the end of the statement, before the work starts.
    let next = || items.lock().unwrap_or_else(PoisonError::into_inner).next();
    (0..workers).into_par_iter().with_max_len(1).for_each(|_| {
        while let Some(item) = next() {
            work(item);
        }
    });
}

/// Runs `work` on every item; each worker takes the next item when it is free. Each worker has its own slot of the
/// scratch memory, so there are never more workers than slots. The result must not depend on which worker gets an item.
pub(super) fn for_each_with_scratch<T>(
    items: impl Iterator<Item = T> + Send,
    scratch: &mut [f32],
    slots: usize,
    work: impl Fn(T, &mut [f32]) + Sync + Send,
) {
    let items = Mutex::new(items);
    // The guard is dropped at the end of the statement, before the work starts.
    let next = || items.lock().unwrap_or_else(PoisonError::into_inner).next();
    scratch.par_chunks_exact_mut(scratch.len() / slots).with_max_len(1).for_each(|slot| {
        while let Some(item) = next() {
            work(item, slot);
        }
    });
}
