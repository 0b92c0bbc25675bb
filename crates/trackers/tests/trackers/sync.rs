//! W&B's program is started as it requires, with the key only in its environment.
#![cfg(unix)]

use plimsoll_secrets::Secret;
use plimsoll_trackers::{SyncError, sync_in_background};
use std::fs;
use std::os::unix::fs::PermissionsExt;

#[test]
fn only_the_sync_program_receives_the_key_in_its_environment() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (bin, run) = (folder.path().join("bin"), folder.path().join("offline-run-1-abc"));
    [&bin, &run].into_iter().for_each(|folder| fs::create_dir(folder).expect("a folder"));
    let program = bin.join("wandb");
    // `wandb/settings` in a working folder could name the server that receives the key.
    fs::write(&program, "#!/bin/sh\npwd\necho \"$@\"\ntest \"$WANDB_API_KEY\" = CANARY && echo has the key >&2\n")
        .expect("written");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("executable");
    let key = Secret::new("CANARY");
    let path = std::env::join_paths([folder.path(), &bin]).expect("paths");
    let mut synced = sync_in_background(&run, &key, Some(&path)).expect("it starts");
    assert!(synced.process.wait().expect("it ends").success());
    let output = fs::read_to_string(&synced.log).expect("a log");
    assert_eq!(output, format!("/\nsync {}\nhas the key\n", run.display()));
    for path in [None, Some(folder.path().as_os_str()), Some("bin".as_ref()), Some("".as_ref())] {
        assert!(matches!(sync_in_background(&run, &key, path), Err(SyncError::NotInstalled)), "{path:?}");
    }
}
