//! How much memory of peers may be mapped: for one port, and for all ports of the daemon.
//!
//! **Problem.** A file may claim any size without a page behind it, and addresses are finite: one
//! port that maps 100 TiB leaves none for the others. **Rule.** A mapping is counted from before it
//! is made until after it is undone, by its [`Charge`]. So nothing is counted twice or forgotten,
//! however a session ends. **Defaults.** Guests may have more memory than their host, and while a
//! driver announces its memory again, the old map and the new one both exist. Hence a port may map
//! four times the host's memory and all ports sixteen times, never more than 64 TiB, which is half
//! of what a process can address.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use nix::unistd::{SysconfVar, sysconf};

use super::MappingError;

/// Most that all ports may map by default, bytes.
const DEFAULT_MAX: u64 = 64 << 40;

/// Bytes of peers' memory that may be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimits {
    /// For each port.
    pub port: u64,
    /// For all ports together.
    pub daemon: u64,
}

impl Default for MemoryLimits {
    fn default() -> Self {
        static HOST: OnceLock<u64> = OnceLock::new();
        let host = *HOST.get_or_init(|| {
            let number = |what| sysconf(what).ok().flatten().and_then(|n| u64::try_from(n).ok());
            let pages = number(SysconfVar::_PHYS_PAGES).unwrap_or(0);
            // A host that does not tell its memory is taken for a small one.
            pages.saturating_mul(number(SysconfVar::PAGE_SIZE).unwrap_or(0)).max(1 << 30)
        });
        let times = |n: u64| host.saturating_mul(n).min(DEFAULT_MAX);
        Self { port: times(4), daemon: times(16) }
    }
}

/// Zero: the default.
static PORT_LIMIT: AtomicU64 = AtomicU64::new(0);
static DAEMON_LIMIT: AtomicU64 = AtomicU64::new(0);
static MAPPED: AtomicU64 = AtomicU64::new(0);

/// Sets the limits for what is mapped from now on. What is mapped already stays.
pub fn set_memory_limits(limits: MemoryLimits) {
    PORT_LIMIT.store(limits.port, Ordering::Relaxed);
    DAEMON_LIMIT.store(limits.daemon, Ordering::Relaxed);
}

fn limits() -> MemoryLimits {
    let default = MemoryLimits::default();
    let set = |limit: &AtomicU64, default| match limit.load(Ordering::Relaxed) {
        0 => default,
        limit => limit,
    };
    MemoryLimits {
        port: set(&PORT_LIMIT, default.port),
        daemon: set(&DAEMON_LIMIT, default.daemon),
    }
}

/// Bytes of peers' memory that are mapped now, for all ports.
#[must_use]
pub fn mapped_bytes() -> u64 {
    MAPPED.load(Ordering::Relaxed)
}

/// What one port has mapped. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct MemoryAccount(Arc<AtomicU64>);

impl MemoryAccount {
    /// Bytes that are mapped now.
    #[must_use]
    pub fn mapped(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts `bytes` for as long as the answer lives.
    pub(super) fn charge(&self, bytes: u64) -> Result<Charge, MappingError> {
        let MemoryLimits { port, daemon } = limits();
        let key = "memory_per_port_gib";
        add(&self.0, bytes, port, "this port", key)?;
        // From here on it is given back, also if the other limit refuses it.
        let mut charge = Charge { account: self.clone(), bytes, daemon: 0 };
        add(&MAPPED, bytes, daemon, "all ports together", "memory_gib")?;
        charge.daemon = bytes;
        Ok(charge)
    }
}

fn add(
    total: &AtomicU64,
    bytes: u64,
    limit: u64,
    of: &'static str,
    key: &'static str,
) -> Result<(), MappingError> {
    let more = |mapped: u64| mapped.checked_add(bytes).filter(|sum| *sum <= limit);
    match total.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
        Ok(_) => Ok(()),
        Err(mapped) => Err(MappingError::Limit { bytes, mapped, limit, of, key }),
    }
}

/// Bytes that are counted until it is dropped.
#[derive(Debug)]
pub(super) struct Charge {
    account: MemoryAccount,
    bytes: u64,
    daemon: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.0.fetch_sub(self.bytes, Ordering::Relaxed);
        MAPPED.fetch_sub(self.daemon, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_over_a_limit_is_refused_and_counts_nowhere() {
        let account = MemoryAccount::default();
        let MemoryLimits { port, daemon } = MemoryLimits::default();
        assert!(port >= 4 << 30 && port <= daemon && daemon <= DEFAULT_MAX);
        let held = account.charge(4096).unwrap();
        for bytes in [port, u64::MAX] {
            let error = account.charge(bytes).unwrap_err().to_string();
            let limit = format!("{bytes} bytes more than the 4096 that this port has mapped");
            assert!(error.contains(&limit) && error.contains("memory_per_port_gib"), "{error}");
        }
        assert_eq!(account.mapped(), 4096);
        drop(held);
        assert_eq!(account.mapped(), 0);
        // Together as much as no port alone may have.
        let total = AtomicU64::new(7);
        let error = add(&total, 4, 10, "all ports together", "memory_gib").unwrap_err();
        assert!(error.to_string().contains("limit 10; raise `memory_gib`"), "{error}");
        assert_eq!(total.load(Ordering::Relaxed), 7);
        assert!(add(&total, 3, 10, "all ports together", "memory_gib").is_ok());
    }
}
