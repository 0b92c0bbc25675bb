//! Sizes in the message of a failed allocator: the three forms of PyTorch since 1.13, and Metal's.
//! Not here: whether the message ended the run (`statements.rs`).

use plimsoll_units::Bytes;

/// Sizes that an allocator reported when it failed. Each is `None` if the message lacks it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AllocatorSizes {
    /// The size of the request.
    pub tried: Option<Bytes>,
    /// Total memory of the card.
    pub total: Option<Bytes>,
    /// Free memory of the card.
    pub free: Option<Bytes>,
    /// The limit of the process, if a memory fraction is set.
    pub allowed: Option<Bytes>,
    /// Memory of tensors.
    pub allocated: Option<Bytes>,
    /// Memory that the allocator holds, used or unused.
    pub reserved: Option<Bytes>,
    /// Whether the message has the form from before PyTorch 2.1.
    pub is_old_form: bool,
}

impl AllocatorSizes {
    /// Reads the sizes in a message.
    pub(crate) fn read(message: &str) -> Self {
        let allocated = size_before(message, " already allocated")
            .or_else(|| size_before(message, " is allocated by PyTorch"))
            .or_else(|| size_after(message, "MPS allocated: "));
        let unused = size_before(message, " is reserved by PyTorch but unallocated");
        Self {
            tried: size_after(message, "ried to allocate "),
            // PyTorch 2.1 misspells it.
            total: ["total capacity of ", "total capacty of ", "max allowed: "]
                .into_iter()
                .find_map(|before| size_after(message, before))
                .or_else(|| size_before(message, " total capacity")),
            free: size_before(message, " is free").or_else(|| size_before(message, " free;")),
            allowed: size_before(message, " allowed;"),
            allocated,
            reserved: size_before(message, " reserved in total by PyTorch")
                .or_else(|| Some(Bytes(allocated?.0.checked_add(unused?.0)?))),
            is_old_form: message.contains(" total capacity; "),
        }
    }

    /// Memory that the allocator holds unused, possibly because of fragmentation.
    pub fn unused(&self) -> Option<Bytes> {
        Some(self.reserved?.saturating_sub(self.allocated?))
    }
}

fn size_after(message: &str, before: &str) -> Option<Bytes> {
    let (_, rest) = message.split_once(before)?;
    let mut words = rest.split_whitespace();
    size(words.next()?, words.next()?)
}

fn size_before(message: &str, after: &str) -> Option<Bytes> {
    let (rest, _) = message.split_once(after)?;
    let mut words = rest.split_whitespace().rev();
    let unit = words.next()?;
    size(words.next()?, unit)
}

/// Bytes of `20.00` and `MiB`. For Metal, PyTorch also means powers of two by `MB` and `GB`.
fn size(number: &str, unit: &str) -> Option<Bytes> {
    let unit = match unit.trim_end_matches(['.', ',', ';', ')']) {
        "bytes" | "B" => 1_u64,
        "KiB" | "KB" => 1 << 10,
        "MiB" | "MB" => 1 << 20,
        "GiB" | "GB" => 1 << 30,
        _ => return None,
    };
    let number: f64 = number.trim_start_matches('(').parse().ok()?;
    let bytes = number * unit as f64;
    // Reject sizes that are far larger than any card.
    (0.0..1e18).contains(&bytes).then_some(Bytes(bytes as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mib(n: f64) -> Option<Bytes> {
        Some(Bytes((n * 1048576.0) as u64))
    }

    #[test]
    fn all_message_forms_are_read() {
        let old = "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 7.00 GiB total capacity; 5.00 GiB already \
                   allocated; 18.50 MiB free; 6.00 GiB reserved in total by PyTorch) If reserved memory is >> allocated";
        let sizes = AllocatorSizes::read(old);
        assert_eq!((sizes.tried, sizes.total, sizes.free), (mib(20.0), mib(7168.0), mib(18.5)));
        assert_eq!((sizes.allocated, sizes.reserved, sizes.unused()), (mib(5120.0), mib(6144.0), mib(1024.0)));
        let new = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 24.00 GiB of which \
                   512.00 KiB is free. 12.00 GiB allowed; Of the allocated memory 11.00 GiB is allocated by PyTorch, with \
                   17.00 MiB allocated in private pools (e.g., CUDA Graphs), and 64.00 MiB is reserved by PyTorch but unallocated.";
        let sizes = AllocatorSizes::read(new);
        assert_eq!((sizes.tried, sizes.total, sizes.free), (mib(2048.0), mib(24576.0), mib(0.5)));
        assert_eq!((sizes.allowed, sizes.allocated, sizes.unused()), (mib(12288.0), mib(11264.0), mib(64.0)));
        let misspelled = "GPU 0 has a total capacty of 1.00 GiB of which 0 bytes is free.";
        assert_eq!(
            (AllocatorSizes::read(misspelled).total, AllocatorSizes::read(misspelled).free),
            (mib(1024.0), Some(Bytes(0)))
        );
        let metal = "MPS backend out of memory (MPS allocated: 17.00 GB, other allocations: 304.00 KB, max allowed: \
                     18.00 GB). Tried to allocate 512.00 MB on private pool.";
        let sizes = AllocatorSizes::read(metal);
        assert_eq!((sizes.tried, sizes.allocated, sizes.total), (mib(512.0), mib(17408.0), mib(18432.0)));
    }

    proptest! {
        #[test]
        fn any_message_is_read_or_ignored(text in ".{0,60}(Tried to allocate |total capacity of )?[-0-9.eE]{0,30} ?(GiB|bytes)?.{0,60} is free.*") {
            let sizes = AllocatorSizes::read(&text);
            prop_assert!(sizes.tried.is_none_or(|bytes| bytes.0 <= 1_000_000_000_000_000_000));
        }
    }
}
