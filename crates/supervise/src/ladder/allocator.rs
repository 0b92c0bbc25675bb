//! The setting of PyTorch's allocator that helps against fragmentation, and whether it could have helped.
//! Not here: other settings; `plimsoll replay` finds the best for a recorded run.

use crate::ends::{CardAllocator, Cause, Told};

/// The variable that all versions read.
pub(super) const VARIABLE: &str = "PYTORCH_CUDA_ALLOC_CONF";
/// Its name since PyTorch 2.9, which wins where both are set.
pub(super) const NEWER_VARIABLE: &str = "PYTORCH_ALLOC_CONF";

const EXPANDABLE: &str = "expandable_segments:True";
/// What people set where segments can't expand: blocks that are larger are not split.
const SPLIT: &str = "max_split_size_mb:128";

/// The setting with what helps against fragmentation, or `None` if it has it already or if it could not have helped: where
/// what nobody used was less than what was asked for. `given`: the setting so far, empty for none.
pub(super) fn improved(given: &str, cause: Option<&Cause>) -> Option<String> {
    let told = match cause {
        Some(Cause::CardMemory { by: CardAllocator::PyTorch, told }) => *told,
        // The driver has no word on what PyTorch holds unused, and neither have libraries.
        Some(Cause::CardMemory { by: CardAllocator::Search, .. }) => return None,
        Some(Cause::CardMemory { .. }) | None => Told::default(),
        Some(_) => return None,
    };
    if !could_help(&told) {
        return None;
    }
    let is_set = |name: &str| given.split(',').any(|option| option.trim().starts_with(name));
    let addition = if knows_expandable(&told) { EXPANDABLE } else { SPLIT };
    let name = addition.split(':').next().unwrap_or_default();
    match given {
        _ if is_set(name) || is_set("backend") => None,
        "" => Some(addition.to_owned()),
        given => Some(format!("{given},{addition}")),
    }
}

/// Whether all that nobody used would have sufficed, had it been in one piece.
fn could_help(told: &Told) -> bool {
    let (Some(tried), Some(unused)) = (told.tried, told.unused()) else { return true };
    let free = match (told.allowed, told.reserved) {
        (Some(allowed), Some(reserved)) => allowed.saturating_sub(reserved),
        _ => told.free.unwrap_or_default(),
    };
    free.0.saturating_add(unused.0) >= tried.0
}

/// Messages before 2.1 say what is free after what is allocated, and told of the card in parentheses; their allocators
/// refuse options that they don't know.
fn knows_expandable(told: &Told) -> bool {
    !told.is_old_form
}

#[cfg(test)]
mod tests {
    use super::*;

    fn oom(message: &str) -> Cause {
        Cause::CardMemory { by: CardAllocator::PyTorch, told: Told::read(message) }
    }

    const FRAGMENTED: &str = "Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 24.00 GiB of which 0.50 GiB is free. Of \
                              the allocated memory 20.00 GiB is allocated by PyTorch, and 3.00 GiB is reserved by PyTorch but unallocated.";
    const FULL: &str = "Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 24.00 GiB of which 0.50 GiB is free. Of \
                        the allocated memory 23.00 GiB is allocated by PyTorch, and 0.25 GiB is reserved by PyTorch but unallocated.";
    const OLD: &str = "Tried to allocate 20.00 MiB (GPU 0; 8.00 GiB total capacity; 5.00 GiB already allocated; 8.00 MiB free; 7.00 \
                       GiB reserved in total by PyTorch)";

    #[test]
    fn it_is_set_where_it_could_help_and_is_not_yet() {
        let improved = |given: &str, cause: &Cause| improved(given, Some(cause));
        assert_eq!(improved("", &oom(FRAGMENTED)).as_deref(), Some("expandable_segments:True"));
        let beside = improved("garbage_collection_threshold:0.8", &oom(FRAGMENTED));
        assert_eq!(beside.as_deref(), Some("garbage_collection_threshold:0.8,expandable_segments:True"));
        assert_eq!(improved("expandable_segments:False", &oom(FRAGMENTED)), None, "somebody decided that");
        assert_eq!(improved("backend:cudaMallocAsync", &oom(FRAGMENTED)), None, "another allocator");
        assert_eq!(improved("", &oom(FULL)), None, "2 GiB don't fit in 0.75 GiB");
        assert_eq!(improved("", &oom(OLD)).as_deref(), Some("max_split_size_mb:128"));
        assert_eq!(improved("", &oom("CUDA out of memory.")).as_deref(), Some("expandable_segments:True"));
        assert_eq!(improved("", &Cause::HostMemory(crate::ends::HostShortage::Killed)), None);
    }

    #[test]
    fn a_fraction_counts_as_the_cards_end() {
        let allowed = "Tried to allocate 3.00 GiB. GPU 0 has a total capacity of 24.00 GiB of which 15.00 GiB is free. 8.00 GiB \
                       allowed; Of the allocated memory 7.00 GiB is allocated by PyTorch, and 0.25 GiB is reserved by PyTorch but unallocated.";
        assert_eq!(improved("", Some(&oom(allowed))), None, "15 GiB are free, but not for this process");
    }
}
