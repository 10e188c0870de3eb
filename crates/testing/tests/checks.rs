//! Tests `scripts/checks.sh` with a fake cargo. `scripts/checks.sh` must print and count skipped
//! tests. In CI, `scripts/checks.sh` must fail on a skipped test that the list of allowed skips
//! does not contain.
#![allow(clippy::unwrap_used, reason = "a test, helpers included, ends where it fails")]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use penstock_testing::{TempDir, temp_dir};

/// A fake cargo, which accepts every command. The fake cargo records one skipped test in the file
/// of skips, and prints another skip as a script does.
const CARGO: &str = "#!/bin/sh
case $* in *--version*) exit 0 ;; esac
echo 'SKIP qos a::test: no such machine' >>\"$PENSTOCK_SKIPS\"
echo 'SKIP a script: not here'
echo 'test result: ok. 3 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out'
";

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        let folder = temp_dir();
        let cargo = folder.join("cargo");
        std::fs::write(&cargo, CARGO).unwrap();
        std::fs::set_permissions(&cargo, PermissionsExt::from_mode(0o755)).unwrap();
        Self(folder)
    }

    /// Runs one part (lane) of `scripts/checks.sh`, with the list `allowed` of allowed skips.
    /// Returns whether `scripts/checks.sh` succeeded, and the output of `scripts/checks.sh`.
    fn lane(&self, ci: bool, allowed: &str) -> (bool, String) {
        let list = self.0.join("allowed");
        std::fs::write(&list, allowed).unwrap();
        let checks = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/checks.sh");
        let path = format!("{}:/usr/bin:/bin", self.0.display());
        let mut command = Command::new(checks);
        command.arg("miri").env("PATH", path).env("SKIPS_ALLOWED", list).env_remove("CI");
        if ci {
            command.env("CI", "true");
        }
        let out = command.output().unwrap();
        (out.status.success(), String::from_utf8(out.stdout).unwrap())
    }
}

#[test]
fn a_skip_is_counted_and_in_ci_must_be_allowed() {
    let folder = Folder::new();
    let total = "total: 3 tests, 0 lanes failed, 2 skipped, 2 ignored";
    let (good, text) = folder.lane(false, "");
    assert!(good && text.contains(total), "{text}");
    assert!(text.contains("\nSKIP qos a::test: no such machine\n"), "{text}");

    let one = "# a list\n^SKIP qos .*: no such machine$  => not every machine is such\n";
    let (good, text) = folder.lane(true, one);
    assert!(!good && text.contains("total: 3 tests, 1 lanes failed"), "{text}");
    let (_, told) = text.split_once("does not allow:\n").unwrap();
    assert!(told.starts_with("SKIP a script: not here\n\n"), "{told}");

    let both = format!("{one}^SKIP a script:  => as well\n");
    let (good, text) = folder.lane(true, &both);
    assert!(good && text.contains(total), "{text}");
}
