//! The sizes that an allocator tells when it fails: PyTorch's message since 1.13 in its three forms, and Metal's.
//! Not here: whether the message is the end of a run (`statements.rs`).

use plimsoll_units::Bytes;

/// What an allocator said of the card as it failed. What it did not say is `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Told {
    /// What was asked for.
    pub tried: Option<Bytes>,
    /// The card's memory.
    pub total: Option<Bytes>,
    /// What of it nobody had.
    pub free: Option<Bytes>,
    /// What the process may take, where a fraction was set.
    pub allowed: Option<Bytes>,
    /// What tensors had.
    pub allocated: Option<Bytes>,
    /// What the allocator held for tensors, used or not.
    pub reserved: Option<Bytes>,
    /// Whether the message has the form that it had before PyTorch 2.1.
    pub is_old_form: bool,
}

impl Told {
    /// Reads what a message says.
    pub(crate) fn read(message: &str) -> Self {
        let allocated = size_before(message, " already allocated")
            .or_else(|| size_before(message, " is allocated by PyTorch"))
            .or_else(|| size_after(message, "MPS allocated: "));
        let unused = size_before(message, " is reserved by PyTorch but unallocated");
        Self {
            tried: size_after(message, "ried to allocate "),
            // PyTorch 2.1 spells it so.
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

    /// What the allocator held that no tensor had: what fragmentation may have cost.
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

/// Bytes of `20.00` and `MiB`. PyTorch counts Metal's `MB` and `GB` by powers of two as well.
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
    // Far more than any card has is no size.
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
    fn all_forms_of_the_message_are_read() {
        let old = "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 7.00 GiB total capacity; 5.00 GiB already \
                   allocated; 18.50 MiB free; 6.00 GiB reserved in total by PyTorch) If reserved memory is >> allocated";
        let told = Told::read(old);
        assert_eq!((told.tried, told.total, told.free), (mib(20.0), mib(7168.0), mib(18.5)));
        assert_eq!((told.allocated, told.reserved, told.unused()), (mib(5120.0), mib(6144.0), mib(1024.0)));
        let new = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 24.00 GiB of which \
                   512.00 KiB is free. 12.00 GiB allowed; Of the allocated memory 11.00 GiB is allocated by PyTorch, with \
                   17.00 MiB allocated in private pools (e.g., CUDA Graphs), and 64.00 MiB is reserved by PyTorch but unallocated.";
        let told = Told::read(new);
        assert_eq!((told.tried, told.total, told.free), (mib(2048.0), mib(24576.0), mib(0.5)));
        assert_eq!((told.allowed, told.allocated, told.unused()), (mib(12288.0), mib(11264.0), mib(64.0)));
        let misspelled = "GPU 0 has a total capacty of 1.00 GiB of which 0 bytes is free.";
        assert_eq!((Told::read(misspelled).total, Told::read(misspelled).free), (mib(1024.0), Some(Bytes(0))));
        let metal = "MPS backend out of memory (MPS allocated: 17.00 GB, other allocations: 304.00 KB, max allowed: \
                     18.00 GB). Tried to allocate 512.00 MB on private pool.";
        let told = Told::read(metal);
        assert_eq!((told.tried, told.allocated, told.total), (mib(512.0), mib(17408.0), mib(18432.0)));
    }

    proptest! {
        #[test]
        fn whatever_is_said_is_read_or_not(text in ".{0,60}(Tried to allocate |total capacity of )?[-0-9.eE]{0,30} ?(GiB|bytes)?.{0,60} is free.*") {
            let told = Told::read(&text);
            prop_assert!(told.tried.is_none_or(|bytes| bytes.0 <= 1_000_000_000_000_000_000));
        }
    }
}
