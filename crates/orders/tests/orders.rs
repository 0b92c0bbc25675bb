//! Gives and reads orders, and invalid ones.

use plimsoll_files::{Distrust, FolderLock, is_locked};
use plimsoll_orders::{FILE, GiveError, Inbox, Order, give};
use proptest::prelude::*;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;

/// A run's folder with its lock and its orders file.
fn run() -> (tempfile::TempDir, FolderLock, Inbox) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let lock = FolderLock::take(folder.path()).expect("it is free");
    let inbox = Inbox::open(folder.path()).expect("a new file");
    (folder, lock, inbox)
}

fn orders(inbox: &mut Inbox) -> Vec<Order> {
    let new = inbox.poll();
    assert_eq!(new.lost, None);
    new.orders.into_iter().map(|(_, order)| order).collect()
}

fn add(run: &Path, text: &[u8]) {
    let mut file = OpenOptions::new().append(true).open(run.join(FILE)).expect("the run's file");
    file.write_all(text).expect("written");
}

#[test]
fn orders_are_read_once_in_order_with_their_numbers() {
    let (folder, _lock, mut inbox) = run();
    let all = [Order::Pause, Order::Resume, Order::Budget { bytes: 1 << 30 }, Order::Stop];
    let numbers = all.map(|order| give(folder.path(), order).expect("given"));
    assert_eq!(inbox.poll().orders, numbers.into_iter().zip(all).collect::<Vec<_>>());
    assert!(numbers.is_sorted_by(|a, b| a < b));
    assert_eq!(orders(&mut inbox), [], "no order is read twice");
    give(folder.path(), Order::Pause).expect("given");
    assert_eq!(orders(&mut inbox), [Order::Pause]);
}

#[test]
fn a_run_ignores_orders_to_an_earlier_run() {
    let (folder, lock, inbox) = run();
    give(folder.path(), Order::Stop).expect("given");
    drop((lock, inbox));
    assert!(!is_locked(folder.path()));
    assert!(matches!(give(folder.path(), Order::Stop), Err(GiveError::NotTraining)));
    let _lock = FolderLock::take(folder.path()).expect("it is free");
    let mut next = Inbox::open(folder.path()).expect("the old file");
    assert_eq!(orders(&mut next), []);
    give(folder.path(), Order::Pause).expect("given");
    assert_eq!(orders(&mut next), [Order::Pause]);
}

#[test]
fn concurrent_orders_are_not_lost() {
    let (folder, _lock, mut inbox) = run();
    let path = folder.path();
    let numbers = std::thread::scope(|scope| {
        let givers = (0..8_u64).map(|giver| {
            scope.spawn(move || {
                let each = (0..20).map(|n| give(path, Order::Budget { bytes: giver * 100 + n }).expect("given"));
                each.collect::<Vec<_>>()
            })
        });
        let givers = givers.collect::<Vec<_>>();
        givers.into_iter().flat_map(|giver| giver.join().expect("it ends")).collect::<Vec<_>>()
    });
    let taken = inbox.poll().orders;
    assert_eq!(taken.len(), 160);
    for number in numbers {
        assert!(taken.iter().any(|(taken, _)| *taken == number), "{number} of {taken:?}");
    }
}

#[test]
fn invalid_lines_are_skipped_and_unfinished_ones_are_kept() {
    let (folder, _lock, mut inbox) = run();
    let long = [b"{\"order\":\"stop\",\"x\":\"".as_slice(), &[b'x'; 1000], b"\"}\n"].concat();
    for text in [&b"\n\n{}\nstop\n{\"order\":\"rm\"}\n\xff\xfe\n{\"order\":\"budget\"}\n"[..], &long] {
        add(folder.path(), text);
        assert_eq!(orders(&mut inbox), []);
    }
    add(folder.path(), b"{\"order\":\"pa");
    assert_eq!(orders(&mut inbox), []);
    add(folder.path(), b"use\"}\n");
    assert_eq!(orders(&mut inbox), [Order::Pause]);
    // An endless line is read once, and does not hide the next order.
    add(folder.path(), &vec![b'['; 200_000]);
    (0..5).for_each(|_| assert_eq!(orders(&mut inbox), []));
    give(folder.path(), Order::Resume).expect("given");
    assert_eq!(orders(&mut inbox), [Order::Resume]);
}

#[cfg(unix)]
#[test]
fn a_file_of_another_user_is_rejected() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let (folder, _lock, mut inbox) = run();
    let path = folder.path().join(FILE);
    assert_eq!(fs::metadata(&path).expect("it is there").permissions().mode() & 0o777, 0o600);
    give(folder.path(), Order::Stop).expect("given");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("changed");
    assert!(matches!(give(folder.path(), Order::Stop), Err(GiveError::Distrusted(Distrust::Writable { .. }))));
    let new = inbox.poll();
    let lost = format!("other users can write to {}", path.display());
    assert_eq!((new.orders, new.lost), (vec![], Some(lost)));
    assert_eq!(inbox.poll().lost, None, "reported once");
    // A replacement of the file, or a link, is rejected.
    let (folder, _lock, mut inbox) = run();
    let path = folder.path().join(FILE);
    fs::rename(&path, folder.path().join("aside")).expect("it was there");
    File::create(&path).expect("a new file");
    add(folder.path(), b"{\"order\":\"stop\"}\n");
    assert_eq!(inbox.poll().orders, []);
    fs::remove_file(&path).expect("it was there");
    let theirs = folder.path().join("theirs");
    fs::write(&theirs, "").expect("written");
    symlink(&theirs, &path).expect("a link");
    assert!(Inbox::open(folder.path()).is_err());
    assert!(matches!(give(folder.path(), Order::Stop), Err(GiveError::Io(_))));
    assert_eq!(fs::read(&theirs).expect("readable"), b"");
}

/// Another user could put the orders file of another run in its place.
#[cfg(unix)]
#[test]
fn a_folder_that_another_user_controls_gets_no_orders() {
    use std::os::unix::fs::PermissionsExt;
    let (folder, _lock, mut inbox) = run();
    for (mode, is_given) in [(0o777, false), (0o1777, false), (0o755, true)] {
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).expect("changed");
        match give(folder.path(), Order::Pause) {
            Ok(_) => assert!(is_given, "{mode:o}"),
            Err(GiveError::Distrusted(distrust)) => {
                assert!(!is_given && distrust.path() == folder.path().canonicalize().expect("it is there"), "{mode:o}");
            }
            Err(error) => panic!("{mode:o}: {error}"),
        }
    }
    assert_eq!(orders(&mut inbox), [Order::Pause]);
}

#[test]
fn a_missing_or_full_file_takes_no_orders() {
    let (folder, lock, inbox) = run();
    fs::remove_file(folder.path().join(FILE)).expect("it was there");
    assert!(matches!(give(folder.path(), Order::Stop), Err(GiveError::TakesNone)));
    drop((lock, inbox));
    let (folder, lock, inbox) = run();
    add(folder.path(), &vec![b'\n'; (1 << 20) + 1]);
    assert!(matches!(give(folder.path(), Order::Stop), Err(GiveError::Full)));
    drop((lock, inbox));
    let _lock = FolderLock::take(folder.path()).expect("it is free");
    let mut inbox = Inbox::open(folder.path()).expect("a new file");
    give(folder.path(), Order::Stop).expect("there is room again");
    assert_eq!(orders(&mut inbox), [Order::Stop]);
}

proptest! {
    /// Complete orders are read once, regardless of other contents and of where a write was interrupted.
    #[test]
    fn complete_orders_are_read_from_any_text(
        lines in prop::collection::vec(
            "\\{\"order\":\"(pause|resume|stop)\"\\}|[{}\":,a-z0-9\\[\\]]{0,40}|\\PC{0,20}",
            0..8,
        ),
        cut in any::<prop::sample::Index>(),
    ) {
        let (folder, _lock, mut inbox) = run();
        let text = lines.iter().map(|line| format!("{line}\n")).collect::<String>();
        let (first, second) = text.as_bytes().split_at(cut.index(text.len() + 1));
        add(folder.path(), first);
        let mut found = orders(&mut inbox);
        add(folder.path(), second);
        found.extend(orders(&mut inbox));
        let expected = lines.iter().filter_map(|line| serde_json::from_str::<Order>(line).ok()).collect::<Vec<_>>();
        prop_assert_eq!(found, expected);
    }
}
