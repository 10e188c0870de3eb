//! Starts `dpdk-testpmd`, a vhost device that is not part of Penstock, to forward between two
//! vhost-user ports.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use penstock_guest::driver::{DriverConfig, RxFrame, VirtioNet};
pub use penstock_testing::wait_until as until;
use penstock_testing::{TempDir, patience, temp_dir};

/// Lets only one testpmd run at a time, because each testpmd polls a core.
static ONE: Mutex<()> = Mutex::new(());

/// A running testpmd with two vhost-user ports. The testpmd forwards each frame to the other port.
pub struct Testpmd {
    dir: TempDir,
    extra: String,
    child: Option<Child>,
    _one: MutexGuard<'static, ()>,
}

impl Testpmd {
    /// Starts testpmd with the device arguments `extra`. If testpmd is not installed, prints that
    /// the test is skipped, and returns `None`.
    pub fn start(extra: &str) -> Option<Self> {
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        if !Path::new("/usr/bin/dpdk-testpmd").exists() {
            penstock_testing::skip("dpdk-testpmd is not installed (scripts/setup.sh test)");
            return None;
        }
        let mut pmd = Self { dir: temp_dir(), extra: extra.to_owned(), child: None, _one: one };
        pmd.restart();
        Some(pmd)
    }

    /// Kills the running testpmd, if any, and starts a new testpmd on the same sockets.
    pub fn restart(&mut self) {
        self.kill();
        let vdev = |i: usize| {
            format!("net_vhost{i},iface={},queues=1{}", self.socket(i).display(), self.extra)
        };
        let child = Command::new("/usr/bin/dpdk-testpmd")
            .args(["--no-pci", "--no-huge", "-m", "256", "-l", "0,1", "--main-lcore", "0"])
            .args(["--file-prefix", &format!("lab{}", std::process::id())])
            .args(["--vdev", &vdev(0), "--vdev", &vdev(1), "--"])
            .args(["--forward-mode=io", "--auto-start", "--nb-cores=1"])
            .args(["--total-num-mbufs=8192", "--stats-period=100000"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.child = Some(child);
    }

    /// Kills testpmd, as if it had crashed.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
            for i in 0..2 {
                let _ = std::fs::remove_file(self.socket(i));
            }
        }
    }

    pub fn socket(&self, port: usize) -> PathBuf {
        self.dir.join(format!("{port}.sock"))
    }

    /// Returns the driver configuration for a port. The driver waits long enough for testpmd to
    /// start.
    pub fn config(&self, port: usize) -> DriverConfig {
        let mut config = DriverConfig::new(self.socket(port));
        config.wait = patience();
        config
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        self.kill();
    }
}

pub fn receive(vm: &mut VirtioNet) -> Vec<u8> {
    let mut got = Vec::new();
    until("receiving a frame", || {
        vm.rx().recv(1, |frame: &RxFrame<'_>| frame.append_to(&mut got)) == 1
    });
    got
}

/// Builds a frame of `len` bytes. The value of `seed` changes every byte after the Ethernet header.
pub fn frame(len: usize, seed: usize) -> Vec<u8> {
    let mut frame: Vec<u8> =
        (0..len).map(|i| u8::try_from((i * 7 + seed * 13) % 251).unwrap()).collect();
    frame[..12].copy_from_slice(&[0x52, 0x54, 0, 0, 0, 2, 0x52, 0x54, 0, 0, 0, 1]);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame
}
