//! Private groups. Many systems give each user a private group with write permission by default (`umask 002`), so group
//! write permission is harmless if the group has no other members.

use std::fs;

/// Whether a group has no members other than `uid` and root, according to `/etc/group` and `/etc/passwd`. A group that
/// is not listed there is not private.
pub(crate) fn is_private(gid: u32, uid: u32) -> bool {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    is_private_in(&read("/etc/group"), &read("/etc/passwd"), gid, uid)
}

/// Sources: group(5), `name:password:gid:members`; passwd(5), `name:password:uid:gid:…`.
fn is_private_in(groups: &str, users: &str, gid: u32, uid: u32) -> bool {
    let users = users.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let (name, uid, primary) = (fields.next()?, fields.nth(1)?.parse::<u32>().ok()?, fields.next()?);
        Some((name, uid, primary.parse::<u32>().ok()?))
    });
    let users = users.collect::<Vec<_>>();
    let is_allowed = |other: u32| other == uid || other == 0;
    let uid_of = |name: &str| users.iter().find(|(user, ..)| *user == name).map(|(_, uid, _)| *uid);
    let mut entries = groups.lines().filter_map(|line| {
        let fields = line.split(':').collect::<Vec<_>>();
        let listed = fields.get(2)?.parse::<u32>().ok()?;
        (listed == gid).then(|| fields.get(3).copied().unwrap_or_default())
    });
    let Some(members) = entries.next() else { return false };
    let mut members = members.split(',').map(str::trim).filter(|name| !name.is_empty());
    let no_other_member = members.all(|name| uid_of(name).is_some_and(is_allowed));
    no_other_member && users.iter().all(|(_, other, primary)| *primary != gid || is_allowed(*other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_without_other_users_is_private() {
        let users =
            "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/:/bin/sh\nbob:x:1001:1001::/:/bin/sh\neve:x:1002:50::/:";
        let groups =
            "root:x:0:\nann:x:1000:\nbob:x:1001:ann\nlab:x:50:\nstaff:x:60:root,ann\nodd:x:70:unknown-user\n\nx:y";
        let private = |gid, uid| is_private_in(groups, users, gid, uid);
        assert!(private(1000, 1000) && private(0, 0) && private(60, 1000));
        assert!(!private(1000, 1001), "it is the primary group of another user");
        assert!(!private(1001, 1001), "another user is a member");
        assert!(!private(50, 1000) && private(50, 1002), "it is the primary group of eve");
        assert!(!private(70, 1000) && !private(99, 1000), "the member or the group is unknown");
        assert!(!is_private_in("", "", 0, 0));
    }
}
