//! Who may do what, and what else is known of a file.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};

use rustix::fs::{
    AtFlags, CWD, StatxFlags, Timespec, Timestamps, XattrFlags, getxattr, listxattr, removexattr,
    setxattr, statx, utimensat,
};
use rustix::io::Errno;

use crate::{Here, SOMEBODY, somebody_may};

fn set_mode(path: &std::path::Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// The mode alone, of which the kernel need not ask again when something else has changed.
fn mode(path: &std::path::Path) -> u32 {
    let known = statx(CWD, path, AtFlags::empty(), StatxFlags::MODE).unwrap();
    u32::from(known.stx_mode) & 0o7777
}

#[test]
fn modes_and_owners_say_who_may() {
    let here = Here::plain();
    let file = here.at("file");
    let path = file.display();
    fs::write(&file, "text").unwrap();
    set_mode(&file, 0o600);
    assert!(!somebody_may(&format!("cat '{path}'")));
    set_mode(&file, 0o604);
    assert!(somebody_may(&format!("cat '{path}'")));
    assert!(!somebody_may(&format!("echo x >> '{path}'")));
    chown(&file, Some(SOMEBODY), Some(99)).unwrap();
    let known = fs::metadata(&file).unwrap();
    assert_eq!((known.uid(), known.gid()), (SOMEBODY, 99));
    assert!(somebody_may(&format!(
        "echo x >> '{path}' && chmod 640 '{path}'"
    )));
    assert_eq!(mode(&file), 0o640);
    assert!(!somebody_may(&format!("chown 0 '{path}'")));
    // The root is not theirs; a directory with the sticky bit is everybody's, but not each file in it.
    assert!(!somebody_may(&format!(
        "touch '{}'",
        here.at("new").display()
    )));
    fs::create_dir(here.at("all")).unwrap();
    set_mode(&here.at("all"), 0o1777);
    fs::write(here.at("all/mine"), "").unwrap();
    assert!(!somebody_may(&format!(
        "rm -f '{}'",
        here.at("all/mine").display()
    )));
    assert!(somebody_may(&format!(
        "umask 027; mkdir '{0}' && touch '{0}/f'",
        here.at("all/d").display()
    )));
    assert_eq!(
        (mode(&here.at("all/d")), mode(&here.at("all/d/f"))),
        (0o750, 0o640)
    );
    assert_eq!(fs::metadata(here.at("all/d/f")).unwrap().uid(), SOMEBODY);
}

#[test]
fn who_writes_a_program_of_another_takes_its_rights() {
    let here = Here::plain();
    let file = here.at("file");
    fs::write(&file, "text").unwrap();
    for (before, after) in [
        (0o6777, 0o777),
        (0o4777, 0o777),
        (0o2767, 0o767),
        (0o6767, 0o767),
    ] {
        set_mode(&file, before);
        assert_eq!(mode(&file), before);
        assert!(somebody_may(&format!("echo x >> '{}'", file.display())));
        assert_eq!(mode(&file), after, "{before:o}");
    }
    set_mode(&file, 0o4755);
    fs::write(&file, "root may").unwrap();
    assert_eq!(mode(&file), 0o4755);
    chown(&file, Some(1), Some(1)).unwrap();
    assert_eq!(mode(&file), 0o755);
}

#[test]
fn a_group_is_passed_on_where_the_directory_says_so() {
    let here = Here::plain();
    fs::create_dir(here.at("d")).unwrap();
    chown(here.at("d"), None, Some(77)).unwrap();
    set_mode(&here.at("d"), 0o2775);
    fs::write(here.at("d/file"), "").unwrap();
    fs::create_dir(here.at("d/inner")).unwrap();
    assert_eq!(fs::metadata(here.at("d/file")).unwrap().gid(), 77);
    assert_eq!(fs::metadata(here.at("d/inner")).unwrap().gid(), 77);
    assert_eq!(mode(&here.at("d/inner")) & 0o2000, 0o2000);
}

#[test]
fn times_are_kept_to_the_nanosecond() {
    let here = Here::plain();
    let file = here.at("file");
    fs::write(&file, "text").unwrap();
    let time = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
    for (sec, nsec) in [
        (1_234_567_890, 123_456_789),
        (-5, 999_999_999),
        (1 << 33, 1),
    ] {
        let times = Timestamps {
            last_access: time(sec, nsec),
            last_modification: time(sec + 1, nsec),
        };
        utimensat(CWD, &file, &times, AtFlags::empty()).unwrap();
        let it = fs::metadata(&file).unwrap();
        assert_eq!((it.atime(), it.atime_nsec()), (sec, nsec));
        assert_eq!((it.mtime(), it.mtime_nsec()), (sec + 1, nsec));
    }
    let known = |path: &std::path::Path| {
        let it = fs::metadata(path).unwrap();
        let stamp = |sec, nsec| i128::from(sec) * 1_000_000_000 + i128::from(nsec);
        let (read, written) = (
            stamp(it.atime(), it.atime_nsec()),
            stamp(it.mtime(), it.mtime_nsec()),
        );
        (read, written, stamp(it.ctime(), it.ctime_nsec()))
    };
    let before = known(&file);
    fs::read(&file).unwrap();
    let read = known(&file);
    assert!(read.0 > before.2 && read.1 == before.1 && read.2 == before.2);
    fs::write(&file, "more").unwrap();
    let written = known(&file);
    assert!(written.1 > read.0 && written.2 == written.1);
    let directory = known(&here.at("."));
    fs::hard_link(&file, here.at("other")).unwrap();
    assert!(known(&here.at(".")).1 > directory.1);
    assert!(known(&file).2 > written.2);
}

#[test]
fn the_earliest_time_is_taken() {
    let here = Here::plain();
    let file = here.at("file");
    fs::write(&file, "text").unwrap();
    // The earliest that there is, for each who answers requests, is kept as near as nanoseconds reach. Who is not
    // answered would wait for ever.
    for _ in 0..16 {
        let mut touch = std::process::Command::new("timeout");
        let words = ["--signal=KILL", "60", "touch", "-m", "-d"];
        touch.args(words).arg(format!("@{}", i64::MIN)).arg(&file);
        assert!(touch.status().unwrap().success());
    }
    assert_eq!(fs::metadata(&file).unwrap().mtime(), -9_223_372_037);
}

#[test]
fn extended_attributes_are_kept_and_those_of_others_names_refused() {
    let here = Here::plain();
    let file = here.at("file");
    fs::write(&file, "").unwrap();
    let get = |name: &str| {
        let mut value = [0; 100];
        getxattr(&file, name, &mut value[..]).map(|len| value[..len].to_vec())
    };
    let set = |name: &str, value: &[u8], how| setxattr(&file, name, value, how);
    assert_eq!(get("user.a"), Err(Errno::NODATA));
    assert_eq!(set("user.a", b"1", XattrFlags::REPLACE), Err(Errno::NODATA));
    set("user.a", b"one", XattrFlags::CREATE).unwrap();
    assert_eq!(set("user.a", b"2", XattrFlags::CREATE), Err(Errno::EXIST));
    set("trusted.b", b"", XattrFlags::empty()).unwrap();
    assert_eq!(
        (get("user.a"), get("trusted.b")),
        (Ok(b"one".to_vec()), Ok(vec![]))
    );
    assert_eq!(
        getxattr(&file, "user.a", &mut [0; 1][..]),
        Err(Errno::RANGE)
    );
    let mut names = [0; 100];
    let len = listxattr(&file, &mut names[..]).unwrap();
    assert_eq!(names[..len], *b"trusted.b\0user.a\0");
    removexattr(&file, "user.a").unwrap();
    assert_eq!(get("user.a"), Err(Errno::NODATA));
    assert_eq!(
        set("system.x", b"", XattrFlags::empty()),
        Err(Errno::OPNOTSUPP)
    );
    let much = vec![0; 65_537];
    assert!(matches!(
        set("user.c", &much, XattrFlags::empty()),
        Err(Errno::TOOBIG | Errno::NOSPC)
    ));
}

fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut value = vec![2, 0, 0, 0];
    for (tag, may, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(may.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

#[test]
fn access_lists_say_who_may_and_are_passed_on() {
    const ACCESS: &str = "system.posix_acl_access";
    const DEFAULT: &str = "system.posix_acl_default";
    let here = Here::plain();
    let file = here.at("file");
    fs::write(&file, "text").unwrap();
    set_mode(&file, 0o600);
    let reads = |path: &std::path::Path| somebody_may(&format!("cat '{}'", path.display()));
    let writes = |path: &std::path::Path| somebody_may(&format!("echo >> '{}'", path.display()));
    assert!(!reads(&file));
    let none = u32::MAX;
    let theirs = [
        (1, 6, none),
        (2, 6, SOMEBODY),
        (4, 0, none),
        (16, 6, none),
        (32, 0, none),
    ];
    setxattr(&file, ACCESS, &list(&theirs), XattrFlags::empty()).unwrap();
    assert!(reads(&file) && writes(&file));
    assert_eq!(mode(&file), 0o660);
    // The group's bits are the mask.
    set_mode(&file, 0o640);
    assert!(reads(&file) && !writes(&file));
    let mut value = [0; 100];
    let len = getxattr(&file, ACCESS, &mut value[..]).unwrap();
    let masked = [
        (1, 6, none),
        (2, 6, SOMEBODY),
        (4, 0, none),
        (16, 4, none),
        (32, 0, none),
    ];
    assert_eq!(value[..len], list(&masked));
    removexattr(&file, ACCESS).unwrap();
    assert!(!reads(&file));
    fs::create_dir(here.at("d")).unwrap();
    let default = list(&[
        (1, 7, none),
        (2, 7, SOMEBODY),
        (4, 5, none),
        (16, 7, none),
        (32, 0, none),
    ]);
    setxattr(here.at("d"), DEFAULT, &default, XattrFlags::empty()).unwrap();
    fs::write(here.at("d/file"), "text").unwrap();
    assert!(reads(&here.at("d/file")) && writes(&here.at("d/file")));
    assert_eq!(mode(&here.at("d/file")), 0o660);
    fs::create_dir(here.at("d/inner")).unwrap();
    let len = getxattr(here.at("d/inner"), DEFAULT, &mut value[..]).unwrap();
    assert_eq!(value[..len], default);
    assert!(somebody_may(&format!(
        "touch '{}'",
        here.at("d/inner/new").display()
    )));
}
