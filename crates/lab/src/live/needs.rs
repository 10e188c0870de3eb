//! Whether a program that a live run starts is installed.

/// Fails if `program` is not in `PATH`. The error names its Debian package.
pub(super) fn needs(program: &str, package: &str) -> anyhow::Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|dir| dir.join(program).exists());
    anyhow::ensure!(
        found,
        "{program} is not there; install Debian's package {package}, or run \
         `scripts/setup.sh bench`"
    );
    Ok(())
}
