//! Settings as PyTorch parses them, and snapshots of every version.

use super::*;

const MIB: u64 = 1 << 20;

#[track_caller]
fn set(conf: &str) -> AllocatorSettings {
    let mut settings = AllocatorSettings::default();
    assert_eq!(settings.set(conf), []);
    settings
}

#[test]
fn sizes_are_rounded_as_pytorch_does() {
    let plain = AllocatorSettings::default();
    for (bytes, rounded) in [(1, 512), (511, 512), (512, 512), (513, 1024), (MIB + 1, MIB + 512)] {
        assert_eq!(plain.rounded(bytes), rounded, "{bytes}");
    }
    // The example in PyTorch's source: 1200 with 4 divisions is 1280; but divisions of up to 512 bytes round to units.
    let four = set("roundup_power2_divisions:4");
    for (bytes, rounded) in [(1200, 1536), (2048, 2048), (2049, 2560), (5000, 5120), (5121, 6144), (8192, 8192)] {
        assert_eq!(four.rounded(bytes), rounded, "{bytes}");
    }
    let mixed = set("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]");
    assert_eq!(mixed.rounded(300 * MIB), 300 * MIB);
    assert_eq!(mixed.rounded(600 * MIB), 768 * MIB);
    assert_eq!(mixed.rounded(1100 * MIB), 1280 * MIB);
    assert_eq!(mixed.rounded(2100 * MIB), 2304 * MIB);
}

#[test]
fn settings_are_read_and_written() {
    let conf = "expandable_segments:True, max_split_size_mb:128,roundup_power2_divisions:[1:2,2:4,>:8],\
                garbage_collection_threshold:0.8,backend:native,pinned_num_register_threads:4";
    let settings = set(conf);
    assert_eq!(settings.max_split_bytes, Some(128 * MIB));
    assert!(settings.expandable_segments);
    assert_eq!(set(&settings.conf()), settings);
    assert_eq!(AllocatorSettings::default().conf(), "");
    let mut settings = AllocatorSettings::default();
    let unknown = settings.set("max_split_size_mb:x,future:1,expandable_segments:maybe,garbage_collection_threshold:7");
    assert_eq!(unknown.len(), 4);
    assert_eq!(settings, AllocatorSettings::default());
    assert_eq!(set("large_segment_size_mb:12").large_segment_bytes, 12 * MIB);
}
