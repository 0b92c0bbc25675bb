//! The allocator setting of PyTorch against fragmentation, and whether it could have helped.
//! Not here: other settings. `plimsoll replay` finds the best ones for a recorded run.

use crate::ends::{AllocatorSizes, CardAllocator, Cause};

/// The variable that all versions of PyTorch read.
pub(super) const VARIABLE: &str = "PYTORCH_CUDA_ALLOC_CONF";
/// Its name since PyTorch 2.9. Wins if both are set.
pub(super) const NEWER_VARIABLE: &str = "PYTORCH_ALLOC_CONF";

const EXPANDABLE: &str = "expandable_segments:True";
/// The usual setting where segments can't expand: larger blocks are not split.
const SPLIT: &str = "max_split_size_mb:128";

/// The setting plus the option against fragmentation; `None` if it has the option already, or if the option could not
/// have helped because the unused memory was smaller than the request. `given`: the setting so far, empty if unset.
pub(super) fn improved(given: &str, cause: Option<&Cause>) -> Option<String> {
    let sizes = match cause {
        Some(Cause::CardMemory { by: CardAllocator::PyTorch, sizes }) => *sizes,
        // The driver and libraries don't report how much memory PyTorch holds unused.
        Some(Cause::CardMemory { by: CardAllocator::Search, .. }) => return None,
        Some(Cause::CardMemory { .. }) | None => AllocatorSizes::default(),
        Some(_) => return None,
    };
    if !could_help(&sizes) {
        return None;
    }
    let is_set = |name: &str| given.split(',').any(|option| option.trim().starts_with(name));
    let addition = if knows_expandable(&sizes) { EXPANDABLE } else { SPLIT };
    let name = addition.split(':').next().unwrap_or_default();
    match given {
        _ if is_set(name) || is_set("backend") => None,
        "" => Some(addition.to_owned()),
        given => Some(format!("{given},{addition}")),
    }
}

/// Whether the unused memory would have sufficed in one piece.
fn could_help(sizes: &AllocatorSizes) -> bool {
    let (Some(tried), Some(unused)) = (sizes.tried, sizes.unused()) else { return true };
    let free = match (sizes.allowed, sizes.reserved) {
        (Some(allowed), Some(reserved)) => allowed.saturating_sub(reserved),
        _ => sizes.free.unwrap_or_default(),
    };
    free.0.saturating_add(unused.0) >= tried.0
}

/// Whether the allocator knows expandable segments. Versions before 2.1, which have another message format, reject
/// unknown options.
fn knows_expandable(sizes: &AllocatorSizes) -> bool {
    !sizes.is_old_form
}

#[cfg(test)]
mod tests {
    use super::*;

    fn oom(message: &str) -> Cause {
        Cause::CardMemory { by: CardAllocator::PyTorch, sizes: AllocatorSizes::read(message) }
    }

    const FRAGMENTED: &str = "Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 24.00 GiB of which 0.50 GiB is free. Of \
                              the allocated memory 20.00 GiB is allocated by PyTorch, and 3.00 GiB is reserved by PyTorch but unallocated.";
    const FULL: &str = "Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 24.00 GiB of which 0.50 GiB is free. Of \
                        the allocated memory 23.00 GiB is allocated by PyTorch, and 0.25 GiB is reserved by PyTorch but unallocated.";
    const OLD: &str = "Tried to allocate 20.00 MiB (GPU 0; 8.00 GiB total capacity; 5.00 GiB already allocated; 8.00 MiB free; 7.00 \
                       GiB reserved in total by PyTorch)";

    #[test]
    fn the_option_is_added_if_it_could_help_and_is_unset() {
        let improved = |given: &str, cause: &Cause| improved(given, Some(cause));
        assert_eq!(improved("", &oom(FRAGMENTED)).as_deref(), Some("expandable_segments:True"));
        let combined = improved("garbage_collection_threshold:0.8", &oom(FRAGMENTED));
        assert_eq!(combined.as_deref(), Some("garbage_collection_threshold:0.8,expandable_segments:True"));
        assert_eq!(improved("expandable_segments:False", &oom(FRAGMENTED)), None, "the user decided that");
        assert_eq!(improved("backend:cudaMallocAsync", &oom(FRAGMENTED)), None, "another allocator");
        assert_eq!(improved("", &oom(FULL)), None, "2 GiB don't fit in 0.75 GiB");
        assert_eq!(improved("", &oom(OLD)).as_deref(), Some("max_split_size_mb:128"));
        assert_eq!(improved("", &oom("CUDA out of memory.")).as_deref(), Some("expandable_segments:True"));
        assert_eq!(improved("", &Cause::HostMemory(crate::ends::HostShortage::Killed)), None);
    }

    #[test]
    fn a_memory_fraction_limits_the_free_memory() {
        let allowed = "Tried to allocate 3.00 GiB. GPU 0 has a total capacity of 24.00 GiB of which 15.00 GiB is free. 8.00 GiB \
                       allowed; Of the allocated memory 7.00 GiB is allocated by PyTorch, and 0.25 GiB is reserved by PyTorch but unallocated.";
        assert_eq!(improved("", Some(&oom(allowed))), None, "15 GiB are free, but not for this process");
    }
}
