//! Snapshots of real runs, which are too large for the repository: `PLIMSOLL_TORCH_SNAPSHOTS` names a folder of them.

use plimsoll_torch_memory::replay::replay;
use plimsoll_torch_memory::snapshot::Snapshot;
use std::io::Read;

/// Under the recorded settings, the simulation equals PyTorch's allocator in every segment and address.
#[test]
fn real_recordings_replay_without_a_difference() {
    let Some(folder) = std::env::var_os("PLIMSOLL_TORCH_SNAPSHOTS") else {
        eprintln!("SKIPPED: no real snapshots; set PLIMSOLL_TORCH_SNAPSHOTS to a folder of them");
        return;
    };
    let mut replayed = 0;
    for entry in std::fs::read_dir(folder).expect("a readable folder").flatten() {
        let path = entry.path();
        let mut bytes = std::fs::read(&path).expect("a file");
        if path.extension().is_some_and(|extension| extension == "gz") {
            let mut unpacked = vec![];
            flate2::read::MultiGzDecoder::new(bytes.as_slice()).read_to_end(&mut unpacked).expect("gzip");
            bytes = unpacked;
        }
        let snapshot = Snapshot::read(&bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(snapshot.unknown, [] as [String; 0], "{}", path.display());
        for card in &snapshot.cards {
            let agreement = replay(card, &snapshot.settings).agreement;
            assert!(agreement.is_whole(), "{}: {agreement:?}", path.display());
            // As if the ring buffer had been shorter: the state at its start is inferred.
            for cut in (1..16).map(|part| card.events.len() * part / 16) {
                let mut later = card.clone();
                later.events.drain(..cut);
                let agreement = replay(&later, &snapshot.settings).agreement;
                assert!(agreement.is_whole(), "{} from event {cut}: {agreement:?}", path.display());
            }
            println!("{}, GPU {}: {agreement:?}", path.display(), card.card);
            replayed += 1;
        }
    }
    assert!(replayed > 0, "the folder has no snapshots");
}
