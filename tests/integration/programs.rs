//! Programs of others that tests run, made by scripts of ours where they are missing.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The folder that a script of ours prints for `name`.
pub(crate) fn printed(script: &str, name: &str) -> PathBuf {
    let made = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join(script)).arg(name).stderr(Stdio::inherit()).output().unwrap();
    assert!(made.status.success(), "{script} {name} does its work");
    String::from_utf8(made.stdout).unwrap().trim().into()
}
