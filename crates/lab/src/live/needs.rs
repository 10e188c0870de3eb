//! Checks whether the programs of a live run are installed.

/// Returns an error with the name of the Debian package if `program` is not in `PATH`.
pub(super) fn needs(program: &str, package: &str) -> anyhow::Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|dir| dir.join(program).exists());
    anyhow::ensure!(
        found,
        "{program} is not installed; install Debian's package {package}, or run \
         `scripts/setup.sh bench`"
    );
    Ok(())
}
