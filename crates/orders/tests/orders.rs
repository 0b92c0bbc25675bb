//! Orders between two sides of a folder, and what is no order.

use plimsoll_files::{Distrust, FolderLock, is_locked};
use plimsoll_orders::{FILE, GiveError, Inbox, Order, give};
use proptest::prelude::*;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;

/// A run's folder with its lock, and a file of orders.
fn run() -> (tempfile::TempDir, FolderLock, Inbox) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let lock = FolderLock::take(folder.path()).expect("nobody has it");
    let inbox = Inbox::open(folder.path()).expect("a new file");
    (folder, lock, inbox)
}

fn orders(inbox: &mut Inbox) -> Vec<Order> {
    let looked = inbox.look();
    assert_eq!(looked.lost, None);
    looked.orders.into_iter().map(|(_, order)| order).collect()
}

fn add(run: &Path, text: &[u8]) {
    let mut file = OpenOptions::new().append(true).open(run.join(FILE)).expect("the run's file");
    file.write_all(text).expect("written");
}

#[test]
fn an_order_is_taken_once_and_in_its_order_by_the_number_that_it_was_given() {
    let (folder, _lock, mut inbox) = run();
    let all = [Order::Pause, Order::Resume, Order::Budget { bytes: 1 << 30 }, Order::Stop];
    let numbers = all.map(|order| give(folder.path(), order).expect("given"));
    assert_eq!(inbox.look().orders, numbers.into_iter().zip(all).collect::<Vec<_>>());
    assert!(numbers.is_sorted_by(|a, b| a < b));
    assert_eq!(orders(&mut inbox), [], "none is taken twice");
    give(folder.path(), Order::Pause).expect("given");
    assert_eq!(orders(&mut inbox), [Order::Pause]);
}

#[test]
fn what_was_asked_of_a_run_before_is_not_asked_of_the_next() {
    let (folder, lock, inbox) = run();
    give(folder.path(), Order::Stop).expect("given");
    drop((lock, inbox));
    assert!(!is_locked(folder.path()));
    assert!(matches!(give(folder.path(), Order::Stop), Err(GiveError::NotTraining)));
    let _lock = FolderLock::take(folder.path()).expect("nobody has it");
    let mut next = Inbox::open(folder.path()).expect("the old file");
    assert_eq!(orders(&mut next), []);
    give(folder.path(), Order::Pause).expect("given");
    assert_eq!(orders(&mut next), [Order::Pause]);
}

#[test]
fn who_gives_orders_at_the_same_time_loses_none() {
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
    let taken = inbox.look().orders;
    assert_eq!(taken.len(), 160);
    for number in numbers {
        assert!(taken.iter().any(|(taken, _)| *taken == number), "{number} of {taken:?}");
    }
}

#[test]
fn what_is_no_order_is_skipped_and_half_a_line_waits_for_its_end() {
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
    // A line that never ends is not read again and again, nor does it take the next order with it.
    add(folder.path(), &vec![b'['; 200_000]);
    (0..5).for_each(|_| assert_eq!(orders(&mut inbox), []));
    give(folder.path(), Order::Resume).expect("given");
    assert_eq!(orders(&mut inbox), [Order::Resume]);
}

#[cfg(unix)]
#[test]
fn a_file_of_others_is_not_believed() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let (folder, _lock, mut inbox) = run();
    let path = folder.path().join(FILE);
    assert_eq!(fs::metadata(&path).expect("it is there").permissions().mode() & 0o777, 0o600);
    give(folder.path(), Order::Stop).expect("given");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("changed");
    assert!(matches!(give(folder.path(), Order::Stop), Err(GiveError::Distrusted(Distrust::Writable { .. }))));
    let looked = inbox.look();
    let lost = format!("other users can write to {}", path.display());
    assert_eq!((looked.orders, looked.lost), (vec![], Some(lost)));
    assert_eq!(inbox.look().lost, None, "told once");
    // Another file in its place, or a link to one, is none of the run's.
    let (folder, _lock, mut inbox) = run();
    let path = folder.path().join(FILE);
    fs::rename(&path, folder.path().join("aside")).expect("it was there");
    File::create(&path).expect("a new file");
    add(folder.path(), b"{\"order\":\"stop\"}\n");
    assert_eq!(inbox.look().orders, []);
    fs::remove_file(&path).expect("it was there");
    let theirs = folder.path().join("theirs");
    fs::write(&theirs, "").expect("written");
    symlink(&theirs, &path).expect("a link");
    assert!(Inbox::open(folder.path()).is_err());
    assert!(matches!(give(folder.path(), Order::Stop), Err(GiveError::Io(_))));
    assert_eq!(fs::read(&theirs).expect("readable"), b"");
}

/// Another user could put a file of orders for another run in its place.
#[cfg(unix)]
#[test]
fn a_folder_that_others_control_gets_no_orders() {
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
fn a_run_that_makes_no_file_takes_no_orders_and_a_full_one_no_more() {
    let (folder, lock, inbox) = run();
    fs::remove_file(folder.path().join(FILE)).expect("it was there");
    assert!(matches!(give(folder.path(), Order::Stop), Err(GiveError::TakesNone)));
    drop((lock, inbox));
    let (folder, lock, inbox) = run();
    add(folder.path(), &vec![b'\n'; (1 << 20) + 1]);
    assert!(matches!(give(folder.path(), Order::Stop), Err(GiveError::Full)));
    drop((lock, inbox));
    let _lock = FolderLock::take(folder.path()).expect("nobody has it");
    let mut inbox = Inbox::open(folder.path()).expect("a new file");
    give(folder.path(), Order::Stop).expect("there is room again");
    assert_eq!(orders(&mut inbox), [Order::Stop]);
}

proptest! {
    /// What is in the file, and where a writer was interrupted, changes nothing: whole orders are taken, once.
    #[test]
    fn any_text_holds_the_orders_of_its_lines(
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
