//! Creates network namespaces and configures interfaces, with `ip` from iproute2.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, bail};

use super::spec::NicSpec;

/// Returns the path of the file with which `ip netns` keeps a namespace alive.
#[must_use]
pub fn path(name: &str) -> PathBuf {
    PathBuf::from("/run/netns").join(name)
}

fn ip(netns: Option<&str>, args: &[&str]) -> anyhow::Result<()> {
    let mut command = Command::new("ip");
    if let Some(netns) = netns {
        command.args(["-n", netns]);
    }
    let out = command.args(args).output().context("running `ip` (iproute2)")?;
    if !out.status.success() {
        let said = String::from_utf8_lossy(&out.stderr);
        bail!("ip {}: {}", args.join(" "), said.trim());
    }
    Ok(())
}

/// A network namespace that this process created. The namespace is removed when the value is
/// dropped.
#[derive(Debug)]
pub(crate) struct OwnNetns(String);

impl OwnNetns {
    /// Creates the namespace. Returns `None` if the namespace already exists.
    pub fn create(name: &str) -> anyhow::Result<Option<Self>> {
        if path(name).exists() {
            return Ok(None);
        }
        ip(None, &["netns", "add", name])?;
        let own = Self(name.to_owned());
        ip(Some(name), &["link", "set", "lo", "up"])?;
        Ok(Some(own))
    }
}

impl Drop for OwnNetns {
    fn drop(&mut self) {
        if let Err(error) = ip(None, &["netns", "del", &self.0]) {
            tracing::warn!(netns = self.0, %error, "namespace not removed");
        }
    }
}

/// Sets the MAC address, MTU and IP address of the NIC's interface, and enables the interface.
pub(crate) fn configure(nic: &NicSpec) -> anyhow::Result<()> {
    let netns = nic.netns.as_deref();
    let name = nic.interface.as_str();
    let mtu = nic.mtu.to_string();
    if let Some(mac) = nic.mac {
        ip(netns, &["link", "set", "dev", name, "address", &mac.to_string()])?;
    }
    ip(netns, &["link", "set", "dev", name, "mtu", &mtu, "up"])?;
    if let Some(address) = &nic.ip {
        ip(netns, &["addr", "replace", address, "dev", name])?;
    }
    Ok(())
}
