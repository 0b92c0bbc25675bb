//! The checksum of a file, read in parts: a mapped file would count fully as memory of the process.

use std::fs::File;
use std::io::{self, Read};

/// Size of a read: enough for all cores to share.
const PART_BYTES: u64 = 1 << 20;

/// BLAKE3 of the rest of a file.
pub(super) fn sum(mut file: &File) -> io::Result<blake3::Hash> {
    let mut hasher = blake3::Hasher::new();
    let mut part = Vec::with_capacity(PART_BYTES as usize);
    while file.by_ref().take(PART_BYTES).read_to_end(&mut part)? > 0 {
        hasher.update_rayon(&part);
        part.clear();
    }
    Ok(hasher.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_in_parts_does_not_change_the_hash() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("file");
        for bytes in [0, 1, PART_BYTES - 1, PART_BYTES, 2 * PART_BYTES + 77] {
            let contents = (0..bytes).map(|i| (i * 31 % 251) as u8).collect::<Vec<_>>();
            std::fs::write(&path, &contents).expect("written");
            let file = File::open(&path).expect("a file");
            assert_eq!(sum(&file).expect("read"), blake3::hash(&contents));
        }
    }
}
