//! The user's instance of systemd: installs and removes units by `systemctl --user`.

use super::unit::{MARK, Unit};
use crate::cli::Failure;
use crate::cli::failure::io_failure;
use crate::streams::talk;
use plimsoll_files::{Disk, read_text};
use plimsoll_units::Bytes;
use std::env;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Size limit of a unit; real ones are far smaller.
const LONGEST: Bytes = Bytes::mib(1);

/// The file of a service's unit. Errors: the user has no home folder.
pub(super) fn path_of(name: &str) -> Result<PathBuf, Failure> {
    let folder = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let config = folder("XDG_CONFIG_HOME").or_else(|| Some(folder("HOME")?.join(".config")));
    let config = config
        .ok_or_else(|| Failure::bad_input("there is no home folder for a unit").hint("set `HOME` to a folder"))?;
    Ok(config.join("systemd/user").join(Unit::full_name(name)))
}

/// Runs `systemctl --user`. Errors: the system's message.
fn systemctl(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("systemctl").arg("--user").args(arguments).stdin(Stdio::null()).output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Err(format!("systemctl: {error}")),
    }
}

/// Errors: no instance of systemd runs for this user.
pub(super) fn check_instance() -> Result<(), Failure> {
    systemctl(&["show", "--property=Version"]).map_err(|reason| {
        Failure::device(format!("no instance of systemd runs for this user: {reason}"))
            .hint("log in as this user, since `su` and `sudo` start no instance; in a container, let the container's restart policy start the run")
            .hint("`--print` prints the unit, to install it on another machine")
    })
}

fn failed(what: &'static str) -> impl FnOnce(String) -> Failure {
    move |reason| Failure::device(format!("{what}: {reason}"))
}

/// Writes a unit, enables it and starts it. Errors: a unit with this name exists; systemd refuses it.
pub(super) fn install(name: &str, text: &str) -> Result<PathBuf, Failure> {
    let path = path_of(name)?;
    if path.exists() {
        return Err(Failure::bad_flag(format!("the service {name} exists: {}", path.display()))
            .hint(format!("`plimsoll install-service {name} --uninstall` removes it")));
    }
    check_instance()?;
    let disk = Disk::default();
    let written = disk.create_folders(path.parent().expect("a unit is in a folder"));
    written.and_then(|()| disk.replace(&path, text.as_bytes())).map_err(io_failure(path.display()))?;
    let unit = Unit::full_name(name);
    systemctl(&["daemon-reload"]).and_then(|()| systemctl(&["enable", "--now", &unit])).map_err(|reason| {
        // A unit that systemd does not start is not left installed.
        let _ = fs::remove_file(&path);
        failed("systemd does not start the service")(reason)
    })?;
    Ok(path)
}

/// Stops a service and removes its unit. Errors: there is none, or another program made it; systemd refuses.
pub(super) fn uninstall(name: &str) -> Result<PathBuf, Failure> {
    let path = path_of(name)?;
    match read_text(&path, LONGEST) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(Failure::bad_input(format!("there is no service {name}: {} does not exist", path.display()))
                .hint("`systemctl --user list-unit-files 'plimsoll-*'` lists the services"));
        }
        Err(error) => return Err(io_failure(path.display())(error)),
        Ok(text) if !text.starts_with(MARK) => {
            return Err(Failure::bad_input(format!("{} is not a unit of `plimsoll install-service`", path.display()))
                .hint("delete it yourself if it is no longer needed"));
        }
        Ok(_) => {}
    }
    check_instance()?;
    systemctl(&["disable", "--now", &Unit::full_name(name)]).map_err(failed("systemd does not stop the service"))?;
    fs::remove_file(&path).map_err(io_failure(path.display()))?;
    systemctl(&["daemon-reload"]).map_err(failed("systemd does not read its units again"))?;
    Ok(path)
}

/// Gives a hint if systemd ends this user's services at the logout.
pub(super) fn hint_at_lingering() {
    let output =
        Command::new("loginctl").args(["show-user", "--property=Linger", "--value"]).stdin(Stdio::null()).output();
    let lingers = output.is_ok_and(|output| output.stdout.trim_ascii() == b"yes");
    if !lingers {
        talk(
            "hint: `loginctl enable-linger` starts the service at boot instead of at your login, and keeps it after your logout",
        );
    }
}
