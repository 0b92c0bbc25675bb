//! Which pages of a range are in memory, according to the system's page table.

/// Bytes of the range's pages that are in memory; `None` if the system does not report them.
#[cfg(target_os = "linux")]
pub(super) fn bytes(range: &[u8]) -> Option<u64> {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    /// Size of a page's entry, and the bit that is set if the page is in memory. Source:
    /// Documentation/admin-guide/mm/pagemap.rst of the kernel.
    const ENTRY_BYTES: usize = 8;
    const PRESENT: u64 = 1 << 63;

    if range.is_empty() {
        return Some(0);
    }
    let page = page_bytes();
    let table = File::open("/proc/self/pagemap").ok()?;
    let first = range.as_ptr() as u64 / page;
    let end = (range.as_ptr() as u64 + range.len() as u64).div_ceil(page);
    let mut entries = vec![0; 8192 * ENTRY_BYTES];
    let (mut next, mut resident) = (first, 0);
    while next < end {
        let wanted = entries.len().min((end - next) as usize * ENTRY_BYTES);
        table.read_exact_at(&mut entries[..wanted], next * ENTRY_BYTES as u64).ok()?;
        let present = entries[..wanted].chunks_exact(ENTRY_BYTES).filter(|entry| {
            let entry = u64::from_ne_bytes((*entry).try_into().expect("eight bytes"));
            entry & PRESENT != 0
        });
        resident += present.count() as u64;
        next += (wanted / ENTRY_BYTES) as u64;
    }
    Some(resident * page)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn bytes(_range: &[u8]) -> Option<u64> {
    None
}

/// Size of the system's pages.
#[cfg(target_os = "linux")]
pub(super) fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}
